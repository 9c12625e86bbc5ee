"""
The relay's human-readable output: tables and a progress bar.

Commands import this module only to print, so that ``towpath relay run`` does not load
rich.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

_COLUMNS: Final = (
    *("aggregate_type", "aggregate_id", "letters", "publishable"),
    *("first_position", "reason"),
)


def print_parked(lines: Iterable[dict[str, Any]]) -> None:
    """Print the parked aggregates of ``towpath relay dead-letters list``."""
    table = Table(*(name.replace("_", " ") for name in _COLUMNS), box=None)
    for line in lines:
        table.add_row(*(_cell(line[name]) for name in _COLUMNS))
    Console().print(table)


def print_letters(documents: Iterable[dict[str, Any]]) -> None:
    """Print the dead letters of ``towpath relay dead-letters show``."""
    for document in documents:
        print("\n".join(f"{name}: {value or ''}" for name, value in document.items()))
        print()


def print_state(document: dict[str, Any]) -> None:
    """Print the document of ``towpath relay state show`` as tables."""
    console = Console()
    console.print(f"state topic {document['topic']}", markup=False)
    console.print(_table("lineage", document["lineages"], _LINEAGE))
    for lineage in document["lineages"]:
        _print_gap(lineage, console)
    confirmed, slot = document["confirmed"], document["slot"]
    console.print(_facts("confirmed", confirmed or {"": "nothing yet"}))
    nothing = {"": document["source_error"] or "there is no slot"}
    console.print(_facts("slot", slot or nothing))
    console.print(_table("marks", document["marks"], _MARK))
    parked = document["parked"] or {"count": 0, "first": []}
    console.print(f"{parked['count']:,} parked aggregates", markup=False)
    if parked["first"]:
        console.print(_table("parked", parked["first"], _PARKED))
    if document["skips"]:
        console.print(_table("skips", document["skips"], _SKIP))
    if document["settings_differ"]:
        names = ", ".join(document["settings_differ"])
        console.print(
            f"the file differs from the settings in effect: {names}", markup=False
        )


_LINEAGE: Final = ("number", "system_identifier", "timeline", "offset", "start_lsn")
_MARK: Final = ("topic", "partition", "next_offset", "end_offset", "position")
_PARKED: Final = ("aggregate_type", "aggregate_id", "since")
_SKIP: Final = ("lsn", "asked_at", "done")


def _print_gap(lineage: dict[str, Any], console: Console) -> None:
    gap = lineage["gap"]
    if gap is None:
        return
    requested = "requested" if gap["started"] else "not requested yet"
    # An earlier gap has no plan: its tables are in the plan of the newest gap.
    plan = f"; snapshots {requested}: {', '.join(gap['plan'])}" if gap["plan"] else ""
    console.print(
        f"gap before lineage {lineage['number']}, {gap['at']}: {gap['reason']}; "
        f"since {gap['since_lsn']}{plan}",
        markup=False,
    )


def _table(
    title: str, rows: Iterable[dict[str, Any]], columns: tuple[str, ...]
) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _facts(title: str, facts: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _cell(value))
    return table


def _cell(value: object) -> Text:
    """Return a value as plain text, so that its brackets are not read as markup."""
    return Text("" if value is None else str(value))


_SKIP_CONSEQUENCES: Final = """\
The transaction that commits at {lsn} will not be published. Its messages are written
unchanged to the dead letters ({dead}), and later transactions are published.

- It is never published later, and no command replays it. The dead letters contain its
  rows; correct them and write them to the source again.
- Other events of the same aggregates are published without it.
- Once the relay has confirmed the transaction, Postgres may drop its WAL: a slot never
  moves back.
- The relay reads this request when it starts or reconnects: restart a running relay.
- Before the relay reads it, the request can be canceled:
  towpath relay state skip --undo {lsn}
"""


def print_skip(lsn: str, dead: str) -> None:
    """Print the consequences of ``towpath relay state skip``."""
    print(_SKIP_CONSEQUENCES.format(lsn=lsn, dead=dead))


def print_repair(documents: Mapping[str, object], notes: Iterable[str]) -> None:
    """Print the new state of ``towpath relay state repair``, and its notes."""
    for key, document in documents.items():
        print(f"{key} = {json.dumps(document, ensure_ascii=False)}")
    print()
    for note in notes:
        print(f"- {note}")


def print_cleaned(document: Mapping[str, object]) -> None:
    """Print the result of ``towpath outbox clean``."""
    for name, value in document.items():
        text = ", ".join(value) or "none" if isinstance(value, list) else str(value)
        print(f"{name.replace('_', ' '):12} {text}")


@contextmanager
def cleaning_progress() -> Iterator[Callable[[int, int, int], None]]:
    """Show the progress of ``towpath outbox clean`` on a terminal."""
    bars = Progress(
        TextColumn("pages"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[deleted]:,} deleted, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not Console(stderr=True).is_terminal,
    )
    with bars:
        task = bars.add_task("", total=None, deleted=0, rate=0.0)

        def report(done: int, pages: int, deleted: int) -> None:
            elapsed_s = bars.tasks[0].elapsed or 0.0
            rate = deleted / elapsed_s if elapsed_s else 0.0
            bars.update(
                task,
                completed=min(done, pages),
                total=pages,
                deleted=deleted,
                rate=rate,
            )

        yield report
