"""
Waiting for a condition: never for a while, always with a deadline.

Beside other workers everything takes longer: deadlines stretch as pytest's limits do.
"""

import os
from collections.abc import Callable
from typing import Final

import pytest

from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
# The limit of a test ends what hangs; it is as much longer for a worker of several.
SLOWER: Final = 3


def stretched(timeout_s: float) -> float:
    """Return a deadline's length for this process: longer in a worker of several."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ  # noqa: TID251 - set by xdist
    return SLOWER * timeout_s if is_worker else timeout_s


TIMEOUT_S: Final = stretched(60.0)


def until(
    holds: Callable[[], bool],
    what: str,
    *,
    timeout_s: float = 60.0,
    pause_s: float = 0.05,
) -> None:
    """Wait for a condition, looking again after each pause; the time stretches."""
    timeout_s = stretched(timeout_s)
    deadline = Deadline(CLOCK, timeout_s)
    while not holds():
        if deadline.passed():
            pytest.fail(f"waited {timeout_s:g} s in vain until {what}")
        CLOCK.wait(pause_s)
