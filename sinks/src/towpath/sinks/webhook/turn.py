"""One attempt at a batch: its lanes are sent side by side, by several threads."""

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from towpath.schemas.failure import BusyError, HaltError, TowpathError
from towpath.sinks.change import EventRow
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.webhook.answer import Outcome, Verdict
from towpath.sinks.webhook.client import Client
from towpath.sinks.webhook.payload import Request, request_of

# A receiver that is down fails every request: after this many no other is begun. One
# would let a single bad key hold back all others.
_FAILURES_TO_STOP: Final = 5


class Failure(NamedTuple):
    """A request that was not answered as it should have been."""

    request: Request
    error: TowpathError

    @property
    def severity(self) -> tuple[bool, float]:
        """What is worst is raised: a halt, then the longest pause."""
        error = self.error
        pause_s = error.retry_after_s if isinstance(error, BusyError) else 0.0
        return isinstance(error, HaltError), pause_s


class Turn:
    """
    Sends lanes, and notes what was said.

    Attributes:
        failures: What was not answered.
        taken: The last request that was taken, if any was.
    """

    def __init__(self, client: Client, answered: dict[str, Verdict]) -> None:
        self._client = client
        self._answered = answered
        self._stop = threading.Event()
        self.failures: list[Failure] = []
        self.taken: Request | None = None

    @property
    def failed(self) -> dict[str, str]:
        """The changes at which the receiver failed, with its words."""
        return {
            change_id: str(failure.error)
            for failure in self.failures
            if isinstance(failure.error, TargetUnavailableError)
            for change_id in failure.request.told
        }

    def send(self, lane: Iterable[Request]) -> None:
        """Send the requests of a lane in order, until one is not taken."""
        for request in lane:
            if self._stop.is_set() or not self._post(request):
                return

    def _post(self, request: Request) -> bool:
        """Send one request, and apart what was not taken together."""
        try:
            verdict = self._client.post(request)
        except TowpathError as error:
            self._fail(Failure(request, error))
            return False
        is_taken = verdict.outcome is Outcome.TAKEN
        if is_taken:
            self.taken = request
        if is_taken or len(request.told) == 1:
            self._answered.update(dict.fromkeys(request.told, verdict))
            return verdict.outcome in {Outcome.TAKEN, Outcome.KNOWN}
        for one in request.told.values():
            if self._stop.is_set():
                return False
            if not self._post(request_of([one])) and isinstance(one, EventRow):
                return False
        return True

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        is_general = isinstance(failure.error, BusyError | HaltError)
        if is_general or len(self.failures) >= _FAILURES_TO_STOP:
            self._stop.set()
