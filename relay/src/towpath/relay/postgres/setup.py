"""
``relay init``: look, plan, then do; a second run finds nothing to do.

The plan is pure: facts of the server in, statements out, so that ``--dry-run`` prints
exactly what would be run. The slot comes last: publications that are committed before
it are known at every position that it will ever stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres.connect import Connection, quoted, translated
from towpath.relay.postgres.queries import query
from towpath.settings import Outbox, Source

# Slots that a standby keeps in step exist from this version on.
_FAILOVER_VERSION: Final = 170000
_OLDEST_VERSION: Final = 150000

_OWN_TABLES: Final[Mapping[str, str]] = {
    "towpath.outbox": "create_outbox_table",
    "towpath.signal": "create_signal_table",
    "towpath.snapshot": "create_snapshot_table",
    "towpath.heartbeat": "create_heartbeat_table",
}
_ALWAYS_OURS: Final = frozenset(_OWN_TABLES) - {"towpath.outbox"}
_SIGNAL_TABLE: Final = "towpath.signal"
_ORDINARY: Final = frozenset("rp")
_PERMANENT: Final = "p"
_IDENTITIES: Final = frozenset("df")


class Step(NamedTuple):
    """One statement, and why it is run."""

    purpose: str
    statement: str


class TableFacts(NamedTuple):
    """What decides whether a table can be captured."""

    kind: str
    persistence: str
    identity: str
    has_primary_key: bool


class PublicationFacts(NamedTuple):
    """What a publication sends."""

    is_for_all: bool
    operations: tuple[bool, bool, bool, bool]
    via_root: bool
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What there is before anything is done."""

    version: int
    wal_level: str
    encoding: str
    own_tables: frozenset[str]
    tables: Mapping[str, TableFacts]
    publications: Mapping[str, PublicationFacts]
    has_slot: bool


def read_facts(connection: Connection, source: Source) -> ServerFacts:
    """
    Read what there is.

    Raises:
        SourceUnavailableError: The connection is gone.
    """
    with translated("reading the catalog"):
        execute = connection.execute
        server = execute(query("read_server_facts")).fetchone() or (0, "", "")
        own = execute(query("read_existing_tables"), {"names": list(_OWN_TABLES)})
        tables = execute(query("read_tables"), {"names": list(source.tables)})
        slot = execute(query("read_slot"), {"slot": source.slot}).fetchone()
        return ServerFacts(
            version=server[0],
            wal_level=server[1],
            encoding=server[2],
            own_tables=frozenset(name for (name,) in own.fetchall()),
            tables={name: TableFacts(*facts) for name, *facts in tables.fetchall()},
            publications={
                name: facts
                for name in (source.publication, source.outbox_publication)
                if (facts := _read_publication(connection, name)) is not None
            },
            has_slot=slot is not None,
        )


def check(facts: ServerFacts, source: Source) -> None:
    """
    Make sure that the source can be captured.

    Raises:
        NotPreparedError: It cannot; every reason is listed with its cure.
    """
    problems = [*_server_problems(facts), *_table_problems(facts, source)]
    if problems:
        raise NotPreparedError("\n".join(problems))


def plan(facts: ServerFacts, source: Source, outbox: Outbox) -> list[Step]:
    """Return what has to be done, in order; nothing if all is there."""
    return [
        *_table_steps(facts, outbox.table),
        *_publication_steps(
            facts, source.publication, (*source.tables, _SIGNAL_TABLE), _ALL
        ),
        *_publication_steps(
            facts, source.outbox_publication, (outbox.table,), _INSERTS
        ),
        *_slot_steps(facts, source.slot),
    ]


def carry_out(connection: Connection, steps: Iterable[Step]) -> None:
    """
    Run each statement in a transaction of its own.

    Raises:
        SourceRefusedError: The server refuses one; what was done stays.
        SourceUnavailableError: The connection is gone.
    """
    for step in steps:
        with translated(step.purpose):
            connection.execute(step.statement.encode())


class _Sending(NamedTuple):
    """What a publication is to send, as facts and as SQL."""

    operations: tuple[bool, bool, bool, bool]
    text: str


_ALL: Final = _Sending((True, True, True, True), "insert, update, delete, truncate")
_INSERTS: Final = _Sending((True, False, False, False), "insert")


def _read_publication(connection: Connection, name: str) -> PublicationFacts | None:
    row = connection.execute(
        query("read_publication"), {"publication": name}
    ).fetchone()
    if row is None:
        return None
    tables = connection.execute(
        query("read_publication_tables"), {"publication": name}
    ).fetchall()
    is_for_all, insert, update, delete, truncate, via_root = row
    operations = (insert, update, delete, truncate)
    names = frozenset(table for table, *_ in tables)
    return PublicationFacts(is_for_all, operations, via_root, names)


def _server_problems(facts: ServerFacts) -> Iterable[str]:
    if facts.version < _OLDEST_VERSION:
        yield f"the server's version is {facts.version}: it must be 15 or later"
    if facts.wal_level != "logical":
        yield (
            f"wal_level is {facts.wal_level}: "
            "run ALTER SYSTEM SET wal_level = 'logical' and restart the server"
        )
    if facts.encoding != "UTF8":
        yield f"the database's encoding is {facts.encoding}: it must be UTF8"


def _table_problems(facts: ServerFacts, source: Source) -> Iterable[str]:
    for name in source.tables:
        table = facts.tables.get(name)
        if table is None:
            yield f"{name}: there is no such table: correct [source] tables"
        elif table.kind not in _ORDINARY:
            yield f"{name}: not a table: remove it from [source] tables"
        elif table.persistence != _PERMANENT:
            yield f"{name}: not logged: run ALTER TABLE {name} SET LOGGED"
        elif not table.has_primary_key:
            yield f"{name}: no primary key: ALTER TABLE {name} ADD PRIMARY KEY (...)"
        elif table.identity not in _IDENTITIES:
            yield (
                f"{name}: its replica identity is not its key: "
                f"run ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
            )


def _table_steps(facts: ServerFacts, outbox_table: str) -> Iterable[Step]:
    """Make what is missing; an outbox of another name is the services' own."""
    missing = [
        name
        for name in _OWN_TABLES
        if name not in facts.own_tables and name in {outbox_table, *_ALWAYS_OURS}
    ]
    if missing:
        yield Step("making schema towpath", query("create_schema").decode())
    for name in missing:
        yield Step(f"making table {name}", query(_OWN_TABLES[name]).decode())


def _publication_steps(
    facts: ServerFacts, name: str, tables: Sequence[str], sending: _Sending
) -> Iterable[Step]:
    listed = ", ".join(quoted(*table.split(".", 1)) for table in tables)
    options = f"publish = '{sending.text}', publish_via_partition_root = true"
    existing = facts.publications.get(name)
    if existing is None:
        statement = (
            f"create publication {quoted(name)} for table {listed} with ({options})"
        )
        yield Step(f"making publication {name}", statement)
        return
    if existing.is_for_all:
        reason = f"publication {name} is for all tables: drop it, or name another"
        raise NotPreparedError(reason)
    if existing.tables != frozenset(tables):
        statement = f"alter publication {quoted(name)} set table {listed}"
        yield Step(f"bringing publication {name} in step", statement)
    if existing.operations != sending.operations or not existing.via_root:
        statement = f"alter publication {quoted(name)} set ({options})"
        yield Step(f"bringing publication {name} in step", statement)


def _slot_steps(facts: ServerFacts, slot: str) -> Iterable[Step]:
    if facts.has_slot:
        return
    failover = ", false, false, true" if facts.version >= _FAILOVER_VERSION else ""
    statement = (
        "select pg_catalog.pg_create_logical_replication_slot"
        f"('{slot}', 'pgoutput'{failover})"
    )
    yield Step(f"making slot {slot}", statement)
