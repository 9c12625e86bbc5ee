"""
The highest rate that the platform sustains: its verdict, its bounds, its result.

A rate is sustained if it was reached, no request or read failed, no sample was lost, no
part restarted, and no backlog rose over the measured time. Backlogs are counts: orders
whose saga has not ended, bytes of the log that the relay has not confirmed, records
that a sink has not applied. Each is sampled at an interval, and a straight line is
fitted to the samples. Its slope is compared with the rate at which the counted items
arrive: a part that falls behind by more than a twentieth of that rate cannot keep up.
Sinks work batch by batch, so a backlog is a sawtooth; a slope that the scatter explains
(up to twice its standard error) does not count as a rise. This module does no I/O. ::

    {"checkout": {"name": "checkout", "sustained_rate": 20.0, "rates": [
        {"rate_per_s": 20.0, "reached_per_s": ..., "rows_per_s": ...,
         "events_per_s": ..., "is_sustained": true, "failures": 0, "restarts": 0,
         "backlogs": {"saga": {"first": ..., "last": ..., "growth": ...}, ...},
         "saga_p50_ms": ..., "cache_p50_ms": ..., "cache_is_wanted": true, ...,
         "cpu": {"relay": ..., ...}, "cores": 2, "cores_used": ...,
         "others": ..., "bound": "..."}, ...]}}

``growth`` is the slope as a share of the incoming rate.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, pvariance
from types import MappingProxyType
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.result import ROUND, BenchResult, unverified, verified
from towpath.loadtests.bench.sinks.result import (
    BUDGETS_MS,
    CACHE,
    SEARCH,
    WAREHOUSE,
    Reading,
)
from towpath.loadtests.load.samples import Latency

CHECKOUT: Final = "checkout"
ROWS: Final = "rows"

# Names of backlogs; those of sinks have the sinks' names.
SAGA: Final = "saga"
RELAY: Final = "relay"

# A rise below this share of the incoming amount is worked off between two peaks.
RISING_SHARE: Final = 0.05
# The scatter of the samples explains a slope of up to this many standard errors.
_ERRORS: Final = 2
# A line through two samples has no scatter.
_LINE: Final = 2
# The rest may be arrivals that were counted after the end of the measured time.
_REACHED_SHARE: Final = 0.97
# Above this share of all cores, the machine itself is the bound.
_BUSY_SHARE: Final = 0.9
_NAMED_PARTS: Final = 3

# Budgets from the commit to the first read that finds it, at the 99th percentile. These
# must be met at every rate, BUDGETS_MS only where the machine sustains the rate.
REQUIRED_MS: Final[Mapping[str, float]] = MappingProxyType(
    {CACHE: 10_000.0, SEARCH: 60_000.0, WAREHOUSE: 3_600_000.0}
)


@dataclass(frozen=True, slots=True)
class BacklogTrend:
    """
    A count over time, and the rate at which it would grow if nothing reduced it.

    Attributes:
        samples: Seconds and counts, at least two of them.
        incoming_per_s: The amount that arrived per second, in the same unit.
    """

    samples: tuple[tuple[float, float], ...]
    incoming_per_s: float

    @property
    def slope(self) -> float:
        """The slope of the least-squares line, in units per second."""
        times = [at_s for at_s, _ in self.samples]
        return linear_regression(times, [one for _, one in self.samples]).slope

    @property
    def error(self) -> float:
        """The standard error of the slope, in units per second."""
        times = [at_s for at_s, _ in self.samples]
        amounts = [one for _, one in self.samples]
        free = len(times) - _LINE
        if not free:
            return 0.0
        slope, start = linear_regression(times, amounts)
        misses = (one - start - slope * at_s for at_s, one in self.samples)
        scatter = sum(miss * miss for miss in misses) / free
        return math.sqrt(scatter / (pvariance(times) * len(times)))

    @property
    def growth(self) -> float:
        """The slope as a share of the incoming rate; 0 if nothing arrived."""
        return self.slope / self.incoming_per_s if self.incoming_per_s else 0.0

    @property
    def is_rising(self) -> bool:
        """Whether the part cannot keep up."""
        least = self.slope - _ERRORS * self.error
        return least > RISING_SHARE * self.incoming_per_s

    def as_json(self) -> dict[str, Any]:
        """Return the backlog as a JSON object."""
        return {
            "first": self.samples[0][1],
            "last": self.samples[-1][1],
            "growth": round(self.growth, ROUND),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """
    The machine's CPU time, in cores.

    Attributes:
        count: The cores of the machine.
        used: The time of all processes, including those outside the platform.
        parts: The time of each part with its child processes.
    """

    count: int
    used: float
    parts: Mapping[str, float]

    @property
    def others(self) -> float:
        """The time of processes outside the parts, such as those of other users."""
        return max(0.0, self.used - sum(self.parts.values()))

    def largest(self) -> list[tuple[str, float]]:
        """Return the parts that used the most CPU time, and their time."""
        return sorted(self.parts.items(), key=lambda one: -one[1])[:_NAMED_PARTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRate:
    """
    One rate that was requested for the measured time, sustained or not.

    Attributes:
        rate_per_s: The requested rate, of checkouts or of row writes.
        reached_per_s: The successful checkouts, or committed rows, per second.
        rows_per_s: Records of row changes that the relay published per second.
        events_per_s: Records of events that the relay published per second.
        failures: Requests that failed or were not sent, and failed reads.
        restarts: Restarts of parts.
        readings: The lag that readers saw, by sink.
        saga: The time from a checkout to the end of its saga.
        backlogs: Every backlog by its name.
        cores: The machine's CPU time.
    """

    rate_per_s: float
    reached_per_s: float
    rows_per_s: float
    events_per_s: float
    failures: int
    restarts: int
    readings: Mapping[str, Reading]
    saga: Latency
    backlogs: Mapping[str, BacklogTrend]
    cores: Cores

    @property
    def is_sustained(self) -> bool:
        """Whether everything kept up with the requested rate."""
        return not list(self.reasons())

    def reasons(self) -> Iterator[str]:
        """Yield a clause for each reason why the rate was not sustained."""
        if self.reached_per_s < self.rate_per_s * _REACHED_SHARE:
            yield f"only {self.reached_per_s:.1f}/s was reached"
        if self.failures:
            noun = "request or read" if self.failures == 1 else "requests or reads"
            yield f"{self.failures:,} {noun} failed"
        if self.restarts:
            yield f"restarts of parts: {self.restarts}"
        for name, backlog in self.backlogs.items():
            if backlog.is_rising:
                yield f"the backlog of {name} rose by {backlog.growth:.0%} of its input"
        lost = sum(reading.lost for reading in self.readings.values())
        if lost:
            yield "1 sample was lost" if lost == 1 else f"{lost:,} samples were lost"

    def bound(self) -> str:
        """Describe what bounds the rate, or what would bound a higher rate first."""
        cores = self.cores
        named = ", ".join(f"{name} {share:.2f}" for name, share in cores.largest())
        used = f"{cores.used:.2f} of {cores.count} cores used"
        if cores.used >= cores.count * _BUSY_SHARE:
            others = f"; others on the machine {cores.others:.2f}"
            return f"the CPU: {used}, most of them by {named}{others}"
        rising = [name for name, one in self.backlogs.items() if one.is_rising]
        if rising:
            return f"{' and '.join(rising)}, with {used}: {named}"
        return f"nothing yet: {used}, most of them by {named}"

    def as_json(self) -> dict[str, Any]:
        """Return the rate as a JSON object."""
        found: dict[str, Any] = {}
        for name, reading in self.readings.items():
            for share in ("p50_ms", "p95_ms", "p99_ms", "samples", "lost"):
                found[f"{name}_{share}"] = getattr(reading, share)
            found[f"{name}_is_required"] = reading.is_within(REQUIRED_MS[name])
            found[f"{name}_is_wanted"] = reading.is_within(BUDGETS_MS[name])
        return {
            "rate_per_s": self.rate_per_s,
            "reached_per_s": round(self.reached_per_s, ROUND),
            "rows_per_s": round(self.rows_per_s, ROUND),
            "events_per_s": round(self.events_per_s, ROUND),
            "is_sustained": self.is_sustained,
            "reasons": list(self.reasons()),
            "failures": self.failures,
            "restarts": self.restarts,
            "backlogs": {name: one.as_json() for name, one in self.backlogs.items()},
            "saga_samples": self.saga.count,
            "saga_p50_ms": self.saga.p50_ms,
            "saga_p95_ms": self.saga.p95_ms,
            **found,
            "cpu": {n: round(share, ROUND) for n, share in self.cores.parts.items()},
            "cores": self.cores.count,
            "cores_used": round(self.cores.used, ROUND),
            "others": round(self.cores.others, ROUND),
            "bound": self.bound(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedCase:
    """The rates of a case in the order in which they ran; at least one."""

    name: str
    rates: tuple[SustainedRate, ...]

    @property
    def highest(self) -> SustainedRate | None:
        """The highest rate that was sustained, if any was."""
        sustained = (rate for rate in self.rates if rate.is_sustained)
        return max(sustained, key=_requested, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        highest = self.highest
        return {
            "name": self.name,
            "sustained_rate": highest.rate_per_s if highest else None,
            "sustained_rows_per_s": round(highest.rows_per_s, ROUND)
            if highest
            else None,
            "required_ms": dict(REQUIRED_MS),
            "wanted_ms": dict(BUDGETS_MS),
            "rates": [rate.as_json() for rate in self.rates],
        }


def next_rate(
    found: Sequence[SustainedRate], rates: Sequence[float], refine: int
) -> float | None:
    """
    Return the next rate to measure.

    It is one step up, or, once a rate has failed, midway between the highest sustained
    and the lowest failed rate.

    Args:
        found: The rates that have been measured, in order.
        rates: The steps, in ascending order.
        refine: How many rates to measure between a sustained one and the next step.

    Returns:
        The rate; None if the search has ended.
    """
    failed = [one.rate_per_s for one in found if not one.is_sustained]
    if not failed:
        left = [rate for rate in rates if not found or rate > found[-1].rate_per_s]
        return left[0] if left else None
    sustained = [one.rate_per_s for one in found if one.is_sustained]
    steps = sum(rate not in rates for rate in (*failed, *sustained))
    if not sustained or steps >= refine:
        return None
    return (max(sustained) + min(failed)) / 2


def _requested(rate: SustainedRate) -> float:
    return rate.rate_per_s


def draw(result: BenchResult[SustainedCase]) -> RenderableType:
    """Draw the closing lines of a benchmark whose rates have been printed."""
    if not result.verified:
        return unverified(result.findings)
    what = "every sink equals the source, key by key and column by column"
    lines: list[RenderableType] = [Text()]
    for case in result.cases:
        if case.name == CHECKOUT:
            what += "; money, stock and parcels agree in all stores"
        highest, unit = case.highest, UNITS[case.name]
        rows = f", {highest.rows_per_s:,.0f} row changes/s" if highest else ""
        shown = f"{highest.rate_per_s:g} {unit}" if highest else "none"
        lines.append(Text(f"highest sustained rate: {shown}{rows}", style="bold"))
    return Group(*lines, *verified(what, result.machine))


UNITS: Final = {CHECKOUT: "checkouts/s", ROWS: "row writes/s"}


def draw_rate(rate: SustainedRate, unit: str) -> RenderableType:
    """Draw one rate."""
    outcome = "sustained" if rate.is_sustained else "not sustained"
    style = "green" if rate.is_sustained else "red"
    title = (
        f"{rate.rate_per_s:g} {unit}: {rate.reached_per_s:.1f} reached, "
        f"{rate.rows_per_s:,.0f} row changes/s, {rate.events_per_s:,.0f} events/s, "
    )
    blocks: list[RenderableType] = [Text(), Text.assemble(title, (outcome, style))]
    blocks += [Text(f"  {reason}", style="red") for reason in rate.reasons()]
    if rate.saga.count:
        saga = rate.saga
        times = f"p50 {saga.p50_ms:,.0f} ms, p95 {saga.p95_ms:,.0f} ms"
        blocks.append(Text(f"  checkout to settled: {times}, {saga.count} orders"))
    shares = ", ".join(f"{n} {one:.2f}" for n, one in rate.cores.parts.items())
    cores = f"  cores: {shares}, others {rate.cores.others:.2f}"
    bound = Text(f"  bound: {rate.bound()}", style="bold")
    return Group(*blocks, _lags(rate), _backlogs(rate), Text(cores, style="dim"), bound)


def _lags(rate: SustainedRate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    titles = ("p50 ms", "p95 ms", "p99 ms", "samples", "lost", "required", "wanted")
    for title in ("  commit to first read", *titles):
        table.add_column(title, justify="left" if title[0] == " " else "right")
    for name, reading in rate.readings.items():
        times = (reading.p50_ms, reading.p95_ms, reading.p99_ms)
        table.add_row(
            f"  {name}",
            *("-" if one is None else f"{one:,.0f}" for one in times),
            f"{reading.samples:,}",
            f"{reading.lost:,}",
            *(
                "met" if reading.is_within(budgets[name]) else "not met"
                for budgets in (REQUIRED_MS, BUDGETS_MS)
            ),
        )
    return table


def _backlogs(rate: SustainedRate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("  backlog", "first", "last", "growth"):
        table.add_column(title, justify="left" if title[0] == " " else "right")
    for name, one in rate.backlogs.items():
        first, last = one.samples[0][1], one.samples[-1][1]
        growth = f"{one.growth:+.1%}"
        table.add_row(f"  {name}", f"{first:,.0f}", f"{last:,.0f}", growth)
    return table
