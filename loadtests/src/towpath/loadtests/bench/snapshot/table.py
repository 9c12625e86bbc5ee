"""The tables that a person reads: one for each load, and what a large table costs."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.result import Result
from towpath.loadtests.bench.snapshot.paper import ROWS, Paper
from towpath.loadtests.bench.snapshot.plan import UPDATES_PER_S, Load
from towpath.loadtests.bench.snapshot.result import RATE, RATIOS, FillCase
from towpath.loadtests.bench.table import (
    MEBIBYTE,
    PROCESSES,
    Column,
    bars,
    figures_table,
    unverified,
    verified,
)

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
    Column("idle_p50_ms", "alone p50 ms", "{:.1f}"),
    Column("idle_p99_ms", "p99 ms", "{:.1f}"),
    Column("live_p50_ms", "beside p50 ms", "{:.1f}"),
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


def draw(result: Result[FillCase]) -> RenderableType:
    """Draw what closes a benchmark whose loads were printed as they ended."""
    if not result.verified:
        return unverified(result.findings)
    blocks: list[RenderableType] = []
    for case in result.cases:
        blocks += [Text(), _paper(case)]
    what = "every key, the table's last value of each, every update, in every run"
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


def _paper(case: FillCase) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    title = f"{ROWS:,} rows on paper, the dearer load"
    table.add_column(Text(title, style="bold"), no_wrap=True)
    for column in ("hours", "CPU hours", "topic GiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, paper in case.papers().items():
        table.add_row(name, *_paper_cells(paper))
    return table


def _paper_cells(paper: Paper) -> tuple[str, str, str]:
    gibibytes = paper.topic_bytes / MEBIBYTE / 1024
    return f"{paper.hours:.2f}", f"{paper.cpu_hours:.2f}", f"{gibibytes:.1f}"
