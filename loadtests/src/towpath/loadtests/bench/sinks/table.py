"""The tables that a person reads: what readers waited for, and how fast sinks were."""

from collections.abc import Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.figures import Figures, Spread
from towpath.loadtests.bench.result import Result
from towpath.loadtests.bench.sinks.plan import BUDGETS_MS
from towpath.loadtests.bench.sinks.result import (
    BESIDE,
    CatchUp,
    Checkout,
    Rate,
    Reading,
    SinkCase,
)
from towpath.loadtests.bench.table import (
    MEBIBYTE,
    Column,
    figures_table,
    unverified,
    verified,
)

_SPEED: Final = (
    Column("rows_per_s", "rows/s", "{:,.0f}"),
    Column("from_start_per_s", "from start", "{:,.0f}"),
    Column("first_batch_s", "first batch s", "{:.1f}"),
    Column("batches", "batches", "{:,.0f}"),
    Column("retries", "retries", "{:,.0f}"),
    Column("memory_bytes", "memory MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("cpu_us_per_row", "CPU us/row", "{:.1f}"),
    Column("driver_cpu_s", "Python CPU s", "{:.1f}"),
    Column("driver_peak_rss_bytes", "RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("engine_cpu_s", "engine CPU s", "{:.1f}"),
    Column("engine_peak_rss_bytes", "RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("target_cpu_s", "target CPU s", "{:.1f}"),
)
_BESIDE: Final = {
    "hset": "plain HSET, the ceiling",
    "bulk": "the client's bulk load",
    "merge": "one MERGE",
}


def draw(result: Result[SinkCase]) -> RenderableType:
    """Draw what closes a benchmark whose cases were printed as they ended."""
    if not result.verified:
        return unverified(result.findings)
    what = "every sink equals the source, key by key and column by column"
    return Group(Text(), *verified(what, result.machine))


def draw_case(case: SinkCase) -> RenderableType:
    """Draw one case."""
    drawn = _checkout(case) if isinstance(case, Checkout) else _catch_up(case)
    return Group(Text(), *drawn)


def _checkout(case: Checkout) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(Text("commit to first read", style="bold"), no_wrap=True)
    for title in ("budget ms", "p50 ms", "p95 ms", "p99 ms", "samples", "lost"):
        table.add_column(title, justify="right", no_wrap=True)
    for rate in case.rates:
        what = f"{rate.rate_per_s:g} checkouts/s: {rate.reached_per_s:.1f} reached"
        said = "met" if rate.is_met else "not met"
        style = "green" if rate.is_met else "red"
        table.add_row(Text.assemble((f"{what}, ", "dim"), (said, style)))
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
    title = f"{case.rows:,} rows behind"
    blocks: list[RenderableType] = [figures_table(title, _once(case.systems), _SPEED)]
    for sink, other in BESIDE.items():
        found = case.ratio(sink)
        if found is not None:
            line = f"{sink} / {_BESIDE[other]}, rows/s: {found:.2f}"
            blocks.append(Text(line, style="bold"))
    return blocks


def _once(systems: Mapping[str, Figures]) -> dict[str, dict[str, Spread]]:
    """Show what was measured once as tables of several rounds take it."""
    return {
        name: {figure: Spread(value, value, value) for figure, value in found.items()}
        for name, found in systems.items()
    }
