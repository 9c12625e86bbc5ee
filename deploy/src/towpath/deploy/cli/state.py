"""``towpath relay state show | export | skip | repair``."""

import json as json_text
import os
from collections.abc import Iterable
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.deploy.cli.options import ConfigOption, config_file
from towpath.schemas.position import format_lsn
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs

app = App(
    name="state",
    help="Show what the relay knows, keep a copy, skip a transaction, repair.",
)
YesOption = Annotated[
    bool, Parameter(name="--yes", negative="", help="Do not ask; for scripts.")
]

_SHOWN_PARKED: Final = 20
_WHAT_SKIP_MEANS: Final = """\
The transaction that commits at {lsn} will not be published. Its messages go to the
dead letters ({dead}) as they came, and everything behind it flows.

- It is never published by itself later: mend and replay it from the dead letters.
- Other events of the same aggregates are published without it.
- Once it is passed and confirmed, Postgres forgets it: a slot never goes back.
- The relay reads this when it starts, or connects again: restart it now if it runs.
- Until then it can be taken back: towpath relay state skip --undo {lsn}
"""


@app.command
def show(
    *,
    json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print one JSON document.")
    ] = False,
    parked: int = _SHOWN_PARKED,
    config: ConfigOption = None,
) -> int:
    """
    Show lineages and gaps, confirmed and published positions, marks, parked aggregates.

    The state lives in Kafka, in the compacted topic PREFIX.relay-state, because the
    database may be the thing that was restored. The slot's own view stands beside it.

    - lineage: one unbroken history of the source's log; a new one means a gap.
    - confirmed: what Postgres was told that it may forget.
    - mark: what each partition has; positions rise within a partition.
    - parked: aggregates whose events wait behind one that could not be published.

    Args:
        json: Print one JSON document.
        parked: How many parked aggregates are named.
        config: Configuration file.
    """
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    told = state.show_state(_settings(config), parked)
    if json:
        print(json_text.dumps(told, indent=1))
    else:
        _print(told, Console())
    return 0


@app.command
def export(*, config: ConfigOption = None) -> int:
    """
    Print every record of the state topic as a line of JSON, oldest first.

    For support and for backups: {"offset", "timestamp_ms", "key", "value"}. The newest
    record of a key is what holds; a null value took its key back.

    Args:
        config: Configuration file.
    """
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    for record in state.export_state(_settings(config)):
        print(json_text.dumps(record, ensure_ascii=False))
    return 0


@app.command
def skip(
    lsn: str,
    /,
    *,
    undo: Annotated[bool, Parameter(negative="")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Have one transaction set aside into the dead letters instead of published.

    For a transaction that stops the relay each time, when what follows must flow. It is
    named by the LSN of its commit (0/16B3748), or by the position of any of its
    records. What is confirmed already cannot be skipped: Postgres forgot it.

    Args:
        lsn: The commit's LSN, or a position.
        undo: Take a skip back that was not carried out yet.
        yes: Do not ask; for scripts.
        config: Configuration file.
    """
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    settings = _settings(config)
    if undo:
        print(f"{state.cancel_skip(settings, lsn)} will be published")
        return 0
    meant = format_lsn(state.resolve_skip(settings, lsn))
    dead = f"{settings.database.prefix}.dead.relay"
    print(_WHAT_SKIP_MEANS.format(lsn=meant, dead=dead))
    if not yes and not _confirmed(meant):
        print("nothing was done")
        return 1
    state.request_skip(settings, state.resolve_skip(settings, lsn))
    print(f"{meant} will be set aside")
    return 0


@app.command
def repair(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Make the state anew from what Kafka and the source still have.

    For a state topic that was lost, and for topics that were deleted, truncated, made
    anew or given more partitions. A deleted topic is made again as it was, tables whose
    records are lost are asked for by a signal, and added partitions are used from the
    next position on. The ends of all topics of ours are read; what would be written is
    shown and asked about. The relay must not run.

    Args:
        dry_run: Show what would be written, and write nothing.
        yes: Do not ask; for scripts.
        config: Configuration file.
    """
    from towpath.relay.commands import repair  # noqa: PLC0415 - keeps --help fast

    settings = _settings(config)
    planned = repair.prepare_repair(settings)
    for key, document in planned.documents.items():
        print(f"{key} = {json_text.dumps(document, ensure_ascii=False)}")
    print()
    for note in planned.notes:
        print(f"- {note}")
    if dry_run:
        return 0
    if not yes and not _confirmed("repair"):
        print("nothing was done")
        return 1
    repair.apply_repair(settings, planned)
    print("the state is repaired: start the relay")
    return 0


def _confirmed(word: str) -> bool:
    """Ask for a word to be typed; a closed input is a no."""
    try:
        return input(f"Type {word} to go on: ").strip() == word
    except EOFError:
        return False


def _settings(config: ConfigOption) -> Settings:
    # Standard output is the answer's: what the client library says goes beside it.
    configure_logs()
    return load(config_file(config), os.environ)  # noqa: TID251 - a root


def _print(told: dict[str, Any], console: Console) -> None:
    """Print the document as tables."""
    console.print(f"state topic {told['topic']}", markup=False)
    console.print(_table("lineage", told["lineages"], _LINEAGE))
    for lineage in told["lineages"]:
        _print_gap(lineage, console)
    confirmed, slot = told["confirmed"], told["slot"]
    console.print(_facts("confirmed", confirmed or {"": "nothing yet"}))
    nothing = {"": told["source_error"] or "there is no slot"}
    console.print(_facts("slot", slot or nothing))
    console.print(_table("marks", told["marks"], _MARK))
    parked = told["parked"] or {"count": 0, "first": []}
    console.print(f"{parked['count']:,} parked aggregates", markup=False)
    if parked["first"]:
        console.print(_table("parked", parked["first"], _PARKED))
    if told["skips"]:
        console.print(_table("skips", told["skips"], _SKIP))
    if told["settings_differ"]:
        names = ", ".join(told["settings_differ"])
        console.print(f"the file differs from what is in force: {names}", markup=False)


_LINEAGE: Final = ("number", "system_identifier", "timeline", "offset", "start_lsn")
_MARK: Final = ("topic", "partition", "next_offset", "end_offset", "position")
_PARKED: Final = ("aggregate_type", "aggregate_id", "since")
_SKIP: Final = ("lsn", "asked_at", "done")


def _print_gap(lineage: dict[str, Any], console: Console) -> None:
    gap = lineage["gap"]
    if gap is None:
        return
    plan = ", ".join(gap["plan"]) or "nothing"
    asked = "asked for" if gap["started"] else "not asked for yet"
    console.print(
        f"gap before lineage {lineage['number']}, {gap['at']}: {gap['reason']}; "
        f"since {gap['since_lsn']}; snapshots {asked}: {plan}",
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
    """Write a value as it is: brackets in it are no markup."""
    return Text("" if value is None else str(value))
