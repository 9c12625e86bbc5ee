"""
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

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import structlog

from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock
from towpath.schemas.failure import BusyError, TowpathError
from towpath.settings.sink import WebhookOptions
from towpath.sinks.progress import replace_file
from towpath.sinks.webhook.answer import Outcome
from towpath.sinks.webhook.client import Client
from towpath.sinks.webhook.payload import Request, Unit

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
            return client.post(self._last).outcome in {Outcome.TAKEN, Outcome.KNOWN}
        except TowpathError:
            return False
