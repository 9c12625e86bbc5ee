"""
Waits for conditions, always with a deadline and never for a fixed time.

Parallel workers slow each other down, so deadlines and pytest's limits are then longer.
"""

import os
from collections.abc import Callable
from typing import Final

import pytest

from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
# With several workers, deadlines and the limits of tests are longer by this factor.
SLOWER: Final = 4
# The worker with a lower priority, by xdist's name, and its factor.
BACKGROUND: Final = "gw6"
SLOWER_IN_BACKGROUND: Final = 12


def stretched(timeout_s: float) -> float:
    """Return a deadline's length in this process; several workers make it longer."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # noqa: TID251 - set by xdist
    if worker is None:
        return timeout_s
    return timeout_s * (SLOWER_IN_BACKGROUND if worker == BACKGROUND else SLOWER)


TIMEOUT_S: Final = stretched(60.0)


def until(
    holds: Callable[[], bool],
    what: str | Callable[[], str],
    *,
    timeout_s: float = 60.0,
    pause_s: float = 0.05,
) -> None:
    """
    Wait for a condition, checking it after each pause.

    Args:
        holds: Returns whether the condition holds.
        what: The name of the condition, or a function that returns it after a timeout.
        timeout_s: The longest wait, before it is stretched.
        pause_s: The pause between two checks.
    """
    timeout_s = stretched(timeout_s)
    deadline = Deadline(CLOCK, timeout_s)
    while not holds():
        if deadline.passed():
            named = what if isinstance(what, str) else what()
            pytest.fail(f"timed out after {timeout_s:g} s, waiting until {named}")
        CLOCK.wait(pause_s)
