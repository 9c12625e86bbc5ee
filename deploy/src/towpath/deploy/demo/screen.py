"""
The live screen of the demo, or plain lines without a terminal.

Both print each step on a separate line. Below those lines the live screen draws one
view of all parts, rates, sinks and snapshots. The views are plain values that
``monitor`` builds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rich.columns import Columns
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from towpath.deploy.snapshots.signals import TableProgress
from towpath.deploy.snapshots.view import rate_text, time_left_s


@dataclass(frozen=True, slots=True)
class PartView:
    """One process of the demo, with the number of its restarts."""

    name: str
    state: str
    pid: int | None
    memory_bytes: int
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class SinkView:
    """One sink: the state of its query, and its lag."""

    name: str
    state: str
    lag_records: int
    rows: int
    last_batch_ms: int


def completed_share(row: TableProgress) -> float:
    """Return the estimated completed share of a table; it is 1 only when completed."""
    if row.state == "completed":
        return 1.0
    done = row.rows + row.dropped
    return min(0.999, done / row.estimated_rows) if row.estimated_rows else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of the shop, of its tables and of its outbox."""

    checkouts_per_s: float = 0.0
    changes_per_s: float = 0.0
    events_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of everything at one moment."""

    step: str
    elapsed_s: float
    parts: tuple[PartView, ...] = ()
    sinks: tuple[SinkView, ...] = ()
    snapshots: tuple[TableProgress, ...] = ()
    rates: Rates = Rates()

    @property
    def memory_bytes(self) -> int:
        """The memory of all processes together."""
        return sum(part.memory_bytes for part in self.parts)


_MIB: Final = 1024 * 1024
_REFRESHES_PER_S: Final = 4
_BAR_WIDTH: Final = 30

# Without a terminal, a line of numbers is printed at this interval.
_PLAIN_INTERVAL_S: Final = 10.0
_COLORS: Final = {
    "ready": "green",
    "running": "green",
    "completed": "green",
    "starting": "yellow",
    "restarting": "yellow",
    "queued": "yellow",
    "failed": "red",
    "stopped": "red",
}


class DemoScreen(Protocol):
    """The display of the demo."""

    def print(self, line: str) -> None:
        """Print a line that remains on the screen."""

    def show(self, view: View) -> None:
        """Show a view until the next one replaces it."""


class PlainScreen:
    """Prints lines only."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due_at_s = _PLAIN_INTERVAL_S

    def print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)

    def show(self, view: View) -> None:
        if view.elapsed_s >= self._due_at_s:
            self._due_at_s = view.elapsed_s + _PLAIN_INTERVAL_S
            line = escape(summary(view))
            self.print(f"[dim]{view.elapsed_s:6.1f} s    {line}[/dim]")


class LiveScreen:
    """Prints lines, and shows one view below them."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def print(self, line: str) -> None:
        self._console.print(line)

    def show(self, view: View) -> None:
        self._live.update(draw(view))


@contextmanager
def open_screen(console: Console) -> Iterator[DemoScreen]:
    """Open a live screen on a terminal, else a plain one."""
    if not console.is_terminal:
        yield PlainScreen(console)
        return
    with Live(console=console, refresh_per_second=_REFRESHES_PER_S) as live:
        yield LiveScreen(console, live)
        live.update(Text(""))


def summary(view: View) -> str:
    """Return a view in one line."""
    lags = ", ".join(f"{s.name} {s.lag_records:,} behind" for s in view.sinks)
    snapshots = [
        f"snapshot of {row.collection} {completed_share(row):.0%}"
        f" ({rate_text(row) or 0} rows/s)"
        for row in view.snapshots
        if row.state == "running"
    ]
    rates = (
        f"{view.rates.checkouts_per_s:.0f} checkouts/s,"
        f" {view.rates.changes_per_s:,.0f} row changes/s"
    )
    memory = f"{view.memory_bytes / _MIB:,.0f} MiB"
    return "; ".join(filter(None, [rates, lags, *snapshots, memory]))


def draw(view: View) -> RenderableType:
    """Draw a view."""
    head = Text.assemble(
        (f"{view.elapsed_s:5.0f} s  ", "dim"),
        (view.step, "bold"),
        ("    memory of all processes ", "dim"),
        f"{view.memory_bytes / _MIB:,.0f} MiB",
    )
    right = Group(_rates(view.rates), _sinks(view.sinks))
    blocks: list[RenderableType] = [head, Columns([_parts(view.parts), right])]
    if view.snapshots:
        blocks.append(_snapshots(view.snapshots))
    return Group(*blocks)


def _parts(parts: tuple[PartView, ...]) -> Table:
    table = _table("part", "state", ">pid", ">MiB", ">restarts")
    for part in parts:
        table.add_row(
            part.name,
            _state(part.state),
            str(part.pid or ""),
            f"{part.memory_bytes / _MIB:,.0f}" if part.memory_bytes else "",
            Text(str(part.restarts), style="yellow" if part.restarts else "dim"),
        )
    return table


def _rates(rates: Rates) -> Table:
    table = _table("rate", ">per second")
    table.add_row("checkouts", f"{rates.checkouts_per_s:,.0f}")
    table.add_row("row changes", f"{rates.changes_per_s:,.0f}")
    table.add_row("events", f"{rates.events_per_s:,.0f}")
    return table


def _sinks(sinks: tuple[SinkView, ...]) -> Table:
    table = _table("sink", "state", ">records behind", ">rows written", ">batch ms")
    for sink in sinks:
        table.add_row(
            sink.name,
            _state(sink.state),
            f"{sink.lag_records:,}",
            f"{sink.rows:,}",
            f"{sink.last_batch_ms:,}",
        )
    return table


def _snapshots(snapshots: tuple[TableProgress, ...]) -> Table:
    table = _table("snapshot of", "for", "", ">rows", ">rows/s", ">left")
    for one in snapshots:
        left_s = time_left_s(one)
        table.add_row(
            escape(one.collection),
            one.target or "all sinks",
            _bar(one),
            f"{one.rows:,}",
            rate_text(one) or "0",
            one.state if left_s is None else f"{left_s:.0f} s",
        )
    return table


def _bar(snapshot: TableProgress) -> RenderableType:
    return ProgressBar(total=1.0, completed=completed_share(snapshot), width=_BAR_WIDTH)


def _state(state: str) -> Text:
    return Text(state, style=_COLORS.get(state, ""))


def _table(*columns: str) -> Table:
    """Return a plain table; a column whose title begins with ``>`` is for numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, no_wrap=True)
    return table
