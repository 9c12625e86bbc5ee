"""
Statements of a migration that change rows of tables which were there before.

The scratch database has no rows. A trigger of each table runs once for a statement all
the same, so that the statements of any tool are seen, also those inside functions. The
triggers are gone before the catalog is read again.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, LiteralString, NamedTuple

from psycopg import sql

from towpath.settings import Settings
from towpath.sinks.contracts.catalog import Catalog
from towpath.sinks.contracts.findings import (
    ContractFinding,
    Level,
    is_captured,
    topic_of,
)
from towpath.sinks.postgres import Connection

# The migration may run as any role, and may change the search path.
_PREPARE: Final[LiteralString] = """
create schema towpath_contract;
create table towpath_contract.statement (
    relation oid, operation text, primary key (relation, operation)
);
create function towpath_contract.record() returns trigger
    language plpgsql security definer as $$
begin
    insert into towpath_contract.statement values (tg_relid, tg_op)
        on conflict do nothing;
    return null;
end $$;
"""
_TRIGGER: Final[LiteralString] = """
create trigger towpath_contract after update or delete or truncate on {table}
    for each statement execute function towpath_contract.record()
"""


class RowStatement(NamedTuple):
    """The oid of a table, and what was done to its rows: ``UPDATE``, ``TRUNCATE``..."""

    table: int
    operation: str


def record_statements(connection: Connection, catalog: Catalog) -> None:
    """Record the statements that change rows of a catalog's tables from now on."""
    connection.execute(_PREPARE)
    for table in catalog.tables.values():
        if not table.is_view:
            name = sql.Identifier(table.name.schema, table.name.table)
            connection.execute(sql.SQL(_TRIGGER).format(table=name))


def recorded_statements(connection: Connection) -> list[RowStatement]:
    """Return the recorded statements, and remove all that recorded them."""
    rows = connection.execute(
        "select relation, operation from towpath_contract.statement order by 1, 2"
    ).fetchall()
    connection.execute("set client_min_messages = error")
    connection.execute("drop schema towpath_contract cascade")
    return [RowStatement(*row) for row in rows]


def row_findings(
    statements: Sequence[RowStatement], before: Catalog, settings: Settings
) -> list[ContractFinding]:
    """Judge statements that change rows of captured tables."""
    found = []
    for statement in statements:
        table = before.tables[statement.table]
        if is_captured(table, settings):
            change, sentence, step = _JUDGED[statement.operation]
            place = topic_of(table, settings), table.name.text
            found.append(
                ContractFinding(Level.NOTICE, *place, change, sentence, (step,))
            )
    return found


_IN_BATCHES: Final = (
    "If these are many, change them in batches outside of the migration: readers of "
    "the topic are behind until they have them all."
)
_JUDGED: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "UPDATE": (
            "rows updated",
            "Each updated row is a record of the topic, and each sink writes it again.",
            _IN_BATCHES,
        ),
        "DELETE": (
            "rows deleted",
            (
                "Each deleted row is a record of the topic and a tombstone, and each "
                "sink deletes it."
            ),
            _IN_BATCHES,
        ),
        "TRUNCATE": (
            "table truncated",
            (
                "The topic gets one truncation for each partition, and each sink "
                "deletes all rows of the table."
            ),
            'A route that must keep the rows needs on_truncate = "keep" before.',
        ),
    }
)
