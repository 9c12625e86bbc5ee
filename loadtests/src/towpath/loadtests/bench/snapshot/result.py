"""
The result of the snapshot benchmark, as JSON and as tables. Does no I/O.

::

    {"loads": {"updates": {"systems": {"relay": {"rows_per_s":
                  {"min": ..., "median": ..., "max": ...}, ...}, ...},
               "ratio_to_debezium": ..., "ratio_to_stock": ..., ...},
               "quiet": {...}},
     "ratio_of": "rows_per_s", "ratio_to_debezium": ..., "ratio_to_stock": ...,
     "ratio_to_initial": ..., "share_of_copy": ..., "live_p99_ms": ...,
     "idle_p99_ms": ..., "live_ratio": ..., "peak_rss_bytes": ...,
     "cpu_us_per_row": ..., "paper": {"relay": {"rows": 50000000, ...}, ...}}

A ratio is the relay's median rows per second divided by the other system's.
``debezium`` is the faster of its two tuned incremental snapshots, with and without
watermarks in the source. The case's own figures are the worse ones of the two loads
(lower ratios, more memory and CPU time), so that a goal holds for both. The cost of a
table of 50 million rows (``paper``) is extrapolated from the smaller table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.context import DEBEZIUM_STOCK, DEBEZIUM_TUNED, RELAY
from towpath.loadtests.bench.figures import Figures, Spread, ratio, spread
from towpath.loadtests.bench.result import (
    MEBIBYTE,
    PROCESSES,
    BenchResult,
    Column,
    bars,
    figures_table,
    rounded,
    rounded_spreads,
    unverified,
    verified,
)
from towpath.loadtests.bench.snapshot.source import (
    CASE,
    COPY,
    DEBEZIUM_INITIAL,
    DEBEZIUM_READ_ONLY,
    UPDATES_PER_S,
    Load,
)

LARGE_TABLE_ROWS: Final = 50_000_000
_HOUR_S: Final = 3_600
_MICROSECONDS: Final = 1_000_000


class LargeTableCost(NamedTuple):
    """The elapsed time, CPU time and disk space for the large table."""

    rows: int
    hours: float
    cpu_hours: float
    topic_bytes: float

    def as_json(self) -> dict[str, float]:
        """Return the cost as a JSON object."""
        return {
            "rows": self.rows,
            "hours": round(self.hours, 4),
            "cpu_hours": round(self.cpu_hours, 4),
            "topic_bytes": round(self.topic_bytes),
        }


def large_table_cost(
    rows_per_s: float, cpu_us_per_row: float, bytes_per_row: float
) -> LargeTableCost:
    """Extrapolate the cost of the large table from the cost of a row."""
    return LargeTableCost(
        rows=LARGE_TABLE_ROWS,
        hours=LARGE_TABLE_ROWS / rows_per_s / _HOUR_S,
        cpu_hours=LARGE_TABLE_ROWS * cpu_us_per_row / _MICROSECONDS / _HOUR_S,
        topic_bytes=LARGE_TABLE_ROWS * bytes_per_row,
    )


RATE: Final = "rows_per_s"
# The ratios by name, each to the fastest of the listed systems.
RATIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "ratio_to_debezium": (DEBEZIUM_TUNED, DEBEZIUM_READ_ONLY),
    "ratio_to_stock": (DEBEZIUM_STOCK,),
    "ratio_to_initial": (DEBEZIUM_INITIAL,),
    "share_of_copy": (COPY,),
}

Spreads = dict[str, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillCase:
    """The figures of every round, by load and system."""

    loads: Mapping[Load, Mapping[str, tuple[Figures, ...]]]

    @property
    def name(self) -> str:
        """The case's name in the result."""
        return CASE

    def systems(self, load: Load) -> dict[str, Spreads]:
        """Return the minimum, median and maximum of every figure under a load."""
        return {name: spread(found) for name, found in self.loads[load].items()}

    def ratio(self, name: str, load: Load) -> float | None:
        """Return a ratio under one load; None if one side of it was not measured."""
        systems = self.systems(load)
        ours = systems.get(RELAY)
        found = [ratio(ours, systems.get(other), RATE) for other in RATIOS[name]]
        return min((one for one in found if one is not None), default=None)

    def ratios(self) -> dict[str, float | None]:
        """Return the lower ratio of the two loads, by name."""
        return {
            name: _picked(min, (self.ratio(name, load) for load in self.loads))
            for name in RATIOS
        }

    def figure(
        self, name: str, pick: Callable[..., float] = max, system: str = RELAY
    ) -> float | None:
        """Return a system's median of a figure, for the load that ``pick`` selects."""
        spreads = (self.systems(load).get(system, {}) for load in self.loads)
        return _picked(pick, (s[name].median if name in s else None for s in spreads))

    def large_table_costs(self) -> dict[str, LargeTableCost]:
        """Return the large table's cost by system, from the loads' worst figures."""
        names = dict.fromkeys(n for systems in self.loads.values() for n in systems)
        found = {name: self._large_table_cost(name) for name in names}
        return {name: cost for name, cost in found.items() if cost is not None}

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        live = (
            "live_p50_ms",
            "live_p99_ms",
            "idle_p50_ms",
            "idle_p99_ms",
            "live_ratio",
        )
        return {
            "loads": {load.value: self._load_json(load) for load in self.loads},
            "ratio_of": RATE,
            **{name: rounded(value) for name, value in self.ratios().items()},
            **{name: rounded(self.figure(name)) for name in live},
            "peak_rss_bytes": self.figure("process_peak_rss_bytes"),
            "cpu_us_per_row": rounded(self.figure("cpu_us_per_row")),
            "rows_per_s": rounded(self.figure(RATE, min)),
            "paper": {
                name: one.as_json() for name, one in self.large_table_costs().items()
            },
        }

    def _load_json(self, load: Load) -> dict[str, Any]:
        systems = {
            name: rounded_spreads(spreads)
            for name, spreads in self.systems(load).items()
        }
        ratios = {name: rounded(self.ratio(name, load)) for name in RATIOS}
        return {"systems": systems, **ratios}

    def _large_table_cost(self, system: str) -> LargeTableCost | None:
        rate = self.figure(RATE, min, system)
        cpu_us = self.figure("cpu_us_per_row", max, system)
        size = self.figure("topic_bytes_per_row", max, system)
        if rate is None or cpu_us is None or size is None:
            return None
        return large_table_cost(rate, cpu_us, size)


def _picked(pick: Callable[..., float], values: Any) -> float | None:  # noqa: ANN401 - any iterable of numbers and gaps
    found = [value for value in values if value is not None]
    return pick(found) if found else None


_TITLES: Final = {
    Load.UPDATES: f"{UPDATES_PER_S} updates/s",
    Load.QUIET: "quiet server",
}
_RATE: Final = Column(RATE, "rows/s", "{:,.0f}")
_SPEED: Final = (
    _RATE,
    Column("second_half_per_s", "2nd half", "{:,.0f}"),
    Column("from_signal_per_s", "from signal", "{:,.0f}"),
    Column("first_row_s", "first row s", "{:.2f}"),
    Column("completed_s", "completed s", "{:.1f}"),
    Column("topic_bytes_per_row", "topic B/row", "{:,.0f}"),
    Column("stale_rows", "stale", "{:,.0f}"),
    Column("stale_at_end", "at end", "{:,.0f}"),
    Column("overtaken_updates", "overtaken", "{:,.0f}"),
)
_LIVE: Final = (
    Column("idle_p50_ms", "before p50 ms", "{:.1f}"),
    Column("idle_p99_ms", "p99 ms", "{:.1f}"),
    Column("live_p50_ms", "during p50 ms", "{:.1f}"),
    Column("live_p99_ms", "p99 ms", "{:.1f}"),
    Column("live_max_ms", "max ms", "{:.0f}"),
    Column("live_ratio", "p99 ratio", "{:.2f}"),
)
_CPU: Final = Column("cpu_us_per_row", "CPU us/row", "{:.1f}")
_NAMES: Final = {
    "ratio_to_debezium": "relay / Debezium tuned",
    "ratio_to_stock": "relay / Debezium stock",
    "ratio_to_initial": "relay / Debezium's initial snapshot",
    "share_of_copy": "relay / bare COPY",
}


def draw(result: BenchResult[FillCase]) -> RenderableType:
    """Draw the closing lines of a benchmark whose loads have been printed."""
    if not result.verified:
        return unverified(result.findings)
    blocks: list[RenderableType] = []
    for case in result.cases:
        blocks += [Text(), _large_table_cost(case)]
    what = "every key with the table's last value, and every update, in every run"
    return Group(*blocks, Text(), *verified(what, result.machine))


def draw_load(case: FillCase, load: Load) -> RenderableType:
    """Draw one load."""
    return Group(Text(), *_load(case, load))


def _load(case: FillCase, load: Load) -> list[RenderableType]:
    systems = case.systems(load)
    blocks: list[RenderableType] = [
        figures_table(_TITLES[load], systems, _SPEED),
        bars(systems, _RATE),
    ]
    live = {name: found for name, found in systems.items() if "live_p99_ms" in found}
    if live:
        blocks.append(figures_table("commit to append", live, _LIVE))
    blocks.append(figures_table("", systems, (_CPU, *PROCESSES)))
    for name in RATIOS:
        found = case.ratio(name, load)
        if found is not None:
            blocks.append(Text(f"{_NAMES[name]}, rows/s: {found:.2f}", style="bold"))
    return blocks


def _large_table_cost(case: FillCase) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    title = f"{LARGE_TABLE_ROWS:,} rows (extrapolated, costlier load)"
    table.add_column(Text(title, style="bold"), no_wrap=True)
    for column in ("hours", "CPU hours", "topic GiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, cost in case.large_table_costs().items():
        table.add_row(name, *_large_table_cells(cost))
    return table


def _large_table_cells(cost: LargeTableCost) -> tuple[str, str, str]:
    gibibytes = cost.topic_bytes / MEBIBYTE / 1024
    return f"{cost.hours:.2f}", f"{cost.cpu_hours:.2f}", f"{gibibytes:.1f}"
