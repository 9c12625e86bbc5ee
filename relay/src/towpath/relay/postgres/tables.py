"""
What the catalog says of a table that is to be read, and whether it can be.

Asked again under each chunk's lock: the chunk brings the columns of its own moment.
"""

from typing import Final, NamedTuple

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.facts import TableShape
from towpath.relay.wal.relation import Column, Relation
from towpath.schemas.failure import DataError

_PARTITIONED: Final = "p"
_KINDS: Final = frozenset({"r", _PARTITIONED})
_PERMANENT: Final = "p"


class TableRefusedError(DataError):
    """A table cannot be read by snapshots; the message says why."""

    remedy = "Change the table as the message says, then send a new signal."


class _Table(NamedTuple):
    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    has_key_identity: bool
    identity: str
    published: list[str] | None
    row_filter: str | None


class _KeyColumn(NamedTuple):
    name: str
    type_name: str
    is_deterministic: bool
    has_plain_order: bool


def describe(connection: Connection, collection: str, publication: str) -> TableShape:
    """
    Return a table's shape.

    Args:
        connection: Where to ask.
        collection: The table, as ``schema.table``.
        publication: The publication that streams its changes.

    Raises:
        TableRefusedError: There is none, or it cannot be read.
    """
    execute = connection.execute
    names = {"collection": collection, "publication": publication}
    row = execute(query("describe_table"), names).fetchone()
    if row is None:
        reason = "there is no such table"
        raise TableRefusedError(reason)
    table = _Table(*row)
    oid = {"oid": table.oid}
    key = [_KeyColumn(*row) for row in execute(query("describe_key"), oid)]
    reason = _refusal(table, key, publication)
    if reason:
        raise TableRefusedError(reason)
    columns = tuple(
        Column(name, type_oid, typmod)
        for name, type_oid, typmod in execute(query("describe_columns"), oid)
        if name in (table.published or ())
    )
    places = {column.name: place for place, column in enumerate(columns)}
    relation = Relation(
        oid=table.oid,
        schema=table.schema,
        table=table.name,
        columns=columns,
        key=tuple(places[column.name] for column in key),
        identity=table.identity,
    )
    types = tuple(column.type_name for column in key)
    return TableShape(relation, types, partitioned=table.kind == _PARTITIONED)


def _refusal(table: _Table, key: list[_KeyColumn], publication: str) -> str:
    """Say why a table cannot be read; nothing if it can."""
    refusals = {
        "it is not a table": table.kind not in _KINDS,
        "it is unlogged or temporary: its changes are not in the log": (
            table.persistence != _PERMANENT
        ),
        "it has no primary key": not key,
        "its replica identity is not its primary key: alter table ... replica identity"
        " default": not table.has_key_identity,
        f"it is not in the publication {publication}": table.published is None,
        "its row filter in the publication is not supported yet": (
            table.row_filter is not None
        ),
        **{
            f"the collation of key column {column.name} is not deterministic": (
                not column.is_deterministic
            )
            for column in key
        },
        **{
            f"the order of key column {column.name} is defined outside pg_catalog": (
                not column.has_plain_order
            )
            for column in key
        },
    }
    return next((reason for reason, holds in refusals.items() if holds), "")
