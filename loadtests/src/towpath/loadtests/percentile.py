"""Percentiles of samples by nearest rank: every answer is a value that was seen."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, over ``count`` samples; ``None`` without samples."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, samples_ms: Iterable[float]) -> "Latency":
        """Summarise samples in milliseconds."""
        ordered = sorted(samples_ms)
        if not ordered:
            return cls(0, None, None, None)
        p50, p95, p99 = (round(at(ordered, share), 1) for share in (0.50, 0.95, 0.99))
        return cls(len(ordered), p50, p95, p99)


def at(ordered: Sequence[float], share: float) -> float:
    """
    Return the smallest sample that at least ``share`` of all do not exceed.

    Args:
        ordered: At least one sample, in ascending order.
        share: Above 0, at most 1.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
