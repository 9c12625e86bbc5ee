"""
Read the target's rows back for the verifier, each value as the text used in records.

Keys are compared as this text, too, both to read rows and to erase them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from psycopg import sql

from towpath.settings import RouteKind, Sink
from towpath.sinks.change import Value
from towpath.sinks.key_text import key_parts, key_text
from towpath.sinks.ports import StoredRow
from towpath.sinks.postgres import Connection, text_form
from towpath.sinks.targets.postgres import schema
from towpath.sinks.targets.postgres.client import ForeignRelationError, TargetSession
from towpath.sinks.targets.postgres.schema import (
    IS_DELETED,
    POSITION,
    TargetColumn,
    TargetTable,
)
from towpath.sinks.targets.postgres.tables import columns_of

_ROWS_PER_FETCH: Final = 10_000
_KEYS_PER_READ: Final = 10_000
_LOG_POSITION: Final = "position"
_FLOATS: Final = frozenset({"double precision", "real"})
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})


class PostgresReader:
    """Reads the tables of one sink, which may write to them at the same time."""

    def __init__(self, sink: Sink) -> None:
        """Describe the target; nothing is opened yet."""
        self._kinds = {route.name: route.kind for route in sink.route}
        self._session = TargetSession(sink.url)

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Yield all rows of a route's table once, as of one moment.

        Raises:
            UnavailableError: The target cannot be reached.
            HaltError: The target refuses the statement, or the table lacks a column
                that the sink has created.
        """
        yield from self._read(route, sql.SQL(""))

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """
        Yield the rows of the given keys, as ``rows`` does.

        Raises:
            UnavailableError: The target cannot be reached.
            HaltError: The target refuses the statement, or the table lacks a column
                that the sink has created.
        """
        remaining = iter(keys)
        while some := list(islice(remaining, _KEYS_PER_READ)):
            yield from self._read(route, sql.SQL(""), some)

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """
        Yield at most ``count`` random rows, as ``rows`` does.

        Raises:
            UnavailableError: The target cannot be reached.
            HaltError: The target refuses the statement, or the table lacks a column
                that the sink has created.
        """
        limit = sql.SQL(" order by random() limit {}").format(sql.Literal(count))
        yield from self._read(route, limit)

    def close(self) -> None:
        self._session.close()

    def _read(
        self, route: str, tail: sql.Composable, keys: Sequence[str] | None = None
    ) -> Iterator[StoredRow]:
        with self._session.transaction() as connection:
            table = _described(connection, route)
            if table is None:
                return
            where = sql.SQL("") if keys is None else _key_condition(table, keys)
            texts = [_text(column) for column in table.stored]
            statement = sql.SQL("select {} from {} as t{}{}").format(
                sql.SQL(", ").join(texts), table.identifier, where, tail
            )
            is_document = self._kinds.get(route) is RouteKind.AGGREGATE
            with connection.cursor(name="towpath_rows") as cursor:
                cursor.itersize = _ROWS_PER_FETCH
                cursor.execute(statement)
                for row_texts in cursor:
                    yield _stored(table, row_texts, is_document=is_document)


def erasure(table: TargetTable, keys: Sequence[str]) -> sql.Composed:
    """Return the statement that deletes the rows of given keys, at any position."""
    return sql.SQL("delete from {} as t{}").format(
        table.identifier, _key_condition(table, keys)
    )


def _described(connection: Connection, route: str) -> TargetTable | None:
    """
    Describe a table as it is in the target; ``None`` if no sink has created it.

    Raises:
        ForeignRelationError: The table lacks a column that a sink has created.
    """
    name = schema.table_name(route)
    table = TargetTable(*name, (), ())
    if not columns_of(connection, table.schema, schema.REGISTRY):
        return None
    stored = connection.execute(schema.registered(table)).fetchone()
    found = columns_of(connection, *name)
    if stored is None or not found:
        return None
    is_log = POSITION not in found
    own = () if is_log else (POSITION, IS_DELETED)
    needed = {*stored[1], *(own or (_LOG_POSITION,))}
    if lacking := ", ".join(sorted(needed - found.keys())):
        message = f"{table.schema}.{table.name} lacks the column {lacking}"
        raise ForeignRelationError(message)
    columns = (TargetColumn(*each) for each in found.items() if each[0] not in own)
    return TargetTable(*name, tuple(columns), tuple(stored[1]), is_log)


def _text(column: TargetColumn) -> sql.Composed:
    return text_form(column.type, sql.Identifier("t", column.name))


def _key_condition(table: TargetTable, keys: Sequence[str]) -> sql.Composed:
    """Return the condition that a row has one of the given keys (``key_text``)."""
    types = {column.name: column.type for column in table.columns}
    parts = [one for one in map(key_parts, keys) if len(one) == len(table.key)]
    listed = zip(*parts, strict=True) if parts else [()] * len(table.key)
    names = [sql.Identifier(f"k{index}") for index in range(len(table.key))]
    texts = [_text(TargetColumn(name, types[name])) for name in table.key]
    return sql.SQL(" where ({}) in (select {} from unnest({}) as listed ({}))").format(
        sql.SQL(", ").join(texts),
        sql.SQL(", ").join(names),
        sql.SQL(", ").join(
            sql.SQL("{}::text[]").format(sql.Literal(list(values))) for values in listed
        ),
        sql.SQL(", ").join(names),
    )


def _stored(
    table: TargetTable, texts: Sequence[str | None], *, is_document: bool
) -> StoredRow:
    values = {
        column.name: _value(column.type, text)
        for column, text in zip(table.stored, texts, strict=True)
    }
    key = key_text([values[name] for name in table.key])
    if table.is_log:
        return StoredRow(key, values, str(values[_LOG_POSITION]), is_deleted=False)
    is_deleted = values.pop(IS_DELETED) == "true"
    position = str(values.pop(POSITION))
    if is_document:
        values = _document(values["document"])
    return StoredRow(key, values, position, is_deleted)


def _value(type_name: str, text: str | None) -> Value:
    """Return a value's text, or a float as a number, because its text can vary."""
    if text is None or type_name not in _FLOATS or text in _NO_NUMBERS:
        return text
    return float(text)


def _document(text: Value) -> dict[str, Any]:
    """Parse a document, keeping all digits; the document of a tombstone is empty."""
    if text is None:
        return {}
    return dict(json.loads(str(text), parse_float=Decimal))
