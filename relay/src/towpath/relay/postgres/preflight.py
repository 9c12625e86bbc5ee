"""
Checks of the source; each finding states its effect and its remedy.

``capture_findings`` are the checks of ``relay init``; ``running_findings`` are those of
a prepared source. ``rights_findings`` lists the rights in docs/rights.md that the
relay's role lacks.
"""

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final

from towpath.relay.errors import SourceRefusedError, SourceUnavailableError
from towpath.relay.postgres.capture_checks import (
    capture_list_findings,
    publish_again,
    topic_problems,
)
from towpath.relay.postgres.connect import (
    Connection,
    connect,
    quoted,
    translated_errors,
)
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.relays import RELAY_TABLE
from towpath.relay.postgres.slot import age_text
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    PublishedTable,
    SourceFacts,
    missing_table_text,
)
from towpath.relay.recovery.backfill import MAKES_SLOT
from towpath.schemas.failure import TowpathError
from towpath.schemas.findings import (
    CheckFinding,
    SqlFix,
    error_finding,
    warning_finding,
)
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_OLDEST_VERSION: Final = 150000
_UNBOUNDED: Final = -1
_DEFAULT_DECODING_KIBIBYTES: Final = 65536
_OPERATIONS: Final = ("insert", "update", "delete", "truncate")
_LETTERS: Final = MappingProxyType(
    {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}
)
_SIGNAL_TABLE: Final = "towpath.signal"
# A transaction of this age is not ordinary application traffic.
_OLD_TRANSACTION_S: Final = 300.0


def version_findings(version: int) -> Iterator[CheckFinding]:
    """Yield an error if the server is too old; other checks then lack facts."""
    if version < _OLDEST_VERSION:
        yield error_finding(
            "postgres-version",
            f"the server's version is {version}",
            "the relay uses publication features of version 15",
            "upgrade the server to 15 or later",
        )


def capture_findings(facts: SourceFacts, settings: Settings) -> list[CheckFinding]:
    """Return the problems that prevent, or may prevent, capturing configured tables."""
    return [
        *_server_findings(facts),
        *capture_list_findings(facts, settings),
        *topic_problems(facts, settings),
        *_publication_findings(facts, settings),
    ]


def running_findings(facts: SourceFacts, settings: Settings) -> list[CheckFinding]:
    """Return the missing steps of ``relay init``, and risks for a running relay."""
    return [
        *_prepared_findings(facts, settings),
        *_slot_findings(facts, settings),
        *_capacity_findings(facts),
        *_limit_findings(facts),
        *_old_findings(facts),
    ]


def relay_creates_slot(facts: SourceFacts, settings: Settings) -> bool:
    """Return whether the relay itself creates the slot, for its first snapshot."""
    is_first = facts.slot is None and not facts.has_run
    return is_first and settings.relay.snapshot.mode in MAKES_SLOT


def replication_findings(dsn: str) -> list[CheckFinding]:
    """Try a connection in replication mode, which a pooler does not support."""
    try:
        connection = connect(dsn, replication=True)
        # A pooler that ignores the parameter opens an ordinary connection.
        with connection, translated_errors("identifying the system"):
            connection.execute(b"IDENTIFY_SYSTEM")
    except (SourceUnavailableError, SourceRefusedError) as refused:
        return [_refused_replication(refused)]
    return []


def _refused_replication(refused: TowpathError) -> CheckFinding:
    return error_finding(
        "postgres-replication-connection",
        f"no replication connection ({refused})",
        "ordinary connections work, but the log is streamed over a replication "
        "connection",
        "point [source] dsn at the server itself, not at PgBouncer or another "
        "pooler; grant the role REPLICATION and allow it in pg_hba.conf",
    )


def _server_findings(facts: SourceFacts) -> Iterator[CheckFinding]:
    server = facts.server
    if server.is_standby:
        yield error_finding(
            "postgres-standby",
            "the server is a standby",
            "slot, heartbeats and signals are written on a primary only",
            "point [source] dsn at the primary, or run pg_ctl promote",
        )
    if server.wal_level != "logical":
        yield error_finding(
            "postgres-wal-level",
            f"wal_level is {server.wal_level}",
            "the log has no row changes",
            "run ALTER SYSTEM SET wal_level = 'logical' and restart the server",
        )
    if server.encoding != "UTF8":
        yield error_finding(
            "postgres-encoding",
            f"the database's encoding is {server.encoding}",
            "records are UTF-8, and some characters could not be converted",
            "dump the database and restore it into one with encoding UTF8",
        )
    if not server.may_replicate:
        yield error_finding(
            "postgres-role-replication",
            "the role may not replicate",
            "the slot cannot be created or read",
            "run ALTER ROLE CURRENT_USER REPLICATION as a superuser",
        )


def _publication_findings(
    facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield warnings about changes that an existing publication does not send."""
    name = settings.database.publication
    publication = facts.publications.get(name)
    if publication is None:
        return
    skipped = settings.relay.rows.skipped_operations
    silent = [
        operation
        for operation, is_sent in zip(_OPERATIONS, publication.operations, strict=True)
        if not is_sent and _LETTERS[operation] not in skipped
    ]
    if silent:
        yield warning_finding(
            "publication-operations",
            f"publication {name} does not send {', '.join(silent)}",
            "these changes would reach no topic and no sink",
            SqlFix(
                f"ALTER PUBLICATION {quoted(name)} SET (publish = "
                "'insert, update, delete, truncate')"
            ),
        )
    for table, published in publication.tables.items():
        if published.row_filter is not None and settings.capture.includes(table):
            yield _row_filter_finding(name, table, published)
    for schema in sorted(publication.schemas):
        yield warning_finding(
            "publication-schema",
            f"publication {name} sends all of schema {schema}",
            "tables that are not configured are streamed too",
            f"ALTER PUBLICATION {quoted(name)} DROP TABLES IN SCHEMA {quoted(schema)}",
        )


def _row_filter_finding(
    name: str, table: str, published: PublishedTable
) -> CheckFinding:
    return warning_finding(
        "publication-row-filter",
        f"publication {name} filters the rows of {table}",
        "sinks and snapshots lack the other rows, and verify reports them",
        publish_again(name, table, published._replace(row_filter=None)),
    )


def _prepared_findings(
    facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield an error for each missing step of ``relay init``."""
    source, outbox = settings.database, settings.relay.outbox.table
    init = "run towpath relay init"
    for name in (source.publication, source.outbox_publication):
        if name not in facts.publications:
            yield error_finding(
                "publication-missing",
                f"publication {name} is missing",
                "nothing is sent",
                init,
            )
    signals = filter(None, (_SIGNAL_TABLE, settings.relay.snapshot.signal_table))
    unsent = "its changes are not sent"
    unseen = "signals that are inserted there are not seen"
    for publication, table, why in (
        *((source.publication, each, unsent) for each in settings.capture.names),
        *((source.publication, each, unseen) for each in signals),
        (source.outbox_publication, outbox, unsent),
    ):
        existing = facts.publications.get(publication)
        if existing is not None and not existing.covers(table):
            yield error_finding(
                "publication-table-missing",
                f"publication {publication} does not include {table}",
                why,
                init,
            )
    own = (_SIGNAL_TABLE, "towpath.snapshot", "towpath.heartbeat", RELAY_TABLE, outbox)
    for name in own:
        if name not in facts.own_tables:
            what = missing_table_text(name)
            yield error_finding("own-table-missing", what, "the relay needs it", init)
    if source.slot not in facts.relays.numbers:
        what = f"the relay {source.slot} is not registered in {RELAY_TABLE}"
        yield error_finding("relay-unregistered", what, "it cannot start", init)


def _slot_findings(facts: SourceFacts, settings: Settings) -> Iterator[CheckFinding]:
    slot = settings.database.slot
    if relay_creates_slot(facts, settings):
        return
    if facts.slot is None:
        yield error_finding(
            "slot-missing",
            f"slot {slot} is missing",
            "the server keeps no log for the relay",
            "run towpath relay init",
        )
    elif not facts.slot.is_ours:
        what = f"slot {slot} is {facts.slot.kind}"
        yield error_finding(
            "slot-foreign",
            what,
            "this relay cannot use it",
            "choose another name in [source] slot",
        )
    elif facts.slot.is_lost:
        cause = facts.slot.invalidation_reason or "max_slot_wal_keep_size"
        yield error_finding(
            "slot-lost",
            f"slot {slot} has lost part of the log that it needed ({cause})",
            "changes are missing, and a new lineage begins at the next start",
            "raise max_slot_wal_keep_size (or idle_replication_slot_timeout, for "
            'idle_timeout), then start the relay with relay.on_gap = "snapshot"',
        )


def _capacity_findings(facts: SourceFacts) -> Iterator[CheckFinding]:
    server = facts.server
    if facts.slot is None and server.slots >= server.max_slots:
        yield error_finding(
            "postgres-slots-taken",
            f"all {server.max_slots} replication slots are taken",
            "the relay's slot cannot be created",
            f"ALTER SYSTEM SET max_replication_slots = {server.max_slots + 5} and "
            "restart the server, or drop an unused slot",
        )
    is_following = facts.slot is not None and facts.slot.is_active
    if not is_following and server.senders >= server.max_senders:
        yield error_finding(
            "postgres-senders-taken",
            f"all {server.max_senders} WAL senders are in use",
            "the stream cannot be opened",
            f"ALTER SYSTEM SET max_wal_senders = {server.max_senders + 5} and "
            "restart the server",
        )


def _limit_findings(facts: SourceFacts) -> Iterator[CheckFinding]:
    server = facts.server
    if server.keep_mebibytes == _UNBOUNDED:
        yield warning_finding(
            "postgres-wal-unbounded",
            "max_slot_wal_keep_size is -1",
            "while a relay is down, its retained log can fill the disk",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()",
        )
    if server.decoding_kibibytes < _DEFAULT_DECODING_KIBIBYTES:
        yield warning_finding(
            "postgres-decoding-memory",
            f"logical_decoding_work_mem is {server.decoding_kibibytes} kB",
            "large transactions spill to disk and arrive late",
            "ALTER SYSTEM SET logical_decoding_work_mem = '64MB'; "
            "SELECT pg_reload_conf()",
        )


def _old_findings(facts: SourceFacts) -> Iterable[CheckFinding]:
    for who, application, age_s in facts.old_transactions:
        is_prepared = who.startswith("prepared ")
        prepared = who.removeprefix("prepared ").replace("'", "''")
        # A hidden age is not a reason for a warning.
        is_old = age_s is not None and age_s >= _OLD_TRANSACTION_S
        if is_old or (is_prepared and facts.slot is None):
            yield warning_finding(
                "transaction-old",
                f"transaction of {who} ({application}) has been open for "
                f"{age_text(age_s)}",
                "creating a slot waits for it, and it retains log and dead rows",
                f"ROLLBACK PREPARED '{prepared}'"
                if is_prepared
                else f"SELECT pg_terminate_backend({who})",
            )


# The relay reads the outbox only from the log.
_OUTBOX: Final = "towpath.outbox"
_WRITE: Final = ("select", "insert", "update", "delete")


def rights_findings(connection: Connection) -> Iterator[CheckFinding]:
    """
    Yield the rights that the role lacks on the relay's own tables and schema.

    ``report_tables`` covers captured tables.

    Raises:
        psycopg.Error: The connection is lost.
    """
    wanted = [
        (TableName.parse(table), right)
        for table in OWN_TABLES
        if table != _OUTBOX
        for right in (_WRITE if table != RELAY_TABLE else ("select",))
    ]
    fields = {
        "schemas": [name.schema for name, _ in wanted],
        "tables": [name.table for name, _ in wanted],
        "rights": [right for _, right in wanted],
    }
    role = connection.info.user
    lacking = connection.execute(query("missing_rights"), fields).fetchall()
    for rights, schema, table in lacking:
        on = TableName(schema, table).sql if table else f"schema {quoted(schema)}"
        yield error_finding(
            "postgres-rights",
            f"the role {role} lacks {rights} on {on}",
            "the relay halts when it needs them; docs/rights.md lists all rights",
            f"run as the owner: GRANT {rights} ON {on} TO {quoted(role)}",
        )
