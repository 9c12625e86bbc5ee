"""
Time as a port: what loops need of it, and the one edge that asks the system.

Whoever needs the time or has to wait takes a ``Clock``; only ``SystemClock`` knows
where time comes from, so that tests can turn it themselves.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and waiting."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""

    def wait(self, delay_s: float) -> None:
        """Let ``delay_s`` seconds pass."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        return datetime.now(tz=UTC)  # noqa: TID251 - the edge the ban points to

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, delay_s: float) -> None:
        time.sleep(delay_s)  # noqa: TID251 - the edge the ban points to


class Deadline:
    """One bound that several steps share: the sum is bounded, not each."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._ends_at_s = clock.monotonic_s() + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._ends_at_s - self._clock.monotonic_s())

    def passed(self) -> bool:
        """Tell whether nothing is left."""
        return self.remaining_s() == 0.0


class Patience:
    """A bound on standing still: it begins anew whenever less is left to do."""

    def __init__(self, clock: Clock, stuck_after_s: float) -> None:
        self._clock = clock
        self._stuck_after_s = stuck_after_s
        self._deadline = Deadline(clock, stuck_after_s)
        self._least: int | None = None

    def is_over(self, left: int) -> bool:
        """Take how much is left now; tell whether it has been no less for too long."""
        if self._least is None or left < self._least:
            self._least = left
            self._deadline = Deadline(self._clock, self._stuck_after_s)
        return self._deadline.passed()
