"""
The table of each captured name, as stored in ``towpath.captured``.

A dropped or renamed table leaves no trace in the log. The relay stores the oid of each
captured name and compares it with the catalog at each turn. The rows survive a restart,
so a table that was recreated while the relay was down is recognized.

==============  ======================================================================
``DROPPED``     the name no longer has a table
``RENAMED``     the table of the name now has a different name or schema
``RECREATED``   the name belongs to a different table
==============  ======================================================================

In a new lineage all oids may differ, as in a restored dump. Then they are stored again,
and a different oid does not mean ``RECREATED``: the plan of the gap reads all tables.

The columns of each table's key are stored too (``key_changes``).

``status`` and ``doctor`` report captured tables that are dropped or that snapshots
cannot read. A table is readable if ``tables.describe`` does not refuse it; one query
finds the tables that are clearly readable, so that only the others are described.
"""

import enum
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from towpath.relay.encode.notifications import TABLE_EVENT_PREFIX
from towpath.relay.postgres.catalog import key_columns_text, read_table_keys
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import ListedTable, list_tables, name_lists
from towpath.relay.postgres.tables import TableRefusedError, describe
from towpath.schemas.findings import CheckFinding, warning_finding
from towpath.schemas.table_name import TableName
from towpath.settings import OnDrop, Settings

_LOG = structlog.get_logger("towpath.relay.slot_monitor")

_KEPT: Final = (
    "topic and sinks keep the rows that were captured under this name; set on_drop = "
    '"truncate" in [[source]] to remove them, or request a snapshot with a sweep once '
    "a table has this name"
)
_EMPTIED: Final = "none is needed: topic and sinks receive the deletion of all its rows"
_SWEPT: Final = "none is needed: the new table's snapshot removes the old rows"


class TableEventKind(enum.StrEnum):
    """The kinds of events of a captured table."""

    DROPPED = "DROPPED"
    RENAMED = "RENAMED"
    RECREATED = "RECREATED"


class KnownTable(NamedTuple):
    """
    A captured name, its last table, and whether that table was dropped.

    ``key`` holds the columns of its key; None if an earlier release stored the row.
    """

    schema: str
    table: str
    oid: int
    lineage: int
    is_gone: bool
    key: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """The name, as ``schema.table``."""
        return TableName(self.schema, self.table).text


class CapturedNameChange(NamedTuple):
    """A captured name that lost its table; ``now`` is its current table, if any."""

    known: KnownTable
    event: TableEventKind
    now: ListedTable | None = None
    renamed_to: str | None = None


def captured_name_changes(
    known: Iterable[KnownTable],
    listed: Sequence[ListedTable],
    lineage: int,
    on_drop: OnDrop = OnDrop.KEEP,
) -> list[CapturedNameChange]:
    """
    Return the captured names that no longer belong to their table.

    If ``on_drop`` is truncate, the list includes names whose rows were kept until now.
    """
    by_name = {each.name: each for each in listed}
    by_oid = {each.oid: each.name for each in listed}
    found = []
    for each in known:
        now = by_name.get(each.name)
        if now is None:
            if not each.is_gone or on_drop is OnDrop.TRUNCATE:
                renamed_to = by_oid.get(each.oid)
                is_dropped = renamed_to is None
                event = TableEventKind.DROPPED if is_dropped else TableEventKind.RENAMED
                found.append(CapturedNameChange(each, event, None, renamed_to))
        elif now.is_published if each.is_gone else _is_different(now, each, lineage):
            found.append(
                CapturedNameChange(
                    each, TableEventKind.RECREATED, now, by_oid.get(each.oid)
                )
            )
    return found


def _is_different(now: ListedTable, known: KnownTable, lineage: int) -> bool:
    return now.oid != known.oid and known.lineage == lineage


class KnownTables:
    """The rows of one relay in ``towpath.captured``."""

    def __init__(self, settings: Settings, lineage: int) -> None:
        """
        Create the store.

        Args:
            settings: Identify the relay by its slot.
            lineage: The number of the current lineage.
        """
        self.lineage = lineage
        self._relay = settings.database.slot
        self._on_drop = settings.database.on_drop
        self._is_migrated = False

    def read(self, connection: Connection) -> dict[str, KnownTable]:
        """
        Return the rows by name; add the columns that an earlier release did not have.

        Raises:
            psycopg.Error: The connection is lost, or the role may not create the table.
        """
        if not self._is_migrated:
            missing = connection.execute(query("read_whether_captured_is_outdated"))
            if missing.fetchone() == (True,):
                connection.execute(query("create_captured_table"))
            self._is_migrated = True
        rows = connection.execute(query("read_known_tables"), {"relay": self._relay})
        found = (KnownTable(*row) for row in rows)
        return {each.name: each for each in found}

    def store(self, connection: Connection, oids: Iterable[int]) -> None:
        """Store tables under their current names."""
        keys = read_table_keys(connection, list(oids))
        if not keys:
            return
        wanted = {
            "relay": self._relay,
            "oids": [each.oid for each in keys],
            "keys": [json.dumps(each.key) for each in keys],
            "lineage": self.lineage,
        }
        connection.execute(query("store_known_tables"), wanted)

    def store_first_keys(self, connection: Connection) -> None:
        """Store the keys of tables that an earlier release captured."""
        known = self.read(connection).values()
        unknown = [each.oid for each in known if each.key is None]
        keys = read_table_keys(connection, unknown)
        if keys:
            wanted = {
                "relay": self._relay,
                "oids": [each.oid for each in keys],
                "keys": [json.dumps(each.key) for each in keys],
            }
            connection.execute(query("store_first_keys"), wanted)

    def store_changed_key(
        self, connection: Connection, known: KnownTable, key: Sequence[str]
    ) -> None:
        """Store a table's new key next to its former one."""
        names = self._names(known)
        changed = {**names, "oid": known.oid, "key": json.dumps(key)}
        connection.execute(query("store_changed_key"), changed)

    def forget(self, connection: Connection, known: KnownTable) -> None:
        """Delete a name that is no longer captured, or whose rows are deleted."""
        connection.execute(query("delete_known_table"), self._names(known))

    def outdated(
        self, known: Iterable[KnownTable], listed: Sequence[ListedTable]
    ) -> list[int]:
        """Return the current oids of names that were stored in another lineage."""
        by_name = {each.name: each.oid for each in listed}
        old = [each.name for each in known if each.lineage != self.lineage]
        return [by_name[name] for name in old if name in by_name]

    def publish(
        self, connection: Connection, change: CapturedNameChange, *, is_filled: bool
    ) -> None:
        """
        Store and publish that a name lost its table, in the caller's transaction.

        The event goes through the log, so that it follows every change to the former
        table.

        Args:
            connection: A connection to the source.
            change: The name, with its former and its current table.
            is_filled: Whether a snapshot with a sweep reads the name's current table.
        """
        known, empties = change.known, self._on_drop is OnDrop.TRUNCATE
        if empties:
            self._write(connection, change, remedy=_EMPTIED)
            self.forget(connection, known)
        elif not known.is_gone:
            is_swept = change.now is not None and is_filled
            remedy = _SWEPT if is_swept else _KEPT
            self._write(connection, change, remedy=remedy)
            connection.execute(query("mark_table_gone"), self._names(known))

    def empty(
        self, connection: Connection, known: KnownTable, now: ListedTable
    ) -> None:
        """Publish the deletion of a name's former rows, as no snapshot sweeps them."""
        change = CapturedNameChange(known, TableEventKind.RECREATED, now)
        if self._on_drop is OnDrop.KEEP:
            self._write(connection, change, remedy=_EMPTIED)

    def _write(
        self, connection: Connection, change: CapturedNameChange, *, remedy: str
    ) -> None:
        """Write an event into the WAL, and a log record."""
        known = change.known
        content = {
            "relay": self._relay,
            "event": change.event,
            "schema": known.schema,
            "table": known.table,
            "oid": known.oid,
            "renamed_to": change.renamed_to,
            "on_drop": self._on_drop,
            "empties": remedy == _EMPTIED,
            "is_swept": remedy == _SWEPT,
        }
        message = {"prefix": TABLE_EVENT_PREFIX, "content": json.dumps(content)}
        connection.execute(query("write_table_event"), message)
        _LOG.warning(
            f"table {change.event.lower()}",
            table=known.name,
            renamed_to=change.renamed_to,
            on_drop=str(self._on_drop),
            remedy=remedy,
        )

    def _names(self, known: KnownTable) -> Mapping[str, str]:
        names = {"schema_name": known.schema, "table_name": known.table}
        return {"relay": self._relay, **names}


class TableReport(NamedTuple):
    """
    Captured names that need the operator's attention.

    Attributes:
        dropped: Names without a table, whose rows are kept in topic and sinks.
        unreadable: The reason why snapshots cannot read a table, by name.
        changed_keys: The former and the current key of a table, by name.
    """

    dropped: tuple[str, ...]
    unreadable: Mapping[str, str]
    changed_keys: Mapping[str, str] = MappingProxyType({})

    def findings(self) -> Iterator[CheckFinding]:
        """Return a warning for each table."""
        for name in self.dropped:
            yield warning_finding(
                "table-dropped",
                f"{name}: the captured table was dropped or renamed",
                "topic and sinks keep the rows that were captured under this name",
                'set on_drop = "truncate" in [[source]] and start the relay again, or '
                "remove the name from [source] tables",
            )
        for name, change in self.changed_keys.items():
            yield warning_finding(
                "table-key-changed",
                f"{name}: the key changed {change}",
                "topic and sinks keep rows under the former key",
                "request a snapshot of the table with a sweep (towpath snapshot start "
                "--sweep), or wait for the running one",
            )
        for name, reason in self.unreadable.items():
            yield warning_finding(
                "table-unreadable",
                f"{name}: snapshots cannot read it: {reason}",
                "rows from before its capture are in no topic and no sink",
                "change the table as the reason says, then run towpath snapshot start",
            )


def report_tables(connection: Connection, settings: Settings) -> TableReport:
    """
    Report all captured tables.

    Raises:
        SourceUnavailableError: The connection is lost.
    """
    listed = list_tables(connection, settings)
    includes = settings.capture.includes
    captured = [
        each.name for each in listed if each.is_published and includes(each.name)
    ]
    with translated_errors("checking captured tables"):
        return TableReport(
            dropped=_dropped(connection, settings),
            unreadable=unreadable_tables(
                connection, captured, settings.database.publication
            ),
            changed_keys=_changed_keys(connection, settings),
        )


def unreadable_tables(
    connection: Connection, names: Sequence[str], publication: str
) -> dict[str, str]:
    """
    Return the tables that snapshots cannot read, with the reason.

    Raises:
        psycopg.Error: The connection is lost.
    """
    wanted = {**name_lists(names), "publication": publication}
    found = {}
    for row in connection.execute(query("read_unclear_tables"), wanted).fetchall():
        name = TableName(*row).text
        try:
            describe(connection, name, publication)
        except TableRefusedError as refused:
            found[name] = str(refused)
    return found


def _changed_keys(connection: Connection, settings: Settings) -> dict[str, str]:
    """Return the key changes that no sweep of the table has followed."""
    outdated = connection.execute(query("read_whether_captured_is_outdated")).fetchone()
    if outdated == (True,):
        return {}
    parameters = {"relay": settings.database.slot}
    rows = connection.execute(query("read_changed_keys"), parameters).fetchall()
    found = {}
    for schema, table, former, key, swept in rows:
        name = TableName(schema, table).text
        if name not in swept:
            found[name] = f"from {key_columns_text(former)} to {key_columns_text(key)}"
    return found


def _dropped(connection: Connection, settings: Settings) -> tuple[str, ...]:
    missing = connection.execute(query("read_whether_captured_is_missing")).fetchone()
    if missing == (True,):
        return ()
    parameters = {"relay": settings.database.slot}
    rows = connection.execute(query("read_dropped_tables"), parameters).fetchall()
    return tuple(TableName(*row).text for row in rows)
