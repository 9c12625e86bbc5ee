"""The tables that a person reads: one for each case, with bars of its main figure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.figures import Spread
from towpath.loadtests.bench.plan import DEBEZIUM_TUNED, DRAINS, LIMIT
from towpath.loadtests.bench.result import Case, Result

MEBIBYTE: Final = 1024 * 1024
_BAR_WIDTH: Final = 30


class Column(NamedTuple):
    """A figure, its title, and how one number of it is shown."""

    figure: str
    title: str
    form: str
    scale: float = 1.0


_DRAIN: Final = (
    Column("events_per_s", "events/s", "{:,.0f}"),
    Column("second_half_per_s", "2nd half", "{:,.0f}"),
    Column("from_start_per_s", "from start", "{:,.0f}"),
    Column("first_event_s", "first event s", "{:.2f}"),
)
_STEADY: Final = (
    Column("p50_ms", "p50 ms", "{:.1f}"),
    Column("p95_ms", "p95 ms", "{:.1f}"),
    Column("p99_ms", "p99 ms", "{:.1f}"),
    Column("max_ms", "max ms", "{:.0f}"),
    Column("events_per_s", "load/s", "{:,.0f}"),
)
_KILL: Final = (
    Column("killed_at_events", "killed at", "{:,.0f}"),
    Column("lost", "lost", "{:,.0f}"),
    Column("duplicates", "twice", "{:,.0f}"),
    Column("first_new_event_s", "first new event s", "{:.2f}"),
)
PROCESSES: Final = (
    Column("cpu_us_per_event", "CPU us/event", "{:.1f}"),
    Column("process_cpu_s", "CPU s", "{:.1f}"),
    Column("process_peak_rss_bytes", "RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("walsender_cpu_s", "walsender CPU s", "{:.1f}"),
    Column("walsender_peak_rss_bytes", "RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("broker_cpu_s", "broker CPU s", "{:.1f}"),
    Column("broker_peak_rss_bytes", "RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("observer_cpu_s", "observer CPU s", "{:.2f}"),
)


def draw(result: Result[Case]) -> RenderableType:
    """Draw what closes a benchmark whose cases were printed as they ended."""
    if not result.verified:
        return unverified(result.findings)
    what = "every event once, unchanged, in order per key, in every run"
    return Group(Text(), *verified(what, result.machine))


def draw_case(case: Case) -> RenderableType:
    """Draw one case."""
    return Group(Text(), *_case(case))


def unverified(findings: Sequence[str]) -> RenderableType:
    """Draw what differs; figures printed before it count for nothing."""
    lines = [Text(line, style="red") for line in findings]
    said = "Not verified: no figure of this benchmark counts."
    return Group(Text(said, style="bold red"), *lines)


def verified(what: str, machine: Mapping[str, object]) -> list[RenderableType]:
    """Say what was checked, and on what machine."""
    on = ", ".join(f"{name} {value}" for name, value in machine.items())
    return [Text(f"Verified: {what}."), Text(on, "dim")]


def _case(case: Case) -> list[RenderableType]:
    systems = case.systems
    if case.name.startswith("kill"):
        return [figures_table(case.name, systems, _KILL)]
    columns = _DRAIN if case.name in DRAINS else _STEADY
    blocks: list[RenderableType] = [
        figures_table(case.name, systems, columns),
        bars(systems, columns[0] if case.name in DRAINS else columns[2]),
        figures_table("", systems, PROCESSES),
    ]
    for title, other in (("the limit", LIMIT), ("Debezium tuned", DEBEZIUM_TUNED)):
        found = case.ratio_to(other)
        if found is not None:
            line = f"relay / {title}, {case.ratio_of}: {found:.2f}"
            blocks.append(Text(line, style="bold"))
    return blocks


def figures_table(
    title: str,
    systems: Mapping[str, Mapping[str, Spread]],
    columns: tuple[Column, ...],
) -> Table:
    """Draw the median of each figure, and below it minimum and maximum."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(Text(title, style="bold"), no_wrap=True)
    used = [c for c in columns if any(c.figure in one for one in systems.values())]
    for column in used:
        table.add_column(column.title, justify="right", no_wrap=True)
    for name, spreads in systems.items():
        table.add_row(name, *(_cell(spreads.get(c.figure), c) for c in used))
    return table


def _cell(one: Spread | None, column: Column) -> Text:
    if one is None:
        return Text("-", style="dim")
    low, median, high = (column.form.format(value * column.scale) for value in one)
    text = Text(median)
    if low != high:
        text.append(f" {low}..{high}", style="dim")
    return text


def bars(systems: Mapping[str, Mapping[str, Spread]], column: Column) -> Table:
    """Draw each system's median of one figure as a bar."""
    found = {
        n: s[column.figure].median for n, s in systems.items() if column.figure in s
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(width=_BAR_WIDTH)
    for name, value in found.items():
        largest = max(found.values())
        table.add_row(name, Bar(largest, 0, value, width=_BAR_WIDTH, color="cyan"))
    return table
