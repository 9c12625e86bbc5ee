"""
Attempt after attempt: what may pass is tried again, anything else ends the process.

Each attempt begins from what the log and the state topic hold, with everything made
anew, so that no failure leaves half of itself behind.
"""

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import Disposition, TowpathError

_LOG = structlog.get_logger("towpath.relay")

# An attempt that lasted this long was well: the next failure begins a new row.
_WELL_S: Final = 10.0


class Sleeper(Protocol):
    """Something to wait on that can be woken."""

    def wait(self, timeout_s: float) -> None:
        """Wait until woken, or the time is over."""


class Attempts:
    """Runs attempts until one ends well or for good."""

    def __init__(
        self,
        clock: Clock,
        sleeper: Sleeper,
        is_stopping: Callable[[], bool],
        backoff: Backoff | None = None,
    ) -> None:
        self._clock = clock
        self._sleeper = sleeper
        self._is_stopping = is_stopping
        self._backoff = backoff or Backoff()

    def run(self, attempt: Callable[[], None]) -> None:
        """
        Run ``attempt`` until it returns, or the process is to stop.

        Raises:
            TowpathError: One that trying again does not cure.
        """
        failures = 0
        while not self._is_stopping():
            began_at_s = self._clock.monotonic_s()
            try:
                return attempt()
            except TowpathError as failure:
                if failure.disposition is not Disposition.RETRY:
                    raise
                was_well = self._clock.monotonic_s() - began_at_s > _WELL_S
                failures = 0 if was_well else failures + 1
                self._wait(failure, failures)
        return None

    def _wait(self, failure: TowpathError, failures: int) -> None:
        delay_s = self._backoff.delay_s(failures)
        _LOG.warning(
            "trying again",
            reason=str(failure),
            remedy=failure.remedy,
            delay_s=round(delay_s, 2),
            failures=failures,
        )
        deadline = Deadline(self._clock, delay_s)
        while not self._is_stopping() and not deadline.passed():
            self._sleeper.wait(deadline.remaining_s())
