"""
Posts signed requests: the only place that speaks HTTP.

Nothing is tried again here, and no redirect is followed: a signed request goes where
the configuration says, or nowhere.
"""

from collections.abc import Sequence
from typing import Final

import urllib3
from urllib3.exceptions import HTTPError

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.webhooks import secret_bytes, signed
from towpath.settings.sink import WebhookOptions
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.webhook.answer import Verdict, judge
from towpath.sinks.webhook.payload import Request

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

    def post(self, request: Request) -> Verdict:
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
