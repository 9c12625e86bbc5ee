"""
The bookkeeping of samples: orders placed, and when each target first showed them.

Pure: times come in as monotonic seconds. A sample begins when the answer of the
checkout arrived, so the commit lies before it; it ends when the target's own API
returned the order. A sample that was not seen in time is *lost*, and counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from towpath.loadtests.percentile import Latency

# Beyond the slowest target's worst case; what takes longer is reported as lost.
LOST_AFTER_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class SinkReport:
    """One target: its latencies, the samples still awaited and those lost."""

    latency: Latency
    awaited: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReport:
    """
    All targets by name.

    Attributes:
        placed: Orders that the sampler placed.
        sinks: What was seen in each target.
        errors: Checkouts and polls that failed, by reason.
        finished: Nothing is awaited any more, or not long enough.
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

    def await_order(self, order_id: int, committed_at_s: float) -> None:
        """Begin a sample."""
        self._awaited[order_id] = committed_at_s

    def awaited(self) -> tuple[int, ...]:
        """Return the orders that the target has not shown yet, oldest first."""
        return tuple(self._awaited)

    def seen(self, order_ids: Iterable[int], at_s: float) -> None:
        """End the samples of these orders; others are not looked at."""
        for order_id in order_ids:
            committed_at_s = self._awaited.pop(order_id, None)
            if committed_at_s is not None:
                self._seen_ms.append((at_s - committed_at_s) * 1000)

    def expire(self, now_s: float) -> None:
        """Count samples as lost that are too old to wait for."""
        for order_id in self.awaited():
            if now_s - self._awaited[order_id] > LOST_AFTER_S:
                del self._awaited[order_id]
                self._lost += 1

    def report(self) -> SinkReport:
        """Summarise."""
        return SinkReport(Latency.of(self._seen_ms), len(self._awaited), self._lost)
