"""
Lag samples: the time from a checkout to the first read in each target.

Times are monotonic seconds. A sample begins with the response to the checkout, which
follows the commit, and ends when the target's own API returns the order. A sample whose
order is not seen in time counts as *lost*. Percentiles are by nearest rank, so each is
one of the samples.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of ``count`` samples; ``None`` if there are no samples."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, samples_ms: Iterable[float]) -> "Latency":
        """Summarize samples in milliseconds."""
        ordered = sorted(samples_ms)
        if not ordered:
            return cls(0, None, None, None)
        p50, p95, p99 = (round(at(ordered, share), 1) for share in (0.50, 0.95, 0.99))
        return cls(len(ordered), p50, p95, p99)


def at(ordered: Sequence[float], share: float) -> float:
    """
    Return a percentile by nearest rank.

    Args:
        ordered: At least one sample, in ascending order.
        share: The percentile as a share: above 0, at most 1.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


# Above the slowest target's worst case; slower samples count as lost.
LOST_AFTER_S: Final = 120.0

# The warehouse commits every few seconds; two commits and a scan take far less time.
LAST_SAMPLES_TIMEOUT_S: Final = 60.0

# The sampler's commands, and the name of its orders in statistics.
START: Final = "start"
STOP: Final = "stop"
CHECKOUT: Final = "checkout (sample)"


@dataclass(frozen=True, slots=True)
class SinkReport:
    """The latencies of one target, and the numbers of its awaited and lost samples."""

    latency: Latency
    awaited: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReport:
    """
    The sampler's orders, samples and errors so far.

    Attributes:
        placed: Orders that the sampler placed.
        sinks: The samples of each target.
        errors: Checkouts and polls that failed, by reason.
        finished: Whether this is the last report: no more samples are awaited.
    """

    placed: int
    sinks: dict[str, SinkReport]
    errors: dict[str, int]
    finished: bool


@dataclass(slots=True)
class Samples:
    """The samples of one target."""

    _awaited: dict[int, float] = field(default_factory=dict)
    _seen_ms: list[float] = field(default_factory=list)
    _lost: int = 0

    def await_order(self, order_id: int, responded_at_s: float) -> None:
        """Begin the sample of an order."""
        self._awaited[order_id] = responded_at_s

    def awaited(self) -> tuple[int, ...]:
        """Return the orders that the target has not shown yet, oldest first."""
        return tuple(self._awaited)

    def seen(self, order_ids: Iterable[int], at_s: float) -> list[float]:
        """End the samples of these orders; return their times in milliseconds."""
        began = [self._awaited.pop(order_id, None) for order_id in order_ids]
        took_ms = [(at_s - one_s) * 1000 for one_s in began if one_s is not None]
        self._seen_ms += took_ms
        return took_ms

    def expire(self, now_s: float, after_s: float) -> int:
        """Count the samples older than ``after_s`` as lost; return their number."""
        too_old = [
            order_id
            for order_id, responded_at_s in self._awaited.items()
            if now_s - responded_at_s > after_s
        ]
        for order_id in too_old:
            del self._awaited[order_id]
        self._lost += len(too_old)
        return len(too_old)

    def report(self) -> SinkReport:
        """Summarize the samples."""
        return SinkReport(Latency.of(self._seen_ms), len(self._awaited), self._lost)
