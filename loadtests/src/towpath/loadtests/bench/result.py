"""
The result of a benchmark: one JSON object, and tables for people. Does no I/O.

::

    {"verified": true, "findings": [], "rounds": 3, "rows": 300000, "machine": {...},
     "cases": {"drain_1": {"systems": {"relay": {"events_per_s":
                              {"min": ..., "median": ..., "max": ...}, ...}, ...},
                           "ratio_of": "events_per_s",
                           "ratio_to_limit": ..., "ratio_to_debezium": ...,
                           "ratio_to_debezium_stock": ...}, ...}}

A ratio is the relay's median divided by the other's: of events per second in a drain,
where higher is better, and of the 99th-percentile latency under a steady load, where
lower is better. ``ratio_to_debezium`` compares with tuned Debezium,
``ratio_to_debezium_stock`` with Debezium's own settings. A ratio without a measurement
is null, such as the ratio of a latency to the limit. A benchmark with findings has no
figures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.bench.context import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    DRAINS,
    LIMIT,
    RELAY,
)
from towpath.loadtests.bench.figures import Figures, Spread, ratio, spread

ROUND: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayCase:
    """One case: the figures of every round, by system."""

    name: str
    rounds: Mapping[str, tuple[Figures, ...]]

    @property
    def systems(self) -> dict[str, dict[str, Spread]]:
        """Minimum, median and maximum of every figure."""
        return {name: spread(figures) for name, figures in self.rounds.items()}

    @property
    def ratio_of(self) -> str | None:
        """The figure that the ratios compare; None for a kill, which has no ratios."""
        if self.is_kill:
            return None
        return "events_per_s" if self.name in DRAINS else "p99_ms"

    @property
    def is_kill(self) -> bool:
        """Whether the publishing process is killed in the middle of a run."""
        return self.name.startswith("kill")

    def ratio_to(self, other: str) -> float | None:
        """Return the ratio of the relay's median to another system's."""
        figure, systems = self.ratio_of, self.systems
        if figure is None or (other == LIMIT and self.name not in DRAINS):
            return None
        return ratio(systems.get(RELAY), systems.get(other), figure)

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        return {
            "systems": {
                name: rounded_spreads(spreads) for name, spreads in self.systems.items()
            },
            "ratio_of": self.ratio_of,
            "ratio_to_limit": rounded(self.ratio_to(LIMIT)),
            "ratio_to_debezium": rounded(self.ratio_to(DEBEZIUM_TUNED)),
            "ratio_to_debezium_stock": rounded(self.ratio_to(DEBEZIUM_STOCK)),
        }


class Reported(Protocol):
    """A case of any benchmark."""

    @property
    def name(self) -> str:
        """The name of the case in the result."""

    def as_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""


CaseT = TypeVar("CaseT", bound=Reported)


class ScenarioResult(Protocol):
    """The result of a benchmark or of a chaos run."""

    @property
    def verified(self) -> bool:
        """Whether there are no findings."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult(Generic[CaseT]):
    """
    The result of any benchmark: its cases, and the findings of all runs.

    Attributes:
        rows: The backlog of a drain, or the rows of a table.
        rounds: Runs of each case with each system.
        machine: The machine on which the benchmark ran.
        cases: The cases, in order.
        findings: The faults that the checks found, each with the name of its run.
    """

    rows: int
    rounds: int
    machine: Mapping[str, object]
    cases: tuple[CaseT, ...] = ()
    findings: tuple[str, ...] = field(default=())

    @property
    def verified(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object; without cases if there are findings."""
        shown: Iterable[CaseT] = self.cases if self.verified else ()
        return {
            "verified": self.verified,
            "findings": list(self.findings),
            "rounds": self.rounds,
            "rows": self.rows,
            "machine": dict(self.machine),
            "cases": {case.name: case.as_json() for case in shown},
        }


def rounded(value: float | None) -> float | None:
    """Round a number as results show it."""
    return None if value is None else round(value, ROUND)


def rounded_spreads(spreads: Mapping[str, Spread]) -> dict[str, dict[str, float]]:
    """Return minimum, median and maximum of each figure as results show them."""
    return {
        figure: {name: round(value, ROUND) for name, value in one._asdict().items()}
        for figure, one in spreads.items()
    }


MEBIBYTE: Final = 1024 * 1024
_BAR_WIDTH: Final = 30


class Column(NamedTuple):
    """A figure, its title, and its number format."""

    figure: str
    title: str
    form: str
    scale: float = 1.0


_DRAIN: Final = (
    Column("events_per_s", "events/s", "{:,.0f}"),
    Column("second_half_per_s", "2nd half", "{:,.0f}"),
    Column("from_start_per_s", "from start", "{:,.0f}"),
    Column("first_event_s", "first event s", "{:.2f}"),
    Column("headers", "headers", "{:.0f}"),
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
    Column("duplicates", "duplicates", "{:,.0f}"),
    Column("first_new_event_s", "first new event s", "{:.2f}"),
)
PROCESSES: Final = (
    Column("cpu_us_per_event", "CPU us/event", "{:.1f}"),
    Column("process_cpu_s", "CPU s", "{:.1f}"),
    Column("process_peak_rss_bytes", "peak RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("walsender_cpu_s", "walsender CPU s", "{:.1f}"),
    Column("walsender_peak_rss_bytes", "walsender RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("broker_cpu_s", "broker CPU s", "{:.1f}"),
    Column("broker_peak_rss_bytes", "broker RSS MiB", "{:,.0f}", 1 / MEBIBYTE),
    Column("observer_cpu_s", "observer CPU s", "{:.2f}"),
)


def draw(result: BenchResult[RelayCase]) -> RenderableType:
    """Draw the closing lines of a benchmark whose cases have been printed."""
    if not result.verified:
        return unverified(result.findings)
    what = (
        "every event once, unchanged, in order per key, in every run; after a kill, "
        "losses and repeats of other systems are figures"
    )
    return Group(Text(), *verified(what, result.machine))


def draw_case(case: RelayCase) -> RenderableType:
    """Draw one case."""
    return Group(Text(), *_case(case))


def unverified(findings: Sequence[str]) -> RenderableType:
    """Draw the findings, which void all figures printed so far."""
    lines = [Text(line, style="red") for line in findings]
    title = "Not verified: no figure of this benchmark is valid."
    return Group(Text(title, style="bold red"), *lines)


def verified(what: str, machine: Mapping[str, object]) -> list[RenderableType]:
    """Draw what was checked, and the machine."""
    on = ", ".join(f"{name} {value}" for name, value in machine.items())
    return [Text(f"Verified: {what}."), Text(on, "dim")]


def _case(case: RelayCase) -> list[RenderableType]:
    systems = case.systems
    if case.is_kill:
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
    """Draw each figure's median with its minimum and maximum."""
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
