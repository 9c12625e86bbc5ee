"""The catalog's facts about the source, as plain values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.relays import RELAY_TABLE, RelayFacts, read_relays
from towpath.relay.postgres.slot import read_slot
from towpath.relay.recovery.lineage import SlotHistory
from towpath.schemas import source_tables
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

OWN_TABLES: Final = (
    source_tables.OUTBOX,
    source_tables.SIGNAL,
    "towpath.snapshot",
    source_tables.HEARTBEAT,
    "towpath.captured",
    RELAY_TABLE,
)


def missing_table_text(table: str) -> str:
    """Return the text with which checks report a missing table of the relay."""
    return f"table {table} is missing, or from an earlier release"


class MemberFacts(NamedTuple):
    """
    A relation with rows: a table itself, or a leaf of a partitioned one.

    ``identity_columns`` are those of its replica identity; empty for FULL and NOTHING.
    """

    name: str
    persistence: str
    identity: str
    identity_columns: frozenset[str]


class TableFacts(NamedTuple):
    """Facts for capturing a table; ``stored`` and ``virtual`` are generated columns."""

    kind: str
    has_row_security: bool
    key: tuple[str, ...]
    unstable_key: tuple[str, ...]
    members: tuple[MemberFacts, ...]
    stored: frozenset[str] = frozenset()
    virtual: frozenset[str] = frozenset()


class PublishedTable(NamedTuple):
    """A table in a publication: its column list and its row filter, if any."""

    columns: frozenset[str] | None = None
    row_filter: str | None = None


class PublicationFacts(NamedTuple):
    """The operations and tables that a publication sends."""

    is_for_all: bool
    operations: tuple[bool, bool, bool, bool]
    via_root: bool
    tables: Mapping[str, PublishedTable]
    schemas: frozenset[str] = frozenset()
    sends_stored: bool = False

    @property
    def sends_old_rows(self) -> bool:
        """Whether updates or deletes are sent, which must identify their rows."""
        return self.operations[1] or self.operations[2]

    def covers(self, table: str) -> bool:
        """Return whether the table is sent, by itself or as part of its schema."""
        return (
            self.is_for_all
            or table in self.tables
            or TableName.parse(table).schema in self.schemas
        )


class ListedTable(NamedTuple):
    """A table's name and oid, and whether the publication sends it."""

    name: str
    oid: int
    is_published: bool


class ServerFacts(NamedTuple):
    """The server, its settings, and its slots and senders in use."""

    version: int
    wal_level: str
    encoding: str
    is_standby: bool = False
    may_replicate: bool = True
    max_slots: int = 10
    slots: int = 0
    max_senders: int = 10
    senders: int = 0
    keep_mebibytes: int = -1
    decoding_kibibytes: int = 65536
    now: datetime | None = None


class OldTransaction(NamedTuple):
    """A transaction that blocks a slot's creation; ``age_s`` is None if hidden."""

    who: str
    application: str
    age_s: float | None


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """
    The source's facts, as checks and ``relay init`` read them.

    ``tables`` are those that the configuration names or its patterns match.
    ``has_run`` is true if this relay has followed this database before; ``relays`` are
    the registered relays.
    """

    server: ServerFacts
    own_tables: frozenset[str]
    tables: Mapping[str, TableFacts]
    publications: Mapping[str, PublicationFacts]
    slot: SlotHistory | None
    old_transactions: Sequence[OldTransaction] = ()
    has_run: bool = False
    relays: RelayFacts = field(default_factory=RelayFacts)


def list_tables(connection: Connection, settings: Settings) -> list[ListedTable]:
    """
    Return all tables that may be captured, are configured, or are published.

    Raises:
        SourceUnavailableError: The connection is lost.
    """
    parameters = {
        "publication": settings.database.publication,
        **name_lists(settings.capture.names),
    }
    with translated_errors("listing the tables"):
        rows = connection.execute(query("list_tables"), parameters).fetchall()
    return [ListedTable(TableName(s, t).text, *more) for s, t, *more in rows]


def read_captured(connection: Connection, settings: Settings) -> tuple[str, ...]:
    """
    Return the captured tables: named ones, and published ones that patterns match.

    Raises:
        SourceUnavailableError: The connection is lost.
    """
    listed = list_tables(connection, settings)
    return settings.capture.chosen(each.name for each in listed if each.is_published)


def read_streamed(connection: Connection, settings: Settings) -> tuple[str, ...]:
    """
    Return the tables with a topic: captured ones, and all others that are published.

    Raises:
        SourceUnavailableError: The connection is lost.
    """
    listed = list_tables(connection, settings)
    capture = settings.capture
    sent = [each.name for each in listed if each.is_published]
    more = (name for name in sent if name not in capture.reserved and not is_own(name))
    return tuple(dict.fromkeys((*capture.chosen(sent), *more)))


def is_own(table: str) -> bool:
    """Return whether a table is the relay's own."""
    return TableName.parse(table).schema == source_tables.SCHEMA


def read_source_facts(
    connection: Connection, settings: Settings, only: Sequence[str] | None = None
) -> SourceFacts:
    """
    Read the source's facts.

    Args:
        connection: A connection to the source.
        settings: The configuration.
        only: The captured tables to read; None for all.

    Raises:
        SlotBusyError: The slot is still being created.
        SourceUnavailableError: The connection is lost.
    """
    source = settings.database
    with translated_errors("reading the catalog"):
        execute = connection.execute
        server = execute(query("read_server_facts")).fetchone() or (0, "", "")
        names = [*OWN_TABLES, settings.relay.outbox.table]
        own = {
            TableName(*name).text
            for name in execute(query("read_existing_tables"), name_lists(names))
        }
        chosen = only
        if chosen is None:
            listed = list_tables(connection, settings)
            chosen = settings.capture.chosen(each.name for each in listed)
        rows = execute(query("read_tables"), name_lists(chosen)).fetchall()
        old = execute(query("read_old_transactions")).fetchall()
        slot = read_slot(connection, source.slot)
        relays = read_relays(connection, source.slot)
        return SourceFacts(
            server=ServerFacts(*server),
            own_tables=frozenset(own),
            tables=_tables(rows),
            publications={
                name: facts
                for name in (source.publication, source.outbox_publication)
                if (facts := _read_publication(connection, name)) is not None
            },
            slot=slot,
            old_transactions=[OldTransaction(*each) for each in old],
            has_run=relays.has_run(source.slot, has_slot=slot is not None),
            relays=relays,
        )


def name_lists(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of a statement that takes tables by schema and name."""
    parsed = [TableName.parse(name) for name in names]
    return {
        "schemas": [name.schema for name in parsed],
        "tables": [name.table for name in parsed],
    }


def _tables(rows: Iterable[Sequence[Any]]) -> dict[str, TableFacts]:
    """Build the tables from rows; each row has one leaf of a table, or none."""
    tables: dict[str, TableFacts] = {}
    for schema, table, kind, is_guarded, key, unstable, stored, virtual, *leaf in rows:
        name = TableName(schema, table).text
        facts = tables.setdefault(
            name,
            TableFacts(
                kind,
                is_guarded,
                tuple(key or ()),
                tuple(unstable or ()),
                (),
                frozenset(stored or ()),
                frozenset(virtual or ()),
            ),
        )
        member_schema, member_table, persistence, identity, columns = leaf
        if member_table is not None:
            member = MemberFacts(
                TableName(member_schema, member_table).text,
                persistence,
                identity,
                frozenset(columns or ()),
            )
            tables[name] = facts._replace(members=(*facts.members, member))
    return tables


def _read_publication(connection: Connection, name: str) -> PublicationFacts | None:
    execute, parameters = connection.execute, {"publication": name}
    row = execute(query("read_publication"), parameters).fetchone()
    if row is None:
        return None
    tables = execute(query("read_publication_tables"), parameters).fetchall()
    schemas = execute(query("read_publication_schemas"), parameters).fetchall()
    is_for_all, insert, update, delete, truncate, via_root, stored = row
    return PublicationFacts(
        is_for_all=is_for_all,
        operations=(insert, update, delete, truncate),
        via_root=via_root,
        tables={
            TableName(schema, table).text: PublishedTable(
                None if columns is None else frozenset(columns), row_filter
            )
            for schema, table, columns, row_filter in tables
        },
        schemas=frozenset(schema for (schema,) in schemas),
        sends_stored=stored,
    )
