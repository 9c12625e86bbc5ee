"""
Posts signed requests: the only place that speaks HTTP.

Nothing is tried again here, and no redirect is followed: a signed request goes where
the configuration says, or nowhere.

What a receiver's answer means. Pure.

=============  =========================================================================
2xx            taken
409            known already, or something newer is: as good as taken
428            a partial change without its row: its key is read anew
408 425 429    later; as long as Retry-After says
5xx            later, if it has Retry-After; without it, not now
3xx 401 403    webhooks as such are not taken: the address or the secret is not as it
410            must be, or nobody wants them any more; nothing is set aside
other 4xx      this change will never be taken
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

# A receiver that names no time is asked again after this.
_PAUSE_S: Final = 1.0
# Nobody gets a sink to stand still for longer by one header.
_LONGEST_PAUSE_S: Final = 300.0
_REASON_CHARACTERS: Final = 200

_KNOWN: Final = 409
_ABSENT: Final = 428
_BUSY: Final = frozenset({408, 425, 429})
_UNWANTED: Final = frozenset({401, 403, 410})


class ReceiverOutcome(enum.Enum):
    """What a receiver did with a change."""

    TAKEN = "taken"
    KNOWN = "known"
    ABSENT = "absent"
    REFUSED = "refused"
    LATER = "later"


class ReceiverVerdict(NamedTuple):
    """An outcome, with the receiver's own words."""

    outcome: ReceiverOutcome
    reason: str = ""


def judge(
    status: int, headers: Mapping[str, str], text: str, now: datetime
) -> ReceiverVerdict:
    """
    Read an answer.

    Raises:
        TargetBusyError: The receiver asks for a pause.
        TargetUnavailableError: The receiver has a failure of its own.
        WebhookRefusedError: It takes no webhooks, whatever they say.
    """
    reason = f"the receiver answers {status}"
    if words := " ".join(text.split())[:_REASON_CHARACTERS]:
        reason += f": {words}"
    if 200 <= status < 300:  # noqa: PLR2004 - 2xx
        return ReceiverVerdict(ReceiverOutcome.TAKEN)
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
    """Read Retry-After: seconds, or a date; nothing if it is neither."""
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_PAUSE_S)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max((aware - now).total_seconds(), 0.0), _LONGEST_PAUSE_S)


# Of an answer, only its status counts; this much of its text is told.
_ANSWER_BYTES: Final = 4096

_HEADERS: Final = {"content-type": "application/json", "user-agent": "towpath"}


class Client:
    """One receiver; may be used by several threads."""

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
            TargetUnavailableError: It does not answer, or has a failure of its own.
            WebhookRefusedError: It takes no webhooks, whatever they say.
        """
        now = self._clock.now()
        seal = signed(self._secrets, request.id, int(now.timestamp()), request.body)
        try:
            answer = self._pool.request(
                "POST",
                self._url,
                body=request.body,
                headers={**_HEADERS, **seal},
                timeout=urllib3.Timeout(total=self._timeout_s),
                redirect=False,
                retries=False,
                preload_content=False,
            )
            text = self._text(answer)
        except (HTTPError, OSError) as error:
            # Not the error's own words: they may repeat the address with its secrets.
            message = f"the receiver does not answer: {type(error).__name__}"
            raise TargetUnavailableError(message) from error
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return judge(answer.status, headers, text, now)

    def close(self) -> None:
        """Let go of connections."""
        self._pool.clear()

    def _text(self, answer: urllib3.BaseHTTPResponse) -> str:
        """Read the beginning of an answer; what is long or slow ends the connection."""
        deadline = Deadline(self._clock, self._timeout_s)
        read = b""
        while piece := answer.read1(_ANSWER_BYTES):
            read += piece
            if len(read) > _ANSWER_BYTES or deadline.passed():
                answer.close()
                break
        answer.release_conn()
        return read[:_ANSWER_BYTES].decode("utf-8", "replace")
