"""
One attempt at a batch: its lanes are sent side by side, by several threads.

Which keys a receiver fails at, when each is tried again, and when it is given up.

A key that the receiver fails at waits by itself: as long as ``Retry-After`` says, or
longer with each attempt. It is given up after so many attempts over so long a time.

A receiver that is down fails at everything: no key is to blame then, and none is parked
or given up, however long it takes. So before a key is blamed there is a *proof* that
the receiver is well: it takes something else, or the last request that it took, which
is sent again and which the guard of every receiver makes harmless.

The proof is kept in a file, because the process that finds nothing but the bad change
in its first batch has no other.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from towpath.schemas.clock import Backoff, Clock
from towpath.schemas.failure import BusyError, HaltError, TowpathError
from towpath.settings.sink import WebhookOptions
from towpath.sinks.change import EventRow
from towpath.sinks.state.progress import replace_file
from towpath.sinks.targets.webhook.client import (
    Client,
    ReceiverOutcome,
    ReceiverVerdict,
)
from towpath.sinks.targets.webhook.schema import Request, Unit, request_of

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
        answered: dict[str, ReceiverVerdict],
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
        is_taken = verdict.outcome is ReceiverOutcome.TAKEN
        if is_taken:
            self.taken = request
        if verdict.outcome is not ReceiverOutcome.REFUSED:
            self._in_a_row, self.is_answering = 0, True
        if is_taken or len(request.told) == 1:
            self._answered.update(dict.fromkeys(request.told, verdict))
            return verdict.outcome in {ReceiverOutcome.TAKEN, ReceiverOutcome.KNOWN}
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


# One that fails again waits for longer, up to a minute.
_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=60.0)
# What is forgotten beyond that begins with its first attempt again.
_MAX_UNITS: Final = 100_000

_log = structlog.get_logger("towpath.sinks.webhook")


@dataclass(frozen=True, slots=True)
class _Failing:
    """A key that the receiver failed at, and when it may be tried again."""

    since_s: float
    attempts: int
    due_s: float
    reason: str


class Patience:
    """What a receiver fails at, by key; outlives batches."""

    def __init__(self, options: WebhookOptions, clock: Clock) -> None:
        self._attempts = options.give_up_attempts
        self._after_s = options.give_up_after_s
        self._clock = clock
        self._failing: dict[Unit, _Failing] = {}

    def __contains__(self, unit: Unit) -> bool:
        return unit in self._failing

    def failed(self, unit: Unit, error: TowpathError) -> None:
        """Count an attempt that failed."""
        now_s = self._clock.monotonic_s()
        known = self._failing.pop(unit, None)
        attempts = 0 if known is None else known.attempts
        if isinstance(error, BusyError):
            delay_s = error.retry_after_s
        else:
            delay_s = _BACKOFF.delay_s(attempts)
        since_s = now_s if known is None else known.since_s
        self._failing[unit] = _Failing(
            since_s, attempts + 1, now_s + delay_s, str(error)
        )
        if len(self._failing) > _MAX_UNITS:
            del self._failing[next(iter(self._failing))]

    def forget(self, unit: Unit) -> None:
        """The receiver has answered."""
        self._failing.pop(unit, None)

    def wait_s(self, unit: Unit) -> float:
        """Return how long a key is to wait before its next attempt."""
        failing = self._failing.get(unit)
        if failing is None:
            return 0.0
        return max(0.0, failing.due_s - self._clock.monotonic_s())

    def reason(self, unit: Unit) -> str:
        """Return what the receiver said last."""
        return self._failing[unit].reason

    def worn_out(self, unit: Unit) -> str:
        """Return why a key is given up, if it was tried for long enough."""
        failing = self._failing[unit]
        tried_s = self._clock.monotonic_s() - failing.since_s
        if failing.attempts < self._attempts or tried_s < self._after_s:
            return ""
        reason = (
            f"{failing.reason}; given up after {failing.attempts} attempts in "
            f"{tried_s:.0f} s, while the receiver takes others"
        )
        _log.warning("webhook key given up", reason=reason)
        return reason


class Proof:
    """The last request that a receiver took."""

    def __init__(self, file: Path | None) -> None:
        """Describe where it is kept; without a file a restart forgets it."""
        self._file = file
        self._last: Request | None = None
        self._is_kept = True

    def recall(self) -> None:
        """Read what was kept."""
        if self._file is None or self._last is not None:
            return
        try:
            told = orjson.loads(self._file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return
        self._last = Request(told["id"], {}, told["body"].encode())

    def take(self, request: Request | None) -> None:
        """Take note of a request that was taken."""
        if request is not None:
            self._last, self._is_kept = request, False

    def keep(self) -> None:
        """Keep it for the next process."""
        if self._file is None or self._last is None or self._is_kept:
            return
        told = {"id": self._last.id, "body": self._last.body.decode()}
        replace_file(self._file, orjson.dumps(told))
        self._is_kept = True

    def is_given(self, client: Client) -> bool:
        """Tell whether the receiver is well: it takes what it took before."""
        if self._last is None:
            return False
        try:
            return client.post(self._last).outcome in {
                ReceiverOutcome.TAKEN,
                ReceiverOutcome.KNOWN,
            }
        except TowpathError:
            return False
