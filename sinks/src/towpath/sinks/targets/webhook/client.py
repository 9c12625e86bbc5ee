"""
Post signed requests, and interpret the receiver's responses.

Nothing is retried here, and no redirect is followed: a signed request goes to the
configured address only.

=============  =========================================================================
2xx            applied
409            already known, or stale: a success
428            a partial change without its row: its key is refetched
408 425 429    busy: the change is retried after the time in Retry-After
5xx            busy, if it has Retry-After; else unavailable
3xx 401 403    no webhook is accepted: the address or the secret is wrong, or the
410            receiver has unsubscribed; no change becomes a dead letter
other 4xx      this change is refused for good
=============  =========================================================================
"""

import enum
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import urllib3
from urllib3.exceptions import HTTPError

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.webhooks import secret_bytes, signed
from towpath.settings.sink import WebhookOptions
from towpath.sinks.errors import (
    TargetBusyError,
    TargetUnavailableError,
    WebhookRefusedError,
)
from towpath.sinks.targets.webhook.schema import Request

# The pause if the receiver specifies none.
_PAUSE_S: Final = 1.0
# A Retry-After header stops a sink for at most this long.
_LONGEST_PAUSE_S: Final = 300.0
_REASON_CHARACTERS: Final = 200

_KNOWN: Final = 409
_ABSENT: Final = 428
_BUSY: Final = frozenset({408, 425, 429})
_UNWANTED: Final = frozenset({401, 403, 410})


class ReceiverOutcome(enum.Enum):
    """The outcome of a change at the receiver."""

    ACCEPTED = "accepted"
    KNOWN = "known"
    ABSENT = "absent"
    REFUSED = "refused"
    LATER = "later"


class ReceiverVerdict(NamedTuple):
    """An outcome, with the text of the receiver's response."""

    outcome: ReceiverOutcome
    reason: str = ""


def verdict_of(
    status: int, headers: Mapping[str, str], text: str, now: datetime
) -> ReceiverVerdict:
    """
    Return the verdict of a response.

    Raises:
        TargetBusyError: The receiver asks for a pause.
        TargetUnavailableError: The receiver fails.
        WebhookRefusedError: The receiver accepts no webhooks at all.
    """
    reason = f"the receiver returned {status}"
    if excerpt := " ".join(text.split())[:_REASON_CHARACTERS]:
        reason += f": {excerpt}"
    if 200 <= status < 300:  # noqa: PLR2004 - 2xx
        return ReceiverVerdict(ReceiverOutcome.ACCEPTED)
    if status in _UNWANTED or 300 <= status < 400:  # noqa: PLR2004 - 3xx
        raise WebhookRefusedError(reason)
    pause_s = _retry_after_s(headers.get("retry-after", ""), now)
    if status in _BUSY or (pause_s is not None and status >= 500):  # noqa: PLR2004 - 5xx
        given_s = _PAUSE_S if pause_s is None else pause_s
        raise TargetBusyError(reason, retry_after_s=given_s)
    if not 400 <= status < 500:  # noqa: PLR2004 - 4xx
        raise TargetUnavailableError(reason)
    return ReceiverVerdict(_OUTCOMES.get(status, ReceiverOutcome.REFUSED), reason)


_OUTCOMES: Final = {_KNOWN: ReceiverOutcome.KNOWN, _ABSENT: ReceiverOutcome.ABSENT}


def _retry_after_s(text: str, now: datetime) -> float | None:
    """Parse Retry-After: seconds, or a date; ``None`` if it is neither."""
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_PAUSE_S)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max((aware - now).total_seconds(), 0.0), _LONGEST_PAUSE_S)


# A response's text only explains the status, so no more of the text is kept.
_RESPONSE_BYTES: Final = 4096

_HEADERS: Final = {"content-type": "application/json", "user-agent": "towpath"}


class WebhookClient:
    """A client of one receiver; several threads can use it."""

    def __init__(self, url: str, options: WebhookOptions, clock: Clock) -> None:
        self._url = url
        self._secrets: Sequence[bytes] = [secret_bytes(s) for s in options.secrets]
        self._timeout_s = options.timeout_s
        self._clock = clock
        self._pool = urllib3.PoolManager(
            num_pools=1, maxsize=options.concurrency, block=True
        )

    def post(self, request: Request) -> ReceiverVerdict:
        """
        Send a request once.

        Raises:
            TargetBusyError: The receiver asks for a pause.
            TargetUnavailableError: The receiver does not answer, or fails.
            WebhookRefusedError: The receiver accepts no webhooks at all.
        """
        now = self._clock.now()
        signature = signed(
            self._secrets, request.id, int(now.timestamp()), request.body
        )
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=request.body,
                headers={**_HEADERS, **signature},
                timeout=urllib3.Timeout(total=self._timeout_s),
                redirect=False,
                retries=False,
                preload_content=False,
            )
            text = self._text(response)
        except (HTTPError, OSError) as error:
            # The error's text is left out: it may contain the address with its secrets.
            message = f"the receiver does not answer: {type(error).__name__}"
            raise TargetUnavailableError(message) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return verdict_of(response.status, headers, text, now)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _text(self, response: urllib3.BaseHTTPResponse) -> str:
        """
        Read the start of a response; close the connection of a long or slow one.

        If reading fails, the text read so far is returned: the status alone decides.
        """
        deadline = Deadline(self._clock, self._timeout_s)
        read = b""
        try:
            while piece := response.read1(_RESPONSE_BYTES):
                read += piece
                if len(read) > _RESPONSE_BYTES or deadline.passed():
                    response.close()
                    break
        except (HTTPError, OSError):
            response.close()
        finally:
            response.release_conn()
        return read[:_RESPONSE_BYTES].decode("utf-8", "replace")
