"""Waiting for a condition: never for a while, always with a deadline."""

from collections.abc import Callable

import pytest

from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
TIMEOUT_S = 60.0


def until(
    holds: Callable[[], bool],
    what: str,
    *,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = 0.05,
) -> None:
    """Wait for a condition, looking again after each pause."""
    deadline = Deadline(CLOCK, timeout_s)
    while not holds():
        if deadline.passed():
            pytest.fail(f"waited {timeout_s:g} s in vain until {what}")
        CLOCK.wait(pause_s)
