"""
What the catalog says of a table that is to be read, and whether it can be.

Asked again under each chunk's lock: the chunk brings the columns of its own moment.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot import chunks
from towpath.relay.snapshot.copytext import decode_line
from towpath.relay.snapshot.shape import Key, TableShape, key_of
from towpath.relay.wal.relation import Column, Relation
from towpath.schemas.failure import DataError

_PARTITIONED: Final = "p"
_KINDS: Final = frozenset({"r", _PARTITIONED})
_PERMANENT: Final = "p"
_KEYS_PER_QUERY: Final = 500
# Data exceptions, a domain's constraints, a type that is no more.
_WRONG_VALUE: Final = ("22", "23", "42")


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
                rows = [decode_line(bytes(line)) for line in copy]
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_WRONG_VALUE):
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
