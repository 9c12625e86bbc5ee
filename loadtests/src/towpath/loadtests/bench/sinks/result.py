"""
The results of the sink cases, as JSON and as tables. Does no I/O.

::

    {"checkout": {"name": "checkout", "rate_per_s": 20.0, "reached_per_s": ...,
        "cache_p50_ms": ..., "cache_p99_ms": ..., "search_p99_ms": ...,
        "warehouse_p99_ms": ..., "lost": 0, "is_met": true, "highest_met_rate": 20.0,
        "budgets_ms": {"cache": 1000.0, ...}, "rates": [{...}, ...]},
     "catch_up": {"name": "catch_up", "rows": 2000000, "cache_rows_per_s": ...,
        "search_rows_per_s": ..., "warehouse_rows_per_s": ...,
        "cache_ratio_to_hset": ..., "search_ratio_to_bulk": ...,
        "warehouse_ratio_to_merge": ..., "memory_bytes": ...,
        "systems": {"cache": {"rows_per_s": ..., "from_start_per_s": ...,
            "driver_cpu_s": ..., "engine_peak_rss_bytes": ..., ...}, "bulk": {...}}}}

The figures of ``checkout`` are those of the highest rate that met all three budgets, or
of the lowest rate if none did. A rate that was not reached, or had a lost sample, a
failure or a restart, counts as not met. ``memory_bytes`` is the memory of the largest
driver: the sum of the peak resident sets of its Python process and its engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.figures import Figures, Spread
from towpath.loadtests.bench.result import (
    MEBIBYTE,
    ROUND,
    BenchResult,
    Column,
    figures_table,
    rounded,
    unverified,
    verified,
)

CHECKOUT: Final = "checkout"
CATCH_UP: Final = "catch_up"
CLUSTER: Final = "cluster"

CACHE: Final = "cache"
SEARCH: Final = "search"
WAREHOUSE: Final = "warehouse"
SINKS: Final = (CACHE, SEARCH, WAREHOUSE)
# A sink that decodes and folds, but writes nothing.
NULL: Final = "null"

ROWS: Final = 2_000_000

# From the commit to the first read that finds it, at the 99th percentile.
BUDGETS_MS: Final[Mapping[str, float]] = MappingProxyType(
    {CACHE: 1_000.0, SEARCH: 2_000.0, WAREHOUSE: 30_000.0}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """
    The addresses and processes of the three targets.

    Attributes:
        redis_url: The cache's server, which must be empty.
        opensearch_url: The index's server.
        catalog_dsn: The database of the warehouse's catalog.
        pids: The server's process by sink; the warehouse has no separate server.
        merge: The command of the warehouse's baseline (one MERGE) without its
            arguments: configuration, sink and path of the report.
    """

    redis_url: str
    opensearch_url: str
    catalog_dsn: str
    pids: Mapping[str, int]
    merge: tuple[str, ...]


RATE: Final = "rows_per_s"
# The baseline of each sink; the ratio is named after it.
BASELINE_OF: Final[Mapping[str, str]] = MappingProxyType(
    {CACHE: "hset", SEARCH: "bulk", WAREHOUSE: "merge"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    The lag that readers of one sink saw.

    Attributes:
        samples: The number of commits that were found.
        lost: The number of commits that were not found in time.
    """

    samples: int
    lost: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    def is_within(self, budget_ms: float) -> bool:
        """Return whether no commit was lost, and the p99 is within the budget."""
        return self.lost == 0 and self.p99_ms is not None and self.p99_ms <= budget_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """
    One rate of checkouts.

    Attributes:
        rate_per_s: The requested rate.
        reached_per_s: Successful checkouts per second, by load and sampler together.
        failures: Requests that failed or were not sent, and failed reads.
        restarts: Restarts of the demo's processes.
        readings: The lag that readers saw, by sink.
        cpu: CPU time per second, by process.
    """

    rate_per_s: float
    reached_per_s: float
    failures: int
    restarts: int
    readings: Mapping[str, Reading]
    cpu: Mapping[str, float]

    @property
    def is_met(self) -> bool:
        """Whether all budgets were met at the requested rate."""
        is_clean = not self.failures and not self.restarts
        return is_clean and self.is_reached and all(map(self.is_within, BUDGETS_MS))

    @property
    def is_reached(self) -> bool:
        """Whether the shop reached the requested rate."""
        return self.reached_per_s >= self.rate_per_s

    def is_within(self, sink: str) -> bool:
        """Return whether a sink's budget was met."""
        reading = self.readings.get(sink)
        return reading is not None and reading.is_within(BUDGETS_MS[sink])

    def as_json(self) -> dict[str, Any]:
        """Return the rate as a JSON object."""
        found: dict[str, Any] = {
            "rate_per_s": self.rate_per_s,
            "reached_per_s": round(self.reached_per_s, ROUND),
        }
        for name, reading in self.readings.items():
            for share in ("p50_ms", "p95_ms", "p99_ms", "samples"):
                found[f"{name}_{share}"] = getattr(reading, share)
        return {
            **found,
            "lost": sum(reading.lost for reading in self.readings.values()),
            "failures": self.failures,
            "restarts": self.restarts,
            "cpu": {name: round(share, ROUND) for name, share in self.cpu.items()},
            "is_met": self.is_met,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The case ``checkout``: at least one rate."""

    rates: tuple[Rate, ...]

    @property
    def name(self) -> str:
        """The case's name in the result."""
        return CHECKOUT

    @property
    def highest_met(self) -> Rate | None:
        """The highest rate that met all budgets, if any did."""
        met = (rate for rate in self.rates if rate.is_met)
        return max(met, key=_requested, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        highest = self.highest_met
        return {
            "name": self.name,
            **(highest or min(self.rates, key=_requested)).as_json(),
            "highest_met_rate": highest.rate_per_s if highest else None,
            "budgets_ms": dict(BUDGETS_MS),
            "rates": [rate.as_json() for rate in self.rates],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """The case ``catch_up``: figures by sink and by baseline."""

    rows: int
    systems: Mapping[str, Figures]

    @property
    def name(self) -> str:
        """The case's name in the result."""
        return CATCH_UP

    def ratio(self, sink: str) -> float | None:
        """Return the ratio of a sink's rate to its baseline's, if both are known."""
        ours = self.systems.get(sink, {}).get(RATE)
        theirs = self.systems.get(BASELINE_OF[sink], {}).get(RATE)
        return ours / theirs if ours and theirs else None

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        held = (figures.get("memory_bytes") for figures in self.systems.values())
        rates = {name: self.systems.get(name, {}).get(RATE) for name in SINKS}
        return {
            "name": self.name,
            "rows": self.rows,
            **{f"{name}_{RATE}": rounded(rate) for name, rate in rates.items()},
            **{
                f"{s}_ratio_to_{o}": rounded(self.ratio(s))
                for s, o in BASELINE_OF.items()
            },
            "memory_bytes": max((one for one in held if one), default=None),
            "systems": _rounded(self.systems),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The case ``cluster``: figures by sink and system (``cache_two_workers``)."""

    rows: int
    systems: Mapping[str, Figures]

    @property
    def name(self) -> str:
        """The case's name in the result."""
        return CLUSTER

    @property
    def sinks(self) -> tuple[str, ...]:
        """The measured sinks."""
        ending = "_driver"
        names = (name for name in self.systems if name.endswith(ending))
        return tuple(name.removesuffix(ending) for name in names)

    def cpu_ratio(self, sink: str) -> float | None:
        """Return the ratio of one worker's CPU time per row to the driver's."""
        return self._ratio(sink, "one_worker", "driver", "cpu_us_per_row")

    def speed_up(self, sink: str) -> float | None:
        """Return the ratio of two workers' rate to one worker's."""
        return self._ratio(sink, "two_workers", "one_worker", RATE)

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        return {
            "name": self.name,
            "rows": self.rows,
            **{f"{s}_cpu_ratio": rounded(self.cpu_ratio(s)) for s in self.sinks},
            **{f"{s}_speed_up": rounded(self.speed_up(s)) for s in self.sinks},
            "systems": _rounded(self.systems),
        }

    def _ratio(self, sink: str, ours: str, theirs: str, figure: str) -> float | None:
        one = self.systems.get(f"{sink}_{ours}", {}).get(figure)
        other = self.systems.get(f"{sink}_{theirs}", {}).get(figure)
        return one / other if one and other else None


SinkCase = Checkout | CatchUp | Cluster


def _rounded(systems: Mapping[str, Figures]) -> dict[str, dict[str, float]]:
    """Return the figures of each system as results show them."""
    return {
        name: {figure: round(value, ROUND) for figure, value in one.items()}
        for name, one in systems.items()
    }


def _requested(rate: Rate) -> float:
    return rate.rate_per_s


_SPEED: Final = (
    Column("rows_per_s", "rows/s", "{:,.0f}"),
    Column("from_start_per_s", "from start", "{:,.0f}"),
    Column("first_batch_s", "first batch s", "{:.1f}"),
    Column("batches", "batches", "{:,.0f}"),
    Column("retries", "retries", "{:,.0f}"),
    Column("memory_bytes", "memory MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("cpu_us_per_row", "CPU us/row", "{:.1f}"),
    Column("driver_cpu_s", "Python CPU s", "{:.1f}"),
    Column("driver_peak_rss_bytes", "Python RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("engine_cpu_s", "engine CPU s", "{:.1f}"),
    Column("engine_peak_rss_bytes", "engine RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("target_cpu_s", "target CPU s", "{:.1f}"),
)
_BASELINE_TITLES: Final = {
    "hset": "plain HSET, the ceiling",
    "bulk": "the client's bulk load",
    "merge": "one MERGE",
}


def draw(result: BenchResult[SinkCase]) -> RenderableType:
    """Draw the closing lines of a benchmark whose cases have been printed."""
    if not result.verified:
        return unverified(result.findings)
    what = "every sink equals the source, key by key and column by column"
    return Group(Text(), *verified(what, result.machine))


def draw_case(case: SinkCase) -> RenderableType:
    """Draw one case."""
    if isinstance(case, Checkout):
        return Group(Text(), *_checkout(case))
    drawn = _catch_up(case) if isinstance(case, CatchUp) else _cluster(case)
    return Group(Text(), *drawn)


def _checkout(case: Checkout) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(Text("commit to first read", style="bold"), no_wrap=True)
    for title in ("budget ms", "p50 ms", "p95 ms", "p99 ms", "samples", "lost"):
        table.add_column(title, justify="right", no_wrap=True)
    for rate in case.rates:
        what = f"{rate.rate_per_s:g} checkouts/s: {rate.reached_per_s:.1f} reached"
        outcome = "met" if rate.is_met else "not met"
        style = "green" if rate.is_met else "red"
        table.add_row(Text.assemble((f"{what}, ", "dim"), (outcome, style)))
        for name, reading in rate.readings.items():
            table.add_row(f"  {name}", f"{BUDGETS_MS[name]:,.0f}", *_cells(reading))
    highest = case.highest_met
    met = "none" if highest is None else f"{highest.rate_per_s:g} checkouts/s"
    return [
        table,
        Text(f"highest rate that met all budgets: {met}", style="bold"),
        *(_cpu(rate) for rate in case.rates),
    ]


def _cells(reading: Reading) -> tuple[str, ...]:
    times_ms = (reading.p50_ms, reading.p95_ms, reading.p99_ms)
    shown = ("-" if one is None else f"{one:,.0f}" for one in times_ms)
    return (*shown, f"{reading.samples:,}", f"{reading.lost:,}")


def _cpu(rate: Rate) -> Text:
    shares = ", ".join(f"{name} {share:.2f}" for name, share in rate.cpu.items())
    return Text(f"cores at {rate.rate_per_s:g}/s: {shares}", style="dim")


def _catch_up(case: CatchUp) -> list[RenderableType]:
    title = f"backlog of {case.rows:,} rows"
    blocks: list[RenderableType] = [figures_table(title, _once(case.systems), _SPEED)]
    for sink, other in BASELINE_OF.items():
        found = case.ratio(sink)
        if found is not None:
            line = f"{sink} / {_BASELINE_TITLES[other]}, rows/s: {found:.2f}"
            blocks.append(Text(line, style="bold"))
    return blocks


_SPREAD: Final = (
    Column("rows_per_s", "rows/s", "{:,.0f}"),
    Column("cpu_us_per_row", "CPU us/row", "{:.1f}"),
    Column("left", "left", "{:,.0f}"),
    Column("driver_cpu_s", "driver CPU s", "{:.1f}"),
    Column("engine_cpu_s", "engine CPU s", "{:.1f}"),
    Column("executors_cpu_s", "executors CPU s", "{:.1f}"),
    Column("target_cpu_s", "target CPU s", "{:.1f}"),
    Column("broker_cpu_s", "broker CPU s", "{:.1f}"),
)


def _cluster(case: Cluster) -> list[RenderableType]:
    title = f"backlog of {case.rows:,} rows"
    blocks: list[RenderableType] = [figures_table(title, _once(case.systems), _SPREAD)]
    for sink in case.sinks:
        cpu, speed_up = case.cpu_ratio(sink), case.speed_up(sink)
        if cpu is not None and speed_up is not None:
            line = f"{sink}: CPU of one worker / driver {cpu:.2f}; "
            blocks.append(
                Text(f"{line}rows/s of two workers / one {speed_up:.2f}", style="bold")
            )
    return blocks


def _once(systems: Mapping[str, Figures]) -> dict[str, dict[str, Spread]]:
    """Return figures of one round as spreads, for tables of several rounds."""
    return {
        name: {figure: Spread(value, value, value) for figure, value in found.items()}
        for name, found in systems.items()
    }
