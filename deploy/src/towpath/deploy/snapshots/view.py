"""The progress of snapshots, as a table and as live bars."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

from towpath.deploy.snapshots.signals import TableProgress

_TITLES: Final = (
    *("snapshot", "table", "target", "state", "rows", "dropped"),
    *("%", "rows/s", "left", "last key"),
)
_NUMBERS: Final = frozenset({"rows", "dropped", "%", "rows/s", "left"})

# Narrower columns are illegible.
_WIDTHS: Final = {"snapshot": 12, "table": 12}

# A chunk takes less than a second: a relay without progress for this long is waiting
# or down.
_QUIET_S: Final = 30.0


def snapshot_table(rows: Sequence[TableProgress]) -> RenderableType:
    """Return a row for each table of each snapshot, and the problems below them."""
    table = Table(box=None, collapse_padding=True, pad_edge=False)
    cells = [_cells(row) for row in rows]
    # Empty columns are omitted, because space is scarce.
    titles = [title for title in _TITLES if any(cell[title] for cell in cells)]
    for title in titles:
        table.add_column(
            title,
            justify="right" if title in _NUMBERS else "left",
            overflow="fold",
            no_wrap=title in _NUMBERS or title == "state",
            min_width=_WIDTHS.get(title),
        )
    for cell in cells:
        table.add_row(*(cell[title] for title in titles))
    problems = [
        escape(f"{row.snapshot_id} {row.collection}: {row.error or quiet_text(row)}")
        for row in rows
        if row.error or quiet_text(row)
    ]
    return Group(table, *problems)


def _cells(row: TableProgress) -> dict[str, str]:
    """Return the cells of a row by title, in the order of the columns."""
    return {
        "snapshot": escape(row.snapshot_id),
        "table": escape(row.collection),
        "target": escape(row.target or ""),
        "state": row.state + ("" if row.kind == "incremental" else f" ({row.kind})"),
        "rows": f"{row.rows:,}",
        "dropped": f"{row.dropped:,}" if row.dropped else "",
        "%": "" if row.percent is None else f"{row.percent:.0f}",
        "rows/s": rate_text(row),
        "left": time_text(time_left_s(row)),
        "last key": escape(key_text(row.last_key)),
    }


def quiet_text(row: TableProgress) -> str:
    """Return a warning if a table's scan has made no progress for a long time."""
    quiet_s = row.quiet_s or 0.0
    if row.state != "running" or quiet_s < _QUIET_S:
        return ""
    return f"no progress for {time_text(quiet_s)}: is the relay down, or is it waiting?"


def rate_text(row: TableProgress) -> str:
    """Return the rows per second, recent or overall."""
    return f"{row.rows_per_second:,.0f}" if row.rows_per_second else ""


def time_left_s(row: TableProgress) -> float | None:
    """Return the time left; None if it is unknown or the table is not being read."""
    if row.state != "running":
        return None
    if row.eta_s is not None:
        return row.eta_s
    left = (row.estimated_rows or 0) - row.rows - row.dropped
    if not row.rows_per_second or left < 0:
        return None
    return left / row.rows_per_second


def time_text(time_s: float | None) -> str:
    """Return a time as hours, minutes and seconds."""
    if time_s is None:
        return ""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def key_text(key: Sequence[str] | None) -> str:
    """Return a key as text: its only column's text, or a JSON list of its columns."""
    if not key:
        return ""
    return key[0] if len(key) == 1 else json.dumps(list(key), ensure_ascii=False)


class SnapshotBars:
    """A bar for each table of a snapshot."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, rows: Sequence[TableProgress]) -> None:
        """Update the bars."""
        for row in rows:
            task = self._tasks.get(row.collection)
            if task is None:
                task = self._bars.add_task(escape(row.collection), total=None, text="")
                self._tasks[row.collection] = task
            total = None if row.percent is None else 100.0
            text = escape(progress_text(row))
            done = row.percent or 0.0
            self._bars.update(task, total=total, completed=done, text=text)


def progress_text(row: TableProgress) -> str:
    """Return the text to the right of a table's bar."""
    text = [row.state, f"{row.rows:,} rows"]
    if row.dropped:
        text.append(f"{row.dropped:,} newer in the stream")
    if row.rows_per_second:
        text.append(f"{rate_text(row)} rows/s")
    left = time_text(time_left_s(row))
    if left:
        text.append(f"{left} left")
    if row.last_key and row.state != "completed":
        text.append(f"up to {key_text(row.last_key)[:60]}")
    if row.error or quiet_text(row):
        text.append(row.error or quiet_text(row))
    return ", ".join(text)


@contextmanager
def open_bars(console: Console) -> Iterator[SnapshotBars]:
    """Show bars until the block ends; without a terminal, print them at its end."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Bars(*columns, console=console, refresh_per_second=4) as bars:
        yield SnapshotBars(bars)
