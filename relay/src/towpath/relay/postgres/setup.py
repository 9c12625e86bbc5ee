"""
``relay init``: read the facts, plan, run; a second run has an empty plan.

The plan is pure: facts about the server in, statements out, so that ``--dry-run``
prints exactly the statements of a run. The slot comes last: publications committed
before it exist at every position that it will ever stream. If the first snapshot is
read from the slot's exported snapshot, the relay creates the slot itself.

The tables of an existing publication are brought into line with the configuration. Its
column lists, row filters, schemas and operations belong to its owner. The outbox's
publication sends only the operations that ``on_update`` needs.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import psycopg

from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres import preflight
from towpath.relay.postgres.capture_checks import (
    PUBLISHES_GENERATED_SINCE,
    tables_to_capture,
)
from towpath.relay.postgres.connect import Connection, quoted, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.relays import assignment_statement, registration_statement
from towpath.relay.postgres.slot import (
    SLOT_TIMEOUT,
    blocking_transactions,
    slot_statement,
)
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    PublicationFacts,
    SourceFacts,
    read_source_facts,
)
from towpath.schemas import source_tables
from towpath.schemas.findings import CheckFinding, Severity, blocking_findings
from towpath.schemas.table_name import TableName
from towpath.settings import OnUpdate, Outbox, Settings

__all__ = [
    "SetupStep",
    "check_source",
    "check_version",
    "plan_setup",
    "read_source_facts",
    "run_setup",
    "setup_notes",
    "source_warnings",
]

_ALWAYS_OURS: Final = frozenset(OWN_TABLES) - {"towpath.outbox"}
_SIGNAL_TABLE: Final = "towpath.signal"


class SetupStep(NamedTuple):
    """One statement and its purpose."""

    purpose: str
    statement: str


class _SentOperations(NamedTuple):
    """The operations that a publication sends."""

    text: str
    operations: tuple[bool, bool, bool, bool]


_ALL: Final = _SentOperations("insert, update, delete, truncate", (True,) * 4)
_INSERTS: Final = _SentOperations("insert", (True, False, False, False))
_UPDATES: Final = _SentOperations("insert, update", (True, True, False, False))


def check_version(version: int) -> None:
    """
    Check that a server is not too old to be examined.

    Raises:
        NotPreparedError: The server is too old.
    """
    for finding in preflight.version_findings(version):
        raise NotPreparedError(str(finding))


def check_source(facts: SourceFacts, settings: Settings) -> None:
    """
    Check that the source can be captured.

    Raises:
        NotPreparedError: The source cannot be captured; each reason is listed with its
            remedy.
    """
    problems = blocking_findings(list(preflight.capture_findings(facts, settings)))
    if problems:
        raise NotPreparedError("\n".join(map(str, problems)))


def source_warnings(facts: SourceFacts, settings: Settings) -> list[CheckFinding]:
    """Return the warnings about the source."""
    findings = preflight.capture_findings(facts, settings)
    return [finding for finding in findings if finding.level is Severity.WARNING]


def plan_setup(facts: SourceFacts, settings: Settings) -> list[SetupStep]:
    """
    Return the missing steps, in order; none if the source is prepared.

    Raises:
        NotPreparedError: A publication is for all tables, or the slot is not ours.
    """
    source, outbox = settings.database, settings.relay.outbox
    sends_updates = outbox.on_update is not OnUpdate.WARN
    outbox_sending = _UPDATES if sends_updates else _INSERTS
    tables = _published_tables(facts, settings)
    return [
        *_table_steps(facts, outbox),
        *_relay_steps(facts, settings),
        *_publication_steps(facts, source.publication, tables, _ALL),
        *_publication_steps(
            facts, source.outbox_publication, (outbox.table,), outbox_sending
        ),
        *_sending_steps(facts, source.outbox_publication, outbox_sending),
        *_slot_steps(facts, settings),
    ]


def setup_notes(facts: SourceFacts, settings: Settings) -> list[str]:
    """Return notes for the operator on the steps that are not in the plan."""
    found = []
    if preflight.relay_creates_slot(facts, settings):
        found.append(
            f"slot {settings.database.slot} is created by towpath relay run, together "
            "with the exported snapshot that its first snapshot reads"
        )
    relays, slot = facts.relays, settings.database.slot
    if relays.has_unassigned and not relays.takes_over(
        slot, has_slot=facts.slot is not None
    ):
        found.append(
            "signals or snapshots have no relay yet: to assign them, run towpath relay "
            "init with the configuration of the relay that stored them"
        )
    by_relay = _captured_by_relay(facts, settings)
    if by_relay:
        found.append(
            f"{', '.join(by_relay)}: towpath relay run captures these, and reads their "
            "rows"
        )
    return found


def run_setup(connection: Connection, steps: Iterable[SetupStep]) -> None:
    """
    Run each statement in its own transaction.

    Raises:
        SourceRefusedError: The server refuses a statement; earlier steps remain in
            effect.
        NotPreparedError: A statement timed out while waiting for a transaction or a
            lock.
        SourceUnavailableError: The connection is lost.
    """
    with translated_errors("setting the statement timeout"):
        connection.execute(SLOT_TIMEOUT)
    try:
        for step in steps:
            with translated_errors(step.purpose):
                try:
                    connection.execute(step.statement.encode())
                except psycopg.errors.QueryCanceled as error:
                    raise _blocked_by(connection, step) from error
    finally:
        if not connection.closed:
            connection.execute(b"set statement_timeout = 0")


def _blocked_by(connection: Connection, step: SetupStep) -> NotPreparedError:
    """Return the error that names the transactions that block a statement."""
    names = ", ".join(blocking_transactions(connection))
    reason = "no older transaction is open: look for a lock in pg_locks, or try again"
    if names:
        reason = (
            f"it waited for the older transactions {names}. End them, or use "
            "pg_terminate_backend(pid) or ROLLBACK PREPARED"
        )
    return NotPreparedError(f"{step.purpose} timed out: {reason}")


def _published_tables(facts: SourceFacts, settings: Settings) -> tuple[str, ...]:
    by_relay = _captured_by_relay(facts, settings)
    wanted = tables_to_capture(facts, settings)
    captured = [each for each in wanted if each not in by_relay]
    signals = (_SIGNAL_TABLE, settings.relay.snapshot.signal_table)
    return tuple(dict.fromkeys([*captured, *filter(None, signals)]))


def _captured_by_relay(facts: SourceFacts, settings: Settings) -> list[str]:
    """
    Return the newly matched tables that are left to a relay that has already run.

    Their existing rows are in no topic; the relay requests these rows on capture.
    """
    publication = facts.publications.get(settings.database.publication)
    fills_tables = facts.has_run and settings.relay.snapshot.fill_new_tables
    if publication is None or not fills_tables:
        return []
    return [
        name
        for name in tables_to_capture(facts, settings)
        if name not in settings.capture.names and not publication.covers(name)
    ]


def _table_steps(facts: SourceFacts, outbox: Outbox) -> Iterable[SetupStep]:
    """Yield the steps that create missing tables, but no outbox with a custom name."""
    missing = [
        name
        for name in OWN_TABLES
        if name not in facts.own_tables and name in {outbox.table, *_ALWAYS_OURS}
    ]
    if missing:
        yield SetupStep("creating schema towpath", source_tables.schema_statement())
    for name in missing:
        yield SetupStep(f"creating table {name}", _create_statement(name, outbox))


def _create_statement(name: str, outbox: Outbox) -> str:
    """Return the SQL that creates one of the relay's tables, or upgrades it."""
    shared = {
        source_tables.OUTBOX: source_tables.outbox(
            outbox.table, outbox.columns.model_dump()
        ),
        source_tables.SIGNAL: source_tables.signal(),
        source_tables.HEARTBEAT: source_tables.heartbeat(),
    }
    if name not in shared:
        table = TableName.parse(name).table
        return query(f"create_{table}_table").decode()
    statements = [shared[name].create_statement(), *shared[name].upgrade_statements()]
    return ";\n".join(statements)


def _relay_steps(facts: SourceFacts, settings: Settings) -> Iterable[SetupStep]:
    """Yield the steps that register the relay, and assign rows without a relay."""
    source, relays, has_slot = settings.database, facts.relays, facts.slot is not None
    if source.slot not in relays.numbers:
        number = relays.number_of(source.slot, has_slot=has_slot)
        yield SetupStep(
            f"registering relay {source.slot}",
            registration_statement(source.slot, number, source.prefix),
        )
    if relays.has_unassigned and relays.takes_over(source.slot, has_slot=has_slot):
        yield SetupStep(
            f"assigning signals and snapshots without a relay to {source.slot}",
            assignment_statement(source.slot),
        )


def _publication_steps(
    facts: SourceFacts, name: str, tables: Sequence[str], sending: _SentOperations
) -> Iterable[SetupStep]:
    """Yield the steps that create a publication, or add and drop its tables."""
    existing = facts.publications.get(name)
    if existing is None:
        options = f"publish = '{sending.text}', publish_via_partition_root = true"
        yield SetupStep(
            f"creating publication {name}",
            f"create publication {quoted(name)} for table {_listed(tables)} "
            f"with ({options}{_generated(facts)})",
        )
        return
    if existing.is_for_all:
        reason = (
            f"publication {name} is for all tables, even those not configured: "
            f"run DROP PUBLICATION {quoted(name)} and init again, or configure another "
            "publication"
        )
        raise NotPreparedError(reason)
    purpose = f"updating publication {name}"
    missing = [table for table in tables if not existing.covers(table)]
    surplus = sorted(existing.tables.keys() - set(tables))
    if missing:
        yield SetupStep(
            purpose, f"alter publication {quoted(name)} add table {_listed(missing)}"
        )
    if surplus:
        yield SetupStep(
            purpose, f"alter publication {quoted(name)} drop table {_listed(surplus)}"
        )


def _generated(facts: SourceFacts) -> str:
    """Return the option that sends stored generated columns, if the server has it."""
    can_send = facts.server.version >= PUBLISHES_GENERATED_SINCE
    return ", publish_generated_columns = stored" if can_send else ""


def _sending_steps(
    facts: SourceFacts, name: str, sending: _SentOperations
) -> Iterable[SetupStep]:
    """Yield the step that changes the operations of an existing outbox publication."""
    existing: PublicationFacts | None = facts.publications.get(name)
    if existing is not None and existing.operations != sending.operations:
        yield SetupStep(
            f"updating publication {name}",
            f"alter publication {quoted(name)} set (publish = '{sending.text}')",
        )


def _slot_steps(facts: SourceFacts, settings: Settings) -> Iterable[SetupStep]:
    slot = settings.database.slot
    if preflight.relay_creates_slot(facts, settings):
        return
    if facts.slot is None:
        yield SetupStep(
            f"creating slot {slot}", slot_statement(slot, facts.server.version)
        )
    elif not facts.slot.is_ours:
        reason = f"slot {slot} is {facts.slot.kind}: choose another name"
        raise NotPreparedError(reason)


def _listed(tables: Sequence[str]) -> str:
    # Without ONLY, a publication also gets the tables that inherit from those listed.
    return ", ".join(f"only {TableName.parse(table).sql}" for table in tables)
