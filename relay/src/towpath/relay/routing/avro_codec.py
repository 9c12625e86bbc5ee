"""
Avro in Confluent's framing: a zero byte, the schema's id in four bytes, the record.

Avro has no way to leave a field out. A value that the stream left out (unchanged TOAST)
is null here, and the header ``unchanged`` tells it from a NULL; with a placeholder
configured it is that, where the column's form can hold it: in strings and bytes, and as
the one entry of their arrays and maps.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.avro_binary import (
    NULL_FIRST,
    VALUE_SECOND,
    Write,
    write_bytes,
    write_long,
    write_text,
    writer,
)
from towpath.relay.routing.codec import Facts, Names, Place, Values
from towpath.relay.routing.connect_schema import SOURCE, Field, row_schema
from towpath.relay.routing.forms.form import Schema
from towpath.relay.routing.json_codec import JsonCodec
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.schemas import envelope

_HEX: Final = "hex:"

_LACKS_KEY: Final = "a change lacks a column of its key: check the table's identity"

# What a writer raises that is given null, or nothing, where a value must stand.
_NO_VALUE: Final = (TypeError, AttributeError, KeyError, struct.error)


class Ids(NamedTuple):
    """What the registry calls the schemas of a shape; no key, no id for it."""

    key: int | None
    value: int


class Style(NamedTuple):
    """
    What the configuration says of every envelope.

    Attributes:
        placeholder: What stands for a value that was left out; None: null.
        is_debezium: Whether ``source`` has Debezium's finer times and sequence.
    """

    placeholder: str | None = None
    is_debezium: bool = False


class _Column(NamedTuple):
    """How one column is written; ``null`` is None where the schema requires a value."""

    at: int
    convert: Callable[[bytes], object]
    put: Write
    null: bytes | None
    unchanged: bytes | None


class AvroCodec:
    """Writes the keys and values of one shape of one table. Hot path."""

    def __init__(
        self,
        names: Names,
        key: Sequence[Field],
        columns: Sequence[Field],
        ids: Ids,
        style: Style,
    ) -> None:
        self.key_header = JsonCodec(names, key, columns).key
        schemas = dict(row_schema(names, key, columns).fields)
        self._columns = [
            _column(field, schemas[field.name], style.placeholder) for field in columns
        ]
        self._key = [_key_column(field) for field in key]
        self._key_head = _head(ids.key or 0)
        self._value_head = _head(ids.value)
        self._source = _Source(names, is_debezium=style.is_debezium)
        self._now_us = -1
        self._times = b""

    def key(self, row: Row) -> bytes | None:
        """
        Return the key of a row; None for a table without one.

        Raises:
            MalformedMessageError: The row lacks a column of its key.
        """
        if not self._key:
            return None
        return self._key_head + _write(self._key, row)

    def value(
        self, before: Row | None, after: Row | None, facts: Facts, *, is_full: bool
    ) -> bytes:
        """
        Return the envelope.

        Of a ``before`` that is not full, what is not of the key is null.

        Raises:
            MalformedMessageError: A row lacks a column of its key.
        """
        del is_full  # the rest of a key-only row is null as it comes
        columns, now_us = self._columns, facts.now_us
        if now_us != self._now_us:
            self._now_us = now_us
            nows = (now_us // 1000, now_us, now_us * 1000)
            self._times = b"".join([VALUE_SECOND + write_long(now) for now in nows])
        return b"".join(
            (
                self._value_head,
                NULL_FIRST if before is None else VALUE_SECOND,
                b"" if before is None else _write(columns, before),
                NULL_FIRST if after is None else VALUE_SECOND,
                b"" if after is None else _write(columns, after),
                self._source.write(facts),
                write_bytes(facts.operation),
                self._times,
                _place(facts.transaction),
            )
        )

    def keys(self, columns: Sequence[Values]) -> Sequence[bytes | None]:
        """
        Return the keys of rows that a chunk read, which come column by column.

        Raises:
            MalformedMessageError: A row lacks a column of its key.
        """
        if not self._key:
            return [None] * len(columns[0])
        return _write_all(self._key_head, self._key, columns, b"")

    def reads(self, columns: Sequence[Values], facts: Facts) -> Sequence[bytes]:
        """
        Return the envelopes of rows that a chunk read.

        Raises:
            MalformedMessageError: A row lacks a column of its key.
        """
        empty = self.value(None, None, facts, is_full=False)
        closing = empty.removeprefix(self._value_head + NULL_FIRST + NULL_FIRST)
        opening = self._value_head + NULL_FIRST + VALUE_SECOND
        return _write_all(opening, self._columns, columns, closing)


class _Source:
    """Writes ``source``: what a transaction's rows share is made once for them."""

    def __init__(self, names: Names, *, is_debezium: bool) -> None:
        self._head = b"".join(
            map(write_text, (envelope.SOURCE_VERSION, envelope.CONNECTOR, names.prefix))
        )
        self._names = b"".join(
            map(write_text, (names.database, names.schema, names.table))
        )
        self._put = {name: writer(schema) for name, schema in SOURCE.fields}
        self._is_debezium = is_debezium
        self._shared: tuple[object, ...] = ()
        self._before = b""
        self._after = b""

    def write(self, facts: Facts) -> bytes:
        """Return the source of one record."""
        (_, committed_us, _, snapshot, xid, lsn, commit_lsn, origin, origin_lsn, _) = (
            facts
        )
        shared = (commit_lsn, xid, committed_us, snapshot, origin, origin_lsn)
        if shared != self._shared:
            self._share(facts)
            self._shared = shared
        if lsn is None:
            return self._before + NULL_FIRST + self._after + NULL_FIRST
        sequence = NULL_FIRST
        if self._is_debezium:
            sequence = VALUE_SECOND + write_text(f'["{commit_lsn}","{lsn}"]')
        return self._before + VALUE_SECOND + write_long(lsn) + self._after + sequence

    def _share(self, facts: Facts) -> None:
        put, finer_us = self._put, facts.committed_us if self._is_debezium else None
        self._before = b"".join(
            (
                self._head,
                put["ts_ms"](facts.committed_us // 1000),
                put["snapshot"](facts.snapshot.decode()),
                put["ts_us"](finer_us),
                put["ts_ns"](None if finer_us is None else finer_us * 1000),
                self._names,
                put["txId"](facts.xid),
            )
        )
        self._after = b"".join(
            (
                put["commit_lsn"](facts.commit_lsn),
                put["xmin"](None),
                put["origin"](facts.origin),
                put["origin_lsn"](facts.origin_lsn),
            )
        )


def _write(columns: Sequence[_Column], row: Row) -> bytes:
    # Any: a None among them is a value that is missing, and the join refuses it.
    parts: list[Any] = []
    try:
        for at, convert, put, null, unchanged in columns:
            value = row[at]
            if value is None:
                parts.append(null)
            elif value is UNCHANGED:
                parts.append(unchanged)
            else:
                parts.append(put(convert(value)))
        return b"".join(parts)
    except _NO_VALUE as error:
        raise MalformedMessageError(_LACKS_KEY) from error


def _write_all(
    opening: bytes, columns: Sequence[_Column], rows: Sequence[Values], closing: bytes
) -> list[bytes]:
    """Return each row between what they share; they come column by column."""
    # Any: as in ``_write``.
    parts: list[Any] = [repeat(opening)]
    try:
        for at, convert, put, null, _ in columns:
            values = rows[at]
            parts.append(
                [null if value is None else put(convert(value)) for value in values]
            )
        parts.append([closing] * len(rows[0]))
        return list(map(b"".join, zip(*parts, strict=False)))
    except _NO_VALUE as error:
        raise MalformedMessageError(_LACKS_KEY) from error


def _column(field: Field, schema: Schema, placeholder: str | None) -> _Column:
    put = writer(schema)
    null = put(None) if schema.is_optional else None
    filler = None if placeholder is None else _filler(schema, _marker(placeholder))
    unchanged = null if filler is None else put(filler)
    return _Column(field.at, field.form.value, put, null, unchanged)


def _key_column(field: Field) -> _Column:
    schema = field.form.schema
    put = writer(schema.optional() if field.is_nullable else schema)
    null = put(None) if field.is_nullable else None
    return _Column(field.at, field.form.value, put, null, unchanged=None)


def _marker(placeholder: str) -> bytes:
    """Return a placeholder's bytes, which may be written in hex."""
    if placeholder.startswith(_HEX):
        return bytes.fromhex(placeholder.removeprefix(_HEX))
    return placeholder.encode()


def _filler(schema: Schema, marker: bytes) -> object:
    """Return the placeholder in a column's form; None where it has none."""
    if schema.kind == "string":
        return marker.decode(errors="replace")
    # A number that is written as bytes would read as one that nobody wrote.
    if schema.kind == "bytes" and schema.name is None:
        return marker
    entry = _filler(schema.items, marker) if schema.items else None
    if entry is None or schema.kind == "array":
        return entry and [entry]
    return {marker.decode(errors="replace"): entry}


def _place(place: Place | None) -> bytes:
    if place is None:
        return NULL_FIRST
    transaction_id, total_order, collection_order = place
    return (
        VALUE_SECOND
        + write_text(transaction_id)
        + write_long(total_order)
        + write_long(collection_order)
    )


def _head(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")
