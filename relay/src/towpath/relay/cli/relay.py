"""``towpath relay init | run | status | state ...`` and ``towpath outbox clean``."""

import gc
import json as json_text
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt
from cyclopts.validators import Number

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

app = App(name="relay", help="Set up the source; run the relay; show its status.")
state_app = App(
    name="state",
    help="Show or export the relay's state, skip a transaction, or repair the state.",
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
    Create the schema, tables, publications and slot in the source; safe to repeat.

    Args:
        dry_run: Print the statements instead of running them.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast

    return relay.init(config_file(config), dry_run)


def import_run() -> Callable[[Path], int]:
    """Import the relay's process, compiled if possible; return its ``run``."""
    from towpath.relay.commands import compiled  # noqa: PLC0415 - keeps --help fast

    # Imports leave no garbage to collect.
    gc.disable()
    try:
        _import_structlog()
        compiled.import_modules(os.environ)  # noqa: TID251 - where a process begins
        import towpath.relay.__main__ as relay  # noqa: PLC0415 - after these modules
    finally:
        gc.enable()
    return relay.run


def _import_structlog() -> None:
    """
    Import structlog as if rich were not installed.

    Otherwise, structlog would import rich for tracebacks, which no log record has: that
    would cost 11 MB of memory and a tenth of the CPU time of a start.
    """
    if "rich" in sys.modules:
        return
    # With this entry, an import of the module fails.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        del sys.modules["rich"]


@app.command
def run(*, config: ConfigOption = None) -> int:
    """
    Follow the log and publish to Kafka until stopped.

    Args:
        config: Configuration file.
    """
    return import_run()(config_file(config))


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
    if no relay is consuming the slot.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - keeps --help fast

    # Only the result goes to standard output; log records go to standard error.
    configure_logs()
    return relay.status(config_file(config), json)


YesOption = Annotated[
    bool,
    Parameter(
        name="--yes", negative="", help="Do not ask for confirmation; for scripts."
    ),
]

_SHOWN_PARKED: Final = 20


@state_app.command
def show(
    *,
    json: JsonOption = False,
    parked: NonNegativeInt = _SHOWN_PARKED,
    config: ConfigOption = None,
) -> int:
    """
    Show lineages, gaps, confirmed and published positions, marks and parked aggregates.

    The state lives in Kafka, in the compacted topic PREFIX.relay-state, because the
    database itself may have been restored from a backup. The server's facts about the
    slot are shown, too.

    - lineage: one unbroken history of the source's log; a new one means a gap.
    - confirmed: the LSN up to which Postgres may drop the log.
    - mark: the last record of each partition; positions rise within a partition.
    - parked: aggregates whose events wait behind a dead letter.

    Args:
        json: Print one JSON document.
        parked: The number of parked aggregates to list.
        config: Configuration file.
    """
    from towpath.relay.cli import printing  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    document = state.show_state(_settings(config), parked)
    if json:
        print(json_text.dumps(document, indent=1))
    else:
        printing.print_state(document)
    return 0


@state_app.command
def export(*, config: ConfigOption = None) -> int:
    """
    Print every record of the state topic as a line of JSON, oldest first.

    For support and for backups: {"offset", "timestamp_ms", "key", "value"}. The newest
    record of a key is valid; a null value deletes its key. A value that is not JSON is
    in "value_base64" instead.

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

    Skip a transaction if it halts the relay at every start, but later ones must be
    published. Name it by the LSN of its commit (0/16B3748), or by the position of any
    of its records. A confirmed transaction cannot be skipped: Postgres never streams it
    again.

    Args:
        lsn: The commit's LSN, or a position.
        undo: Cancel a skip that has not been carried out yet.
        yes: Do not ask for confirmation; for scripts.
        config: Configuration file.
    """
    from towpath.relay.cli import printing  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.commands import state  # noqa: PLC0415 - keeps --help fast

    settings = _settings(config)
    if undo:
        print(f"{state.cancel_skip(settings, lsn)} will be published")
        return 0
    meant = format_lsn(state.resolve_skip(settings, lsn))
    dead = f"{settings.database.prefix}.dead.relay"
    printing.print_skip(meant, dead)
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

    Run a repair if the state topic was lost, or if topics were deleted, truncated,
    created again or given more partitions. A deleted topic is created again with its
    former partition count, a signal requests snapshots of tables whose records are
    lost, and added partitions are used from the next position on. The repair reads the
    ends of all topics of the relay, shows the new state, and writes it after a
    confirmation. The relay must not be running.

    Args:
        dry_run: Show the new state, and write nothing.
        yes: Do not ask for confirmation; for scripts.
        config: Configuration file.
    """
    from towpath.relay.cli import printing  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.commands import repair  # noqa: PLC0415 - keeps --help fast

    settings = _settings(config)
    planned = repair.prepare_repair(settings)
    printing.print_repair(planned.documents, planned.notes)
    if dry_run:
        return 0
    if not yes and not _confirmed("repair"):
        print("nothing was done")
        return 1
    repair.apply_repair(settings, planned)
    print("the state is repaired: start the relay")
    return 0


def _confirmed(word: str) -> bool:
    """Return whether the user types the word; a closed input counts as no."""
    try:
        return input(f"Type {word} to continue: ").strip() == word
    except EOFError:
        return False


def _settings(config: ConfigOption) -> "Settings":
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - keeps --help fast

    # Only the result goes to standard output; log records go to standard error.
    configure_logs()
    return read_settings(config)


# A century: a date this many days ago must still be after the year 1.
_MAX_KEEP_DAYS: Final = 36_500

# A year: each day is a table, and a query on the outbox plans all of them.
_MAX_DAYS_AHEAD: Final = 366

KeepOption = Annotated[
    float,
    Parameter(name="--keep-days", validator=Number(gte=0, lte=_MAX_KEEP_DAYS)),
]
DaysAheadOption = Annotated[
    int, Parameter(validator=Number(gte=0, lte=_MAX_DAYS_AHEAD))
]


@outbox_app.command
def clean(
    *,
    keep_days: KeepOption = 7.0,
    wait_s: Annotated[NonNegativeFloat, Parameter(name="--wait")] = 60.0,
    days_ahead: DaysAheadOption = DAYS_AHEAD,
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
        wait_s: The longest time, in seconds, to wait until the log is confirmed.
        days_ahead: Daily partitions to create beyond today's, at most 366.
        former: Also remove events from before the current lineage, which may never have
            been published: after a lost slot, close the gap first.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.relay.cli import printing  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.commands import clean_outbox as cleaning  # noqa: PLC0415 - slow
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - as above

    configure_logs()
    rules = cleaning.CleaningRules(
        timedelta(days=keep_days), wait_s, days_ahead, keeps_former=not former
    )
    with printing.cleaning_progress() as report:
        cleaned = cleaning.clean_outbox(read_settings(config), rules, report)
    document = cleaning.document(cleaned)
    if json:
        print(json_text.dumps(document, indent=1))
        return 0
    printing.print_cleaned(document)
    return 0
