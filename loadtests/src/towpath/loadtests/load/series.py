"""
A run over time: the growth of Locust's statistics between samples.

Locust keeps totals, but a report needs rates and latencies over time. The totals are
sampled once a second. Each sample is kept as the difference from the previous one, and
the differences are summed over wider steps once the run has ended. A step without
requests has a rate of 0. A rate is computed over the time that the step's samples
cover: the last step is shorter than the others, and a sample may be late.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# A plot has at most this many steps, however long the run was.
_STEPS: Final = 40

Row = tuple[str, str]


class Totals(NamedTuple):
    """A row's totals in the statistics: requests, failures, and counts by time."""

    requests: int
    failures: int
    times_ms: Mapping[int, int]


class Growth(NamedTuple):
    """The growth of a row since the previous sample."""

    at_s: float
    row: Row
    requests: int
    failures: int
    times_ms: Mapping[int, int]


class Step(NamedTuple):
    """One step of a plot: a row's rate and percentiles."""

    at_s: float
    row: Row
    per_s: float
    failed_per_s: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


@dataclass(slots=True)
class Series:
    """The samples of one run."""

    _growths: list[Growth] = field(default_factory=list)
    _samples_s: list[float] = field(default_factory=list)
    _previous: dict[Row, Totals] = field(default_factory=dict)

    def add(self, at_s: float, rows: Mapping[Row, Totals]) -> None:
        """Add a sample of the totals; after a reset, the totals begin again at 0."""
        self._samples_s.append(at_s)
        for row, now in rows.items():
            before = self._previous.get(row, Totals(0, 0, {}))
            if now.requests < before.requests:
                before = Totals(0, 0, {})
            if now.requests > before.requests:
                self._growths.append(
                    Growth(
                        at_s=at_s,
                        row=row,
                        requests=now.requests - before.requests,
                        failures=max(0, now.failures - before.failures),
                        times_ms=Counter(now.times_ms) - Counter(before.times_ms),
                    )
                )
            self._previous[row] = Totals(now.requests, now.failures, dict(now.times_ms))

    def steps(self, end_s: float) -> list[Step]:
        """
        Sum the samples over the steps of the run, up to its end.

        Args:
            end_s: The end of the run; growth after it, of requests that were still in
                flight or reported late, counts as well.
        """
        end_s = max((end_s, *(one.at_s for one in self._growths)))
        width_s = step_width_s(end_s)
        covered_s: dict[int, float] = defaultdict(float)
        before_s = 0.0
        for sampled_s in self._samples_s:
            at_s = min(sampled_s, end_s)
            covered_s[_number(at_s, width_s)] += at_s - before_s
            before_s = at_s
        parts: dict[tuple[Row, int], list[Growth]] = defaultdict(list)
        for one in self._growths:
            parts[one.row, _number(one.at_s, width_s)].append(one)
        return [
            _step(row, (number + 1) * width_s, covered or width_s, parts[row, number])
            for row in sorted({one.row for one in self._growths})
            for number, covered in covered_s.items()
        ]


def _number(at_s: float, width_s: float) -> int:
    """Return the number of a sample's step; a step includes its end."""
    return max(0, math.ceil(at_s / width_s) - 1)


def step_width_s(duration_s: float) -> float:
    """Choose the width of a plot's steps, in whole seconds."""
    return max(1.0, math.ceil(duration_s / _STEPS))


def percentile(times_ms: Mapping[int, int], share: float) -> float | None:
    """Return the percentile for a share by nearest rank; None if there are no times."""
    wanted = math.ceil(share * sum(times_ms.values()))
    seen = 0
    for time_ms, count in sorted(times_ms.items()):
        seen += count
        if seen >= wanted:
            return float(time_ms)
    return None


def _step(row: Row, at_s: float, covered_s: float, growths: Iterable[Growth]) -> Step:
    requests = failures = 0
    times_ms: Counter[int] = Counter()
    for one in growths:
        requests += one.requests
        failures += one.failures
        times_ms.update(one.times_ms)
    p50, p95, p99 = (percentile(times_ms, share) for share in (0.50, 0.95, 0.99))
    rates = requests / covered_s, failures / covered_s
    return Step(at_s, row, *rates, p50, p95, p99)
