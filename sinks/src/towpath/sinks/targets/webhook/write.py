"""
Send the lanes of a batch, and track the keys on which the receiver fails.

A key on which the receiver fails waits for the pause that the receiver asks for, or, if
it asks for none, for a time that grows with each attempt. The key is abandoned after a
minimum number of attempts and a minimum time.

A receiver that is down fails on every request. In that case no key is the cause, so no
key is parked or abandoned, however long the receiver is down. Before a key counts as
failing, a *probe* must therefore show that the receiver is healthy: it accepts a
different change, or its last accepted request again, which the guard of every receiver
makes harmless.

The last accepted request is kept in a file, because a process whose first batch has
only the failing change has no other request to probe with.
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
    ReceiverOutcome,
    ReceiverVerdict,
    WebhookClient,
)
from towpath.sinks.targets.webhook.schema import OrderingKey, Request, request_of

# A receiver that is down fails on every request. After this many consecutive failures a
# probe is sent: a lower number would send one for each bad key.
_PROBE_AFTER: Final = 5


class Failure(NamedTuple):
    """A request without a usable response."""

    request: Request
    error: TowpathError

    @property
    def severity(self) -> tuple[bool, float]:
        """The order of errors to raise: a halt outranks the longest pause."""
        error = self.error
        pause_s = error.retry_after_s if isinstance(error, BusyError) else 0.0
        return isinstance(error, HaltError), pause_s


class SendAttempt:
    """
    One attempt at a batch: sends lanes, and collects verdicts.

    Attributes:
        failures: The requests that failed.
        taken: The last request that was accepted, if any was.
        has_succeeded: Whether the receiver gave any verdict but a refusal.
        is_stopped: Whether the attempt has ended early: the receiver fails on every
            request, or accepts no webhooks at all.
    """

    def __init__(
        self,
        client: WebhookClient,
        verdicts: dict[str, ReceiverVerdict],
        probe_receiver: Callable[[], bool],
    ) -> None:
        self._client = client
        self._verdicts = verdicts
        self._probe_receiver = probe_receiver
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._consecutive_failures = 0
        self.failures: list[Failure] = []
        self.last_accepted: Request | None = None
        self.has_succeeded = False

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def worst(self) -> TowpathError:
        """The most severe error, which is the one to raise."""
        return max(self.failures, key=lambda failure: failure.severity).error

    @property
    def is_halting(self) -> bool:
        """Whether the receiver accepts no webhooks at all."""
        return any(isinstance(failure.error, HaltError) for failure in self.failures)

    def send(self, lane: Iterable[Request]) -> None:
        """Send the requests of a lane in order, until one fails or is refused."""
        for request in lane:
            if self._stop.is_set() or not self._post(request):
                return

    def _post(self, request: Request) -> bool:
        """Send a request; if it is not accepted as a whole, send each change alone."""
        try:
            verdict = self._client.post(request)
        except TowpathError as error:
            self._fail(Failure(request, error))
            return False
        is_accepted = verdict.outcome is ReceiverOutcome.ACCEPTED
        if is_accepted:
            self.last_accepted = request
        if verdict.outcome is not ReceiverOutcome.REFUSED:
            self._consecutive_failures, self.has_succeeded = 0, True
        if is_accepted or len(request.changes) == 1:
            self._verdicts.update(dict.fromkeys(request.changes, verdict))
            return verdict.outcome in {ReceiverOutcome.ACCEPTED, ReceiverOutcome.KNOWN}
        for change in request.changes.values():
            if self._stop.is_set():
                return False
            if not self._post(request_of([change])) and isinstance(change, EventRow):
                return False
        return True

    def _fail(self, failure: Failure) -> None:
        with self._lock:
            self.failures.append(failure)
            self._consecutive_failures += 1
            if self._stop.is_set():
                return
            probe_is_due = self._consecutive_failures % _PROBE_AFTER == 0
            is_halting = isinstance(failure.error, HaltError)
            if is_halting or (probe_is_due and not self._probe_receiver()):
                self._stop.set()


# A key that fails again waits longer, up to a minute.
_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=60.0)
# Beyond this number, the oldest key is forgotten, and its attempts start over.
_MAX_FAILING_KEYS: Final = 100_000

_log = structlog.get_logger("towpath.sinks.webhook")


@dataclass(frozen=True, slots=True)
class _FailingKey:
    """The attempts at a key, and when the next one is due."""

    since_s: float
    attempts: int
    due_s: float
    reason: str


class FailingKeys:
    """The keys on which a receiver fails; they outlive batches."""

    def __init__(self, options: WebhookOptions, clock: Clock) -> None:
        self._give_up_attempts = options.give_up_attempts
        self._give_up_after_s = options.give_up_after_s
        self._clock = clock
        self._failing: dict[OrderingKey, _FailingKey] = {}

    def __contains__(self, ordering_key: OrderingKey) -> bool:
        return ordering_key in self._failing

    def failed(self, ordering_key: OrderingKey, error: TowpathError) -> None:
        """Count a failed attempt."""
        now_s = self._clock.monotonic_s()
        known = self._failing.pop(ordering_key, None)
        attempts = 0 if known is None else known.attempts
        delay_s = _BACKOFF.delay_s(attempts)
        # A Retry-After of zero must not repeat the request without a pause.
        if isinstance(error, BusyError) and error.retry_after_s:
            delay_s = error.retry_after_s
        since_s = now_s if known is None else known.since_s
        self._failing[ordering_key] = _FailingKey(
            since_s, attempts + 1, now_s + delay_s, str(error)
        )
        if len(self._failing) > _MAX_FAILING_KEYS:
            del self._failing[next(iter(self._failing))]

    def forget(self, ordering_key: OrderingKey) -> None:
        """Remove a key: the receiver has given a verdict."""
        self._failing.pop(ordering_key, None)

    def wait_s(self, ordering_key: OrderingKey) -> float:
        """Return the time until a key's next attempt."""
        state = self._failing.get(ordering_key)
        if state is None:
            return 0.0
        return max(0.0, state.due_s - self._clock.monotonic_s())

    def reason(self, ordering_key: OrderingKey) -> str:
        """Return the receiver's last error for a key."""
        return self._failing[ordering_key].reason

    def reason_to_give_up(self, ordering_key: OrderingKey) -> str:
        """Return the reason to give up on a key; empty while it is still retried."""
        state = self._failing[ordering_key]
        tried_s = self._clock.monotonic_s() - state.since_s
        if state.attempts < self._give_up_attempts or tried_s < self._give_up_after_s:
            return ""
        reason = (
            f"{state.reason}; gave up after {state.attempts} attempts in "
            f"{tried_s:.0f} s, while the receiver accepts other keys"
        )
        _log.warning("webhook change abandoned: it is a dead letter", reason=reason)
        return reason


class HealthProbe:
    """The last request that a receiver accepted, which is sent again as a probe."""

    def __init__(self, file: Path | None) -> None:
        """Store the file's path; without a file, a restart loses the request."""
        self._file = file
        self._last_request: Request | None = None
        self._is_saved = True

    def load(self) -> None:
        """Read the request from the file."""
        if self._file is None or self._last_request is not None:
            return
        try:
            stored = orjson.loads(self._file.read_bytes())
            self._last_request = Request(stored["id"], {}, stored["body"].encode())
        except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError):
            return

    def record(self, request: Request | None) -> None:
        """Remember an accepted request."""
        if request is not None:
            self._last_request, self._is_saved = request, False

    def save(self) -> None:
        """Write the request to the file, for the next process."""
        if self._file is None or self._last_request is None or self._is_saved:
            return
        stored = {
            "id": self._last_request.id,
            "body": self._last_request.body.decode(),
        }
        replace_file(self._file, orjson.dumps(stored))
        self._is_saved = True

    def is_receiver_healthy(self, client: WebhookClient) -> bool:
        """Return whether the receiver accepts its last accepted request again."""
        if self._last_request is None:
            return False
        try:
            return client.post(self._last_request).outcome in {
                ReceiverOutcome.ACCEPTED,
                ReceiverOutcome.KNOWN,
            }
        except TowpathError:
            return False
