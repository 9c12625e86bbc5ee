"""``towpath relay init | run | status | state ...`` and ``towpath outbox clean``."""

import gc
import json as json_text
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt
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

from towpath.cli.options import (
    ConfigOption,
    Flag,
    JsonOption,
    config_file,
    read_settings,
)
from towpath.relay.cli.dead_letters import app as dead_letters_app
from towpath.schemas.position import format_lsn
from towpath.schemas.source_tables import DAYS_AHEAD

if TYPE_CHECKING:
    from towpath.settings import Settings

app = App(name="relay", help="Set up the source, run the relay, show its status.")
state_app = App(
    name="state",
    help="Show what the relay knows, keep a copy, skip a transaction, repair.",
)
app.command(state_app)
app.command(dead_letters_app)
outbox_app = App(name="outbox", help="Remove old, published events from the outbox.")


@app.command
def init(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Create schema, tables, publications and slot in the source; safe to repeat.

    Args:
        dry_run: Print the statements instead of running them.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast

    return relay.init(config_file(config), dry_run)


@app.command
def run(*, config: ConfigOption = None) -> int:
    """
    Follow the log and publish to Kafka until stopped.

    Args:
        config: Configuration file.
    """
    from towpath.relay.commands import compiled  # noqa: PLC0415 - keeps --help fast

    # Imports leave no garbage; the relay turns collections on again.
    gc.disable()
    compiled.import_modules(os.environ)  # noqa: TID251 - where a process begins
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - after these modules

    return relay.run(config_file(config))


@app.command
def status(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Show the relay's status, from the source and the state topic.

    The status shows the slot with its lag and the log that it retains, the lineage with
    its gap, the published position, and the age of the newest marks. The exit code is 1
    if no relay follows the slot.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - keeps --help fast

    # Standard output is for the answer: log records of the client library go elsewhere.
    configure_logs()
    return relay.status(config_file(config), json)


YesOption = Annotated[
    bool, Parameter(name="--yes", negative="", help="Do not ask; for scripts.")
]

_SHOWN_PARKED: Final = 20
_SKIP_CONSEQUENCES: Final = """\
The transaction that commits at {lsn} will not be published. Its messages are written
unchanged to the dead letters ({dead}), and later transactions are published.

- It is never published later: correct its messages and replay them from the dead
  letters.
- Other events of the same aggregates are published without it.
- Once the relay has confirmed it, Postgres drops its log: a slot never goes back.
- The relay reads this request when it starts or reconnects: restart it if it runs.
- Until then the request can be cancelled: towpath relay state skip --undo {lsn}
"""


@state_app.command
def show(
    *,
    json: JsonOption = False,
    parked: int = _SHOWN_PARKED,
    config: ConfigOption = None,
) -> int:
    """
    Show lineages and gaps, confirmed and published positions, marks, parked aggregates.

    The state lives in Kafka, in the compacted topic PREFIX.relay-state, because the
    database may be the thing that was restored. The server's facts about the slot are
    shown too.

    - lineage: one unbroken history of the source's log; a new one means a gap.
    - confirmed: the LSN up to which Postgres may drop the log.
    - mark: the last record of each partition; positions rise within a partition.
    - parked: aggregates whose events wait behind a dead letter.

    Args:
        json: Print one JSON document.
        parked: How many parked aggregates are listed.
        config: Configuration file.
    """
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    document = state.show_state(_settings(config), parked)
    if json:
        print(json_text.dumps(document, indent=1))
    else:
        _print(document, Console())
    return 0


@state_app.command
def export(*, config: ConfigOption = None) -> int:
    """
    Print every record of the state topic as a line of JSON, oldest first.

    For support and for backups: {"offset", "timestamp_ms", "key", "value"}. The newest
    record of a key is valid; a null value deletes its key.

    Args:
        config: Configuration file.
    """
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    for record in state.export_state(_settings(config)):
        print(json_text.dumps(record, ensure_ascii=False))
    return 0


@state_app.command
def skip(
    lsn: str,
    /,
    *,
    undo: Annotated[bool, Parameter(negative="")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Write one transaction to the dead letters instead of publishing it.

    For a transaction that halts the relay at every start, while later ones must be
    published. It is named by the LSN of its commit (0/16B3748), or by the position of
    any of its records. A confirmed transaction cannot be skipped: Postgres has dropped
    its log.

    Args:
        lsn: The commit's LSN, or a position.
        undo: Cancel a skip that was not carried out yet.
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
    print(_SKIP_CONSEQUENCES.format(lsn=meant, dead=dead))
    if not yes and not _confirmed(meant):
        print("nothing was done")
        return 1
    state.request_skip(settings, state.resolve_skip(settings, lsn))
    print(f"the messages of {meant} will become dead letters")
    return 0


@state_app.command
def repair(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Rebuild the state from Kafka and the source.

    For a state topic that was lost, and for topics that were deleted, truncated,
    created again or given more partitions. A deleted topic is created again with its
    former partitions, a signal requests snapshots of tables whose records are lost, and
    added partitions are used from the next position on. The repair reads the ends of
    all topics of the relay, shows the new state, and writes it after a confirmation.
    The relay must not run.

    Args:
        dry_run: Show the new state, and write nothing.
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
    """Return whether a person types the word; a closed input counts as no."""
    try:
        return input(f"Type {word} to continue: ").strip() == word
    except EOFError:
        return False


def _settings(config: ConfigOption) -> "Settings":
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - keeps --help fast

    # Standard output is for the answer: log records of the client library go elsewhere.
    configure_logs()
    return read_settings(config)


def _print(document: dict[str, Any], console: Console) -> None:
    """Print the document as tables."""
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
    # A later gap has taken over the tables of an earlier one.
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
    """Return a value as plain text: its brackets are not markup."""
    return Text("" if value is None else str(value))


@outbox_app.command
def clean(
    *,
    keep_days: Annotated[NonNegativeFloat, Parameter(name="--keep-days")] = 7.0,
    wait_s: Annotated[NonNegativeFloat, Parameter(name="--wait")] = 60.0,
    days_ahead: NonNegativeInt = DAYS_AHEAD,
    former: Annotated[bool, Flag] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Remove events that every reader of the log has confirmed; safe at any time.

    Rows are deleted in small steps that skip locked rows. In a partitioned outbox,
    whole days are dropped and the partitions of the next days are created: run this
    command daily.

    Args:
        keep_days: Keep events younger than this.
        wait_s: The longest wait, in seconds, until the log is confirmed.
        days_ahead: Daily partitions to create beyond today's.
        former: Remove events from before the present lineage too, which may never have
            been published: after a lost slot, close the gap first.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.relay.commands import clean_outbox as cleaning  # noqa: PLC0415 - slow
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - as above

    configure_logs()
    rules = cleaning.CleaningRules(
        timedelta(days=keep_days), wait_s, days_ahead, keeps_former=not former
    )
    with _progress() as report:
        cleaned = cleaning.clean_outbox(read_settings(config), rules, report)
    document = cleaning.document(cleaned)
    if json:
        print(json_text.dumps(document, indent=1))
        return 0
    for name, value in document.items():
        text = ", ".join(value) or "none" if isinstance(value, list) else str(value)
        print(f"{name.replace('_', ' '):12} {text}")
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int, int], None]]:
    """Show pages, rate and time left on a terminal."""
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
