"""
What the catalog says of a table that is to be read, and whether it can be.

Asked again under each chunk's lock: the chunk brings the columns of its own moment.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import psycopg

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.table_keys import (
    Identity,
    UniqueIndex,
    chosen_key,
    identity_key,
)
from towpath.relay.snapshot import chunks
from towpath.relay.snapshot.copytext import decode_lines
from towpath.relay.snapshot.shape import Key, TableShape, key_of
from towpath.relay.wal.relation import Column, Relation
from towpath.schemas.failure import DataError
from towpath.schemas.table_name import TableName

_PARTITIONED: Final = "p"
_TABLES: Final = frozenset({"r", _PARTITIONED})
_OTHERS: Final = MappingProxyType(
    {
        "v": "it is a view, not a table: name the tables below it, or declare it as an"
        " aggregate's in [[relay.outbox.view]]",
        "m": "it is a materialised view, not a table: name the tables below it",
        "f": "it is a foreign table, not a table: its changes are in another log",
    }
)
_PERMANENT: Final = "p"
_KEYS_PER_QUERY: Final = 500
# Data exceptions, a domain's constraints, a type that is no more.
WRONG_VALUE: Final = ("22", "23", "42")
# What the server answers about an object that was dropped while the query ran.
CATALOG_CHANGED: Final = "XX000"
_ALTERED: Final = "it was dropped or altered while it was described: send a new signal"


class TableRefusedError(DataError):
    """A table cannot be read by snapshots; the message says why."""

    remedy = "Change the table as the message says, then send a new signal."


class _Table(NamedTuple):
    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    foreign_partition: str | None
    root: str | None
    may_read: bool
    has_policies: bool
    is_published: bool
    row_filter: str | None


class _KeyColumn(NamedTuple):
    name: str
    type_name: str
    is_deterministic: bool
    has_plain_order: bool
    collation: int


def describe(
    connection: Connection,
    collection: str,
    publication: str,
    order_by: Sequence[str] = (),
) -> TableShape:
    """
    Return a table's shape.

    Args:
        connection: Where to ask.
        collection: The table, as ``schema.table``.
        publication: The publication that streams its changes.
        order_by: The columns of a chosen key by which it is to be read.

    Raises:
        TableRefusedError: There is none, it cannot be read, or it changed meanwhile.
    """
    try:
        return _describe(connection, collection, publication, order_by)
    except psycopg.errors.InternalError_ as error:
        raise TableRefusedError(_ALTERED) from error


def _describe(
    connection: Connection,
    collection: str,
    publication: str,
    order_by: Sequence[str],
) -> TableShape:
    """Ask the catalog; each question may find another state than the one before."""
    execute = connection.execute
    table = _find(connection, collection, publication)
    oid = {"oid": table.oid, "publication": publication}
    columns = tuple(Column(*row) for row in execute(query("describe_columns"), oid))
    places = {column.name: place for place, column in enumerate(columns)}
    indexes = [UniqueIndex(*row) for row in execute(query("describe_indexes"), oid)]
    identities = [Identity(*row) for row in execute(query("describe_identities"), oid)]
    if not identities:
        raise TableRefusedError(_ALTERED)
    key = _key_columns(connection, identity_key(indexes, identities), places)
    order: list[_KeyColumn] = []
    if order_by:
        order = _key_columns(connection, chosen_key(indexes, order_by), places)
    if order == key:
        order = []
    relation = Relation(
        oid=table.oid,
        schema=table.schema,
        table=table.name,
        columns=columns,
        key=tuple(places[column.name] for column in key),
        identity=identities[0].kind,
    )
    return TableShape(
        relation,
        tuple(column.type_name for column in key),
        partitioned=table.kind == _PARTITIONED,
        order=tuple(places[column.name] for column in order),
        order_types=tuple(column.type_name for column in order),
        collations=tuple(column.collation for column in (*key, *order)),
        row_filter=table.row_filter,
    )


def order_names(shape: TableShape) -> tuple[str, ...]:
    """Return the columns of the chosen key; none: it is read by its own."""
    return tuple(shape.relation.columns[place].name for place in shape.order)


def spell(
    connection: Connection, shape: TableShape, keys: Sequence[Key]
) -> tuple[Key, ...]:
    """
    Return listed keys as the server writes them, each once: ``007`` is ``7``.

    Raises:
        TableRefusedError: One of them is no key of this table.
    """
    check_width(shape, keys)
    spelt: dict[Key, None] = {}
    for place in range(0, len(keys), _KEYS_PER_QUERY):
        asked = keys[place : place + _KEYS_PER_QUERY]
        statement = chunks.spelling_query(asked, shape).encode()
        try:
            with connection.cursor().copy(statement) as copy:
                rows = decode_lines(bytes(line) for line in copy)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(WRONG_VALUE):
                raise
            reason = f"a listed key is none of this table: {error.diag.message_primary}"
            raise TableRefusedError(reason) from error
        spelt.update((key_of(row, range(len(row))), None) for row in rows)
    return tuple(spelt)


def check_width(shape: TableShape, keys: Sequence[Key]) -> None:
    """
    Make sure that keys have as many parts as the table's.

    Raises:
        TableRefusedError: One has not.
    """
    names = shape.relation.key_names
    for key in keys:
        if len(key) != len(names):
            texts = [part.decode(errors="replace") for part in key]
            reason = f"its key is ({', '.join(names)}), which {texts} does not fit"
            raise TableRefusedError(reason)


def _find(connection: Connection, collection: str, publication: str) -> _Table:
    name = TableName.parse(collection)
    names = {
        "schema": name.schema,
        "table": name.table,
        "publication": publication,
    }
    row = connection.execute(query("describe_table"), names).fetchone()
    if row is None:
        reason = "there is no such table"
        raise TableRefusedError(reason)
    table = _Table(*row)
    _refuse(_refusals(table, publication))
    return table


def _key_columns(
    connection: Connection, index: UniqueIndex | str, places: dict[str, int]
) -> list[_KeyColumn]:
    """Return the columns of a key, if they can be compared and are published."""
    if isinstance(index, str):
        raise TableRefusedError(index)
    told = connection.execute(query("describe_key"), {"index": index.oid})
    columns = [_KeyColumn(*row) for row in told]
    if len(columns) != len(index.columns):
        raise TableRefusedError(_ALTERED)
    for column in columns:
        name = column.name
        _refuse(
            {
                f"key column {name} is not in the publication's columns, or is a"
                " generated one, which is not sent": name not in places,
                f"the collation of key column {name} is not deterministic: give the"
                " column another": not column.is_deterministic,
                f"the order of key column {name} is defined outside pg_catalog: its"
                " type belongs to an extension": not column.has_plain_order,
            }
        )
    return columns


def _refusals(table: _Table, publication: str) -> dict[str, bool]:
    """Say why a table cannot be read, whatever its key."""
    name = TableName(table.schema, table.name).sql
    return {
        _OTHERS.get(table.kind, "it is not a table"): table.kind not in _TABLES,
        "it is unlogged or temporary: its changes are not in the log; alter table"
        f" {name} set logged": table.persistence != _PERMANENT,
        f"its partition {table.foreign_partition} is a foreign table: its changes are"
        " in another log": table.foreign_partition is not None,
        f"it is a partition of {table.root}, under whose name its changes come: name"
        " that, with a condition": (not table.is_published and table.root is not None),
        f"it is not in the publication {publication}: add it to [source] tables and"
        " run towpath relay init": not table.is_published,
        f"this role may not read it: grant select on {name}": not table.may_read,
        "its row-level security hides rows from this role: alter role ... bypassrls": (
            table.has_policies
        ),
    }


def _refuse(refusals: dict[str, bool]) -> None:
    for reason, holds in refusals.items():
        if holds:
            raise TableRefusedError(reason)
