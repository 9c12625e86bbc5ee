"""
Avro in Confluent's framing: a zero byte, the schema's id in four bytes, and the record.

Avro has no missing fields. An unchanged TOASTed value is null, which the header
``unchanged`` distinguishes from NULL. If a placeholder is configured, it replaces that
null where the column's type can express it: in strings and bytes, and as the only entry
of arrays and maps of these.

The encoding function of a schema is created once. Hot path.

::

    boolean           one byte
    int, long         zigzag, then seven bits per byte, lowest first
    float, double     IEEE 754, little-endian
    string, bytes     length as a long, then the bytes
    array, map        count as a long, the entries, then a count of 0
    record            its fields in order
    union             the branch's number as a long, then its value

A record's values are given as a mapping whose keys are the schema's own, unsanitized
names; a missing value is null.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.relay.encode.codecs.codec import (
    EnvelopeFacts,
    TableNames,
    TransactionPlace,
    Values,
)
from towpath.relay.encode.codecs.connect_schema import (
    SOURCE,
    Field,
    items_of,
    row_schema,
)
from towpath.relay.encode.codecs.json_codec import JsonCodec
from towpath.relay.encode.types.form import Kind, Schema
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.schemas import envelope
from towpath.settings.syntax import placeholder_bytes

Write = Callable[[Any], bytes]

_ONE_BYTE: Final = 0x80

# Longs below this number, from 0 on, are cached; most are lengths of strings.
_KNOWN_LONGS: Final = 1024


def _compute(number: int) -> bytes:
    left = number << 1 if number >= 0 else ~(number << 1)
    if left < _ONE_BYTE:
        return left.to_bytes(1, "little")
    digits = bytearray()
    while left >= _ONE_BYTE:
        digits.append(left & 0x7F | _ONE_BYTE)
        left >>= 7
    digits.append(left)
    return bytes(digits)


_LONGS: Final = tuple(_compute(number) for number in range(_KNOWN_LONGS))
_BOOLEANS: Final = MappingProxyType({False: b"\x00", True: b"\x01"})
_END: Final = b"\x00"
NULL_FIRST: Final = b"\x00"
VALUE_SECOND: Final = b"\x02"


def write_long(number: int) -> bytes:
    """Write an int or a long."""
    return _LONGS[number] if 0 <= number < _KNOWN_LONGS else _compute(number)


def write_bytes(value: bytes) -> bytes:
    """Write bytes after their length."""
    return write_long(len(value)) + value


def write_text(value: str) -> bytes:
    """Write a string's UTF-8 after its length."""
    return write_bytes(value.encode())


_PRIMITIVES: Final[Mapping[Kind, Write]] = MappingProxyType(
    {
        "boolean": _BOOLEANS.__getitem__,
        "int16": write_long,
        "int32": write_long,
        "int64": write_long,
        "float": struct.Struct("<f").pack,
        "double": struct.Struct("<d").pack,
        "string": write_text,
        "bytes": write_bytes,
    }
)


def writer(schema: Schema) -> Write:
    """Return the function that writes values of a schema."""
    plain = _plain(schema)
    if not schema.is_optional:
        return plain
    null, value = NULL_FIRST, VALUE_SECOND
    if schema.default is not None:
        null, value = value, null

    def write(item: object) -> bytes:
        return null if item is None else value + plain(item)

    return write


def _plain(schema: Schema) -> Write:
    if schema.kind == "struct":
        return _record(schema)
    if schema.kind == "array":
        return _array(writer(items_of(schema)))
    if schema.kind == "map":
        return _map(writer(items_of(schema)))
    return _PRIMITIVES[schema.kind]


def _record(schema: Schema) -> Write:
    fields = [(name, writer(of)) for name, of in schema.fields]

    def write(values: Mapping[str, object]) -> bytes:
        return b"".join([put(values.get(name)) for name, put in fields])

    return write


def _array(put: Write) -> Write:
    def write(values: list[object]) -> bytes:
        if not values:
            return _END
        entries = b"".join([put(value) for value in values])
        return write_long(len(values)) + entries + _END

    return write


def _map(put: Write) -> Write:
    def write(values: Mapping[str, object]) -> bytes:
        if not values:
            return _END
        entries = [write_text(name) + put(value) for name, value in values.items()]
        return write_long(len(values)) + b"".join(entries) + _END

    return write


_LACKS_KEY: Final = (
    "a change lacks a column of its key: check the table's replica identity"
)

# The errors that a writer raises for a null or missing value in a required field.
_NO_VALUE: Final = (TypeError, AttributeError, KeyError, struct.error)


class SchemaIdPair(NamedTuple):
    """The registry's ids of a table's schemas; ``key`` is None if there is no key."""

    key: int | None
    value: int


class EnvelopeStyle(NamedTuple):
    """
    The configured options of envelopes.

    Attributes:
        placeholder: Replaces unchanged values; None writes null for them.
        is_debezium: Whether ``source`` has Debezium's finer times and sequence.
    """

    placeholder: str | None = None
    is_debezium: bool = False


class _AvroColumn(NamedTuple):
    """The writer of a column; ``null`` is None where the schema requires a value."""

    at: int
    convert: Callable[[bytes], object]
    put: Write
    null: bytes | None
    unchanged: bytes | None


class AvroCodec:
    """Writes the keys and values of one shape of one table. Hot path."""

    def __init__(
        self,
        names: TableNames,
        key: Sequence[Field],
        columns: Sequence[Field],
        ids: SchemaIdPair,
        style: EnvelopeStyle,
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
        Return the key of a row; None for a table without a key.

        Raises:
            MalformedMessageError: The row has no value for a key column.
        """
        if not self._key:
            return None
        return self._key_head + _write(self._key, row)

    def value(
        self,
        before: Row | None,
        after: Row | None,
        facts: EnvelopeFacts,
        *,
        is_full: bool,
    ) -> bytes:
        """
        Return the envelope.

        A ``before`` that is not full has only the key's columns; all others are null.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """
        del is_full  # other columns of a key-only row are null already
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
        Return the keys of a chunk's rows, which are given column by column.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """
        if not self._key:
            return [None] * len(columns[0])
        return _write_all(self._key_head, self._key, columns, b"")

    def reads(self, columns: Sequence[Values], facts: EnvelopeFacts) -> Sequence[bytes]:
        """
        Return the envelopes of a chunk's rows.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """
        empty = self.value(None, None, facts, is_full=False)
        closing = empty.removeprefix(self._value_head + NULL_FIRST + NULL_FIRST)
        opening = self._value_head + NULL_FIRST + VALUE_SECOND
        return _write_all(opening, self._columns, columns, closing)


class _Source:
    """Writes ``source``; the bytes that a transaction's rows share are encoded once."""

    def __init__(self, names: TableNames, *, is_debezium: bool) -> None:
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

    def write(self, facts: EnvelopeFacts) -> bytes:
        """Return the source of one record."""
        (_, committed_us, _, snapshot, xid, lsn, commit_lsn, origin, origin_lsn, _) = (
            facts
        )
        shared = (commit_lsn, xid, committed_us, snapshot, origin, origin_lsn)
        if shared != self._shared:
            self._share(facts)
            self._shared = shared
        own = NULL_FIRST if lsn is None else VALUE_SECOND + write_long(lsn)
        sequence = NULL_FIRST
        if self._is_debezium:
            # A record without its own LSN has the LSN of the commit.
            last = commit_lsn if lsn is None else lsn
            sequence = VALUE_SECOND + write_text(f'["{commit_lsn}","{last}"]')
        return self._before + own + self._after + sequence

    def _share(self, facts: EnvelopeFacts) -> None:
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


def _write(columns: Sequence[_AvroColumn], row: Row) -> bytes:
    # Any: None stands for a missing value, which the join refuses.
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
    opening: bytes,
    columns: Sequence[_AvroColumn],
    rows: Sequence[Values],
    closing: bytes,
) -> list[bytes]:
    """Encode rows that are given column by column, each between the shared parts."""
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


def _column(field: Field, schema: Schema, placeholder: str | None) -> _AvroColumn:
    put = writer(schema)
    null = put(None) if schema.is_optional else None
    filler = (
        None if placeholder is None else _filler(schema, placeholder_bytes(placeholder))
    )
    unchanged = null if filler is None else put(filler)
    return _AvroColumn(field.at, field.form.value, put, null, unchanged)


def _key_column(field: Field) -> _AvroColumn:
    schema = field.form.schema
    put = writer(schema.optional() if field.is_nullable else schema)
    null = put(None) if field.is_nullable else None
    return _AvroColumn(field.at, field.form.value, put, null, unchanged=None)


def _filler(schema: Schema, marker: bytes) -> object:
    """Return the placeholder in a column's form; None if the form cannot express it."""
    if schema.kind == "string":
        return marker.decode(errors="replace")
    # In a number that is written as bytes, the marker would look like data.
    if schema.kind == "bytes" and schema.name is None:
        return marker
    entry = _filler(schema.items, marker) if schema.items else None
    if entry is None:
        return None
    if schema.kind == "array":
        return [entry]
    return {marker.decode(errors="replace"): entry}


def _place(place: TransactionPlace | None) -> bytes:
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
