"""
Latencies, and the one clock that they are measured by.

Commit times come from the source's clock. Were they compared with ours, a clock that
is off would make latencies negative or large. Every frame says when the server sent
it, so the smallest ``ours - theirs`` seen of late is what our clock is ahead (with the
quickest journey of a frame, far below a millisecond in one data centre). Latency is
then a difference on the source's clock.
"""

from bisect import bisect_left
from typing import Final

# Seconds. Narrow where the goals are (3, 10 and 40 ms), wide where only trouble is.
BOUNDS_S: Final = (
    0.001,
    0.002,
    0.003,
    0.005,
    0.01,
    0.02,
    0.04,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    60.0,
    600.0,
)

# For how long the smallest difference holds: long enough to meet a frame that did not
# wait in a queue, short enough that a corrected clock is followed within two of them.
_WINDOW_US: Final = 60_000_000


class Histogram:
    """Counts per bound, and a sum: written by one thread, read by any."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """
        Count a latency; below zero counts as zero.

        Args:
            seconds: How long it took.
            count: How many it stands for: of what is settled together, the oldest.
        """
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound as text with the count up to it, as Prometheus does."""
        told = []
        total = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), list(self.counts), strict=True):
            total += count
            told.append((str(bound), float(total)))
        return told


class SourceClock:
    """
    Estimates what our clock is ahead of the source's.

    ``ahead_us``: by how much, in microseconds; 0 as long as nothing is known.
    """

    __slots__ = ("_before_us", "_began_us", "_smallest_us", "ahead_us")

    def __init__(self) -> None:
        self.ahead_us = 0
        self._began_us = 0
        self._smallest_us: int | None = None
        self._before_us: int | None = None

    def observe(self, sent_us: int, now_us: int) -> None:
        """
        Take a frame's time of sending.

        Args:
            sent_us: By the source's clock, microseconds since 1970.
            now_us: By ours, when the frame was read.
        """
        ahead_us = now_us - sent_us
        if not 0 <= now_us - self._began_us < _WINDOW_US:
            self._before_us = self._smallest_us
            self._smallest_us = ahead_us
            self._began_us = now_us
        elif self._smallest_us is None or ahead_us < self._smallest_us:
            self._smallest_us = ahead_us
        before_us = ahead_us if self._before_us is None else self._before_us
        self.ahead_us = min(self._smallest_us, before_us)

    def since_s(self, committed_us: int, now_us: int) -> float:
        """Return the seconds from an instant of the source to one of ours."""
        return max(0, now_us - self.ahead_us - committed_us) / 1_000_000
