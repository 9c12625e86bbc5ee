"""One attempt at a batch: its lanes are sent side by side, by several threads."""

import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from towpath.schemas.failure import BusyError, HaltError, TowpathError
from towpath.sinks.change import EventRow
from towpath.sinks.webhook.answer import Outcome, Verdict
from towpath.sinks.webhook.client import Client
from towpath.sinks.webhook.payload import Request, request_of

# A receiver that is down fails at every request. After so many in a row it is asked for
# a proof that it is well: fewer would ask for each bad key.
_ASKED_AFTER: Final = 5


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
        is_answering: Whether the receiver took anything, or knew it.
        has_stopped: Whether it was given up: the receiver fails at everything.
    """

    def __init__(
        self,
        client: Client,
        answered: dict[str, Verdict],
        is_well: Callable[[], bool],
    ) -> None:
        self._client = client
        self._answered = answered
        self._is_well = is_well
        self._stop = threading.Event()
        self._judging = threading.Lock()
        self._in_a_row = 0
        self.failures: list[Failure] = []
        self.taken: Request | None = None
        self.is_answering = False

    @property
    def has_stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def worst(self) -> TowpathError:
        """The failure to be raised, if there is any."""
        return max(self.failures, key=lambda failure: failure.severity).error

    @property
    def is_halting(self) -> bool:
        """Tell whether the receiver wants no webhooks at all."""
        return any(isinstance(one.error, HaltError) for one in self.failures)

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
        if verdict.outcome is not Outcome.REFUSED:
            self._in_a_row, self.is_answering = 0, True
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
        with self._judging:
            self.failures.append(failure)
            self._in_a_row += 1
            if self._stop.is_set():
                return
            is_asked = self._in_a_row % _ASKED_AFTER == 0
            is_halting = isinstance(failure.error, HaltError)
            if is_halting or (is_asked and not self._is_well()):
                self._stop.set()
