"""
The shape of a table in the catalog, and the reasons why snapshots cannot read it.

The shape is read again under each chunk's lock, since a chunk has the columns that the
table has at that moment.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import psycopg

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query, together
from towpath.relay.postgres.table_keys import (
    TABLE_PARTS,
    KeyColumn,
    UniqueIndex,
    chosen_key,
    identity_key,
    table_parts,
)
from towpath.relay.snapshot import sql
from towpath.relay.snapshot.shape import Key, TableShape, key_of
from towpath.relay.snapshot.sql import decode_lines
from towpath.relay.wal.messages import Relation
from towpath.schemas.failure import DataError
from towpath.schemas.table_name import TableName

_PARTITIONED: Final = "p"
_TABLES: Final = frozenset({"r", _PARTITIONED})
_OTHERS: Final = MappingProxyType(
    {
        "v": "it is a view, not a table: name the tables below it, or declare it in"
        " [[relay.outbox.view]]",
        "m": "it is a materialized view, not a table: name the tables below it",
        "f": "it is a foreign table, not a table: its changes are in another log",
    }
)
_PERMANENT: Final = "p"
_KEYS_PER_QUERY: Final = 500
# The SQLSTATE classes of data exceptions, a domain's constraints, and dropped types.
WRONG_VALUE: Final = ("22", "23", "42")
# The SQLSTATE for an object that was dropped while the query ran.
CATALOG_CHANGED: Final = "XX000"
_ALTERED: Final = "it was dropped or altered while being described: send a new signal"


# The names of catalog queries that run in one statement, with their parameters; and the
# statement's rows.
_CatalogQueries = tuple[tuple[str, ...], Mapping[str, object]]
_Rows = list[tuple[Any, ...]]
_Describing = Generator[_CatalogQueries, _Rows, TableShape]
# The tables described in one round trip: a few megabytes of statements and rows.
_TABLES_AT_ONCE: Final = 500


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


def describe(
    connection: Connection,
    collection: str,
    publication: str,
    order_by: Sequence[str] = (),
) -> TableShape:
    """
    Return a table's shape.

    Args:
        connection: A connection to the source.
        collection: The table, as ``schema.table``.
        publication: The publication that streams its changes.
        order_by: The columns of a surrogate key in whose order to read the table.

    Raises:
        TableRefusedError: The table is missing, cannot be read, or changed meanwhile.
    """
    with _unaltered():
        return _describe(connection, _describing(collection, publication, order_by))


def locate(connection: Connection, collection: str, publication: str) -> TableShape:
    """
    Return a table's shape without columns and key, which suffices for a lock.

    Raises:
        TableRefusedError: The table is missing, cannot be read, or changed meanwhile.
    """
    with _unaltered():
        statement, fields = _statement(_find_queries(collection, publication))
        table = _located_table(
            connection.execute(statement, fields).fetchall(), publication
        )
    return TableShape(
        Relation(table.oid, table.schema, table.name, (), (), ""),
        (),
        partitioned=table.kind == _PARTITIONED,
    )


@contextmanager
def _unaltered() -> Iterator[None]:
    """Refuse a table that was dropped while it was being described."""
    try:
        yield
    except psycopg.errors.InternalError_ as error:
        raise TableRefusedError(_ALTERED) from error


def _statement(queries: _CatalogQueries) -> tuple[bytes, Mapping[str, object]]:
    names, fields = queries
    return (query(*names) if len(names) == 1 else together(*names)), fields


def _describe(connection: Connection, describing: _Describing) -> TableShape:
    """Run the steps of a description; each may see a newer catalog than the last."""
    queries = next(describing)
    while True:
        rows = connection.execute(*_statement(queries)).fetchall()
        try:
            queries = describing.send(rows)
        except StopIteration as described:
            shape: TableShape = described.value
            return shape


def describe_all(
    connection: Connection,
    collections: Sequence[str],
    publication: str,
    order_by: Sequence[str] = (),
) -> Mapping[str, TableShape | TableRefusedError]:
    """
    Return the shape of each table, or why it cannot be read.

    One round trip describes hundreds of tables.

    Raises:
        psycopg.Error: The catalog changed, or the connection is lost.
    """
    found: dict[str, TableShape | TableRefusedError] = {}
    for place in range(0, len(collections), _TABLES_AT_ONCE):
        some = collections[place : place + _TABLES_AT_ONCE]
        found |= _describe_some(
            connection,
            {name: _describing(name, publication, order_by) for name in some},
        )
    return found


def _describe_some(
    connection: Connection, describing: Mapping[str, _Describing]
) -> Mapping[str, TableShape | TableRefusedError]:
    found: dict[str, TableShape | TableRefusedError] = {}
    pending = {name: next(each) for name, each in describing.items()}
    while pending:
        with connection.pipeline():
            cursors = {
                name: connection.execute(*_statement(queries))
                for name, queries in pending.items()
            }
            results = {name: cursor.fetchall() for name, cursor in cursors.items()}
        pending = {}
        for name, rows in results.items():
            try:
                pending[name] = describing[name].send(rows)
            except StopIteration as described:
                found[name] = described.value
            except TableRefusedError as refusal:
                found[name] = refusal
    return found


def _describing(
    collection: str, publication: str, order_by: Sequence[str]
) -> _Describing:
    """Describe one table, in steps: each yields queries and receives their rows."""
    table = _located_table((yield _find_queries(collection, publication)), publication)
    parts = yield TABLE_PARTS, {"oid": table.oid, "publication": publication}
    columns, indexes, identities, keys = table_parts(parts[0])
    places = {column.name: place for place, column in enumerate(columns)}
    if not identities:
        raise TableRefusedError(_ALTERED)
    key = _key_columns(identity_key(indexes, identities), keys, places)
    order: list[KeyColumn] = []
    if order_by:
        order = _key_columns(chosen_key(indexes, order_by), keys, places)
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
    """Return the surrogate key's columns; empty if the table is read by its own key."""
    return tuple(shape.relation.columns[place].name for place in shape.order)


def canonical_keys(
    connection: Connection, shape: TableShape, keys: Sequence[Key]
) -> tuple[Key, ...]:
    """
    Return listed keys in the server's spelling, each once: ``007`` is ``7``.

    Raises:
        TableRefusedError: One of them is not a key of this table.
    """
    check_width(shape, keys)
    spelled: dict[Key, None] = {}
    for place in range(0, len(keys), _KEYS_PER_QUERY):
        some = keys[place : place + _KEYS_PER_QUERY]
        statement = sql.spelling_query(some, shape).encode()
        try:
            with connection.cursor().copy(statement) as copy:
                rows = decode_lines(bytes(line) for line in copy)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(WRONG_VALUE):
                raise
            reason = (
                f"a listed key does not fit this table: {error.diag.message_primary}"
            )
            raise TableRefusedError(reason) from error
        spelled.update((key_of(row, range(len(row))), None) for row in rows)
    return tuple(spelled)


def check_width(shape: TableShape, keys: Sequence[Key]) -> None:
    """
    Check that keys have as many columns as the table's key.

    Raises:
        TableRefusedError: A key has a different number of columns.
    """
    names = shape.relation.key_names
    for key in keys:
        if len(key) != len(names):
            texts = [part.decode(errors="replace") for part in key]
            reason = f"its key is ({', '.join(names)}), which {texts} does not fit"
            raise TableRefusedError(reason)


def _find_queries(collection: str, publication: str) -> _CatalogQueries:
    name = TableName.parse(collection)
    return ("describe_table",), {
        "schema": name.schema,
        "table": name.table,
        "publication": publication,
    }


def _located_table(rows: _Rows, publication: str) -> _Table:
    if not rows:
        reason = "there is no such table"
        raise TableRefusedError(reason)
    table = _Table(*rows[0])
    _refuse(_refusals(table, publication))
    return table


def _key_columns(
    index: UniqueIndex | str,
    keys: Mapping[int, list[KeyColumn]],
    places: dict[str, int],
) -> list[KeyColumn]:
    """Return a key's columns; refuse one that cannot be compared or is not sent."""
    if isinstance(index, str):
        raise TableRefusedError(index)
    columns = keys.get(index.oid, [])
    if len(columns) != len(index.columns):
        raise TableRefusedError(_ALTERED)
    for column in columns:
        name = column.name
        _refuse(
            {
                f"key column {name} is not in the publication's columns, or is a"
                " generated column, which is not sent": name not in places,
                f"the collation of key column {name} is not deterministic: give the"
                " column a different one": not column.is_deterministic,
                f"the order of key column {name} is defined outside pg_catalog: its"
                " type belongs to an extension": not column.has_plain_order,
            }
        )
    return columns


def _refusals(table: _Table, publication: str) -> dict[str, bool]:
    """Return the reasons why a table cannot be read, and whether each applies."""
    name = TableName(table.schema, table.name).sql
    return {
        _OTHERS.get(table.kind, "it is not a table"): table.kind not in _TABLES,
        "it is unlogged or temporary: its changes are not in the log; alter table"
        f" {name} set logged": table.persistence != _PERMANENT,
        f"its partition {table.foreign_partition} is a foreign table: its changes are"
        " in another log": table.foreign_partition is not None,
        f"it is a partition of {table.root}, and its changes arrive under that name:"
        " name that table, with a condition": (
            not table.is_published and table.root is not None
        ),
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
