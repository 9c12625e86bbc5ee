"""
The schedule of an open loop: when the next arrival is due, and how late it began.

Due moments follow from the rate alone, never from an answer: an arrival that begins
late moves none behind it. Pure: times come in as monotonic seconds.
"""

from typing import Final

# A scheduler of greenlets is a few milliseconds late at its best.
TOLERATED_S: Final = 0.05


class Schedule:
    """The due moments of one stream of arrivals."""

    def __init__(self, first_due_s: float) -> None:
        self._due_s = first_due_s

    def lateness_s(self, now_s: float) -> float:
        """Return how long the present arrival has been due; 0 if nobody noticed."""
        late_s = now_s - self._due_s
        return late_s if late_s > TOLERATED_S else 0.0

    def next_in_s(self, now_s: float, interval_s: float) -> float:
        """Go on to the next arrival; return how long it is until then."""
        self._due_s += interval_s
        return max(0.0, self._due_s - now_s)
