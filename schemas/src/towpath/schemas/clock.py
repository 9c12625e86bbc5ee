"""
The clock port, and the only module that reads the system's clock.

Code that needs the time or has to wait takes a ``Clock``. Only ``SystemClock`` reads
the system's clock, so tests can advance time themselves. Delays between attempts come
from a ``Backoff``: no loop chooses its own.
"""

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class Clock(Protocol):
    """Wall time, monotonic time and waiting."""

    def now(self) -> datetime:
        """Return the wall time, timezone-aware and in UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never decrease."""

    def wait(self, delay_s: float) -> None:
        """Wait for ``delay_s`` seconds."""


class SystemClock:
    """The system's clock."""

    def now(self) -> datetime:
        return datetime.now(tz=UTC)  # noqa: TID251 - the Clock that the ban refers to

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, delay_s: float) -> None:
        time.sleep(delay_s)  # noqa: TID251 - the Clock that the ban refers to


# The resolution of Postgres's timestamps.
TICK: Final = timedelta(microseconds=1)


def time_after(before: datetime, at: datetime) -> datetime:
    """
    Return the time of a change that follows another one.

    The clock's time may be earlier than that of the previous change, because this
    change waited longer for the row or comes from a machine whose clock is behind.

    Args:
        before: The time of the previous change.
        at: The clock's time.
    """
    return max(at, before + TICK)


class Deadline:
    """One time limit shared by several steps: it bounds their sum."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._ends_at_s = clock.monotonic_s() + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._ends_at_s - self._clock.monotonic_s())

    def passed(self) -> bool:
        """Return whether no time is left."""
        return self.remaining_s() == 0.0


class StallTimeout:
    """A time limit that starts again whenever there is progress."""

    def __init__(self, clock: Clock, stuck_after_s: float) -> None:
        self._clock = clock
        self._stuck_after_s = stuck_after_s
        self._deadline = Deadline(clock, stuck_after_s)
        self._least: int | None = None

    def is_over(self, left: int) -> bool:
        """Record the remaining work; return whether it has stopped shrinking."""
        if self._least is None or left < self._least:
            self._least = left
            self._deadline = Deadline(self._clock, self._stuck_after_s)
        return self._deadline.passed()


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    Exponential backoff with jitter: each delay is between half the bound and the bound.

    Attributes:
        first_s: Upper bound of the first delay.
        ceiling_s: No delay is longer than this.
        factor: Growth of the bound from one attempt to the next.
    """

    first_s: float = 0.2
    ceiling_s: float = 10.0
    factor: float = 2.0

    def bound_s(self, attempt: int) -> float:
        """Return the longest delay before attempt ``attempt`` (0 is the first)."""
        # 64 doublings exceed any ceiling; over a thousand would overflow a float.
        return min(self.ceiling_s, self.first_s * self.factor ** min(attempt, 64))

    def delay_s(self, attempt: int) -> float:
        """Return a delay between half the bound and the bound."""
        bound_s = self.bound_s(attempt)
        return random.uniform(bound_s / 2, bound_s)  # noqa: S311 - jitter
