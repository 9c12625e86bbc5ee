"""
Writes keys and envelopes as plain JSON. Hot path.

The parts that do not depend on the row are built once per table schema. An unchanged
TOASTed value is missing, or is the configured placeholder where the column's type can
express one: in strings and bytes, and as the only entry of arrays and maps of these.

``source`` has Debezium's members and ``commit_lsn``, and has ``origin`` and
``origin_lsn`` only for changes that were replicated to this database. With Debezium's
preset, there are also ``ts_us``, ``ts_ns`` and ``sequence``: the string ``["<LSN of the
commit>","<LSN of the row>"]``, whose numbers order rows by their commits.

The rows of a chunk are written column by column: a form encodes all values of a column,
and each row is one join of its fragments.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Final, NamedTuple

import orjson

from towpath.relay.encode.codecs.codec import (
    Codec,
    EnvelopeFacts,
    TableNames,
    TransactionPlace,
    Values,
)
from towpath.relay.encode.codecs.connect_schema import Field
from towpath.relay.encode.rows import key_column_text
from towpath.relay.encode.types.form import Form, Fragments, Schema
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.schemas import envelope
from towpath.settings.relay import Relay
from towpath.settings.syntax import placeholder_bytes

NULL: Final = b"null"


class RowColumn(NamedTuple):
    """
    A column of an object.

    Attributes:
        at: Its index in the row.
        head: Its name, with the comma before it.
        form: The form of its values.
        is_nullable: Whether it may be NULL.
    """

    at: int
    head: bytes
    form: Form
    is_nullable: bool = True


def row_objects(
    opening: bytes, columns: Sequence[RowColumn], rows: Sequence[Values], closing: bytes
) -> list[bytes]:
    """
    Return each row as an object.

    Args:
        opening: Precedes each object.
        columns: The columns of the objects.
        rows: The rows, column by column.
        closing: Follows each object.

    Raises:
        MalformedMessageError: A required value is NULL.
    """
    parts: list[Iterable[bytes]] = []
    constant = opening + b"{"
    for number, (at, head, form, is_nullable) in enumerate(columns):
        texts, mark = _fragments(form, rows[at], is_nullable=is_nullable)
        parts += (repeat(constant + (head if number else head[1:]) + mark), texts)
        constant = mark
    constant += b"}" + closing
    if not parts:
        return [constant] * len(rows[0])
    return list(map(b"".join, zip(*parts, repeat(constant), strict=False)))


def _fragments(form: Form, values: Values, *, is_nullable: bool) -> Fragments:
    present = [value for value in values if value is not None]
    if len(present) == len(values):
        return _written(form, present)
    if not is_nullable:
        # This call raises the error for a key column without a value.
        key_column_text(None)
    if not present:
        return Fragments([NULL] * len(values))
    texts, mark = _written(form, present)
    found = iter(texts)
    return Fragments(
        [NULL if value is None else mark + next(found) + mark for value in values]
    )


def _written(form: Form, texts: Sequence[bytes]) -> Fragments:
    if form.column is not None:
        return form.column(texts)
    return Fragments(list(map(form.json, texts)))


_MISSING: Final = b""

# The beginning of the envelope of a chunk's row.
_READ_HEAD: Final = b'{"before":null,"after":'

# Name, encoder, and the fragments for NULL and for an unchanged value. The name begins
# with a comma; each fragment begins with the name.
_Column = tuple[bytes, Callable[[bytes], bytes], bytes, bytes]


class JsonCodec:
    """Writes the keys and values of one table schema."""

    def __init__(
        self,
        names: TableNames,
        key: Sequence[Field],
        columns: Sequence[Field],
        *,
        placeholder: str | None = None,
        is_debezium: bool = False,
    ) -> None:
        self._columns = [_column(field, placeholder) for field in columns]
        self._pick = _picker(columns)
        self._row_columns = [RowColumn(f.at, _head(f), f.form) for f in columns]
        self._row_key = [RowColumn(f.at, _head(f), f.form, f.is_nullable) for f in key]
        self._key = [
            (field.at, _head(field), field.form.json, field.is_nullable)
            for field in key
        ]
        # Most tables have a key of one column, which is written without a list.
        self._only = None
        if len(self._key) == 1:
            ((at, head, encode, _),) = self._key
            self._only = at, b"{" + head[1:], encode
        self._envelope = _envelope(names)
        self._is_debezium = is_debezium
        self._now_us = -1
        self._times = b""

    def key(self, row: Row) -> bytes | None:
        """
        Return the key of a row; None for a table without a key.

        Raises:
            MalformedMessageError: The row has no value for a key column.
        """
        if self._only is not None:
            at, head, encode = self._only
            value = row[at]
            if type(value) is bytes:
                return head + encode(value) + b"}"
        parts = []
        for at, head, encode, is_nullable in self._key:
            value = row[at]
            if value is None and is_nullable:
                parts.append(head + NULL)
            else:
                parts.append(head + encode(key_column_text(value)))
        return b"{" + b"".join(parts)[1:] + b"}" if parts else None

    def key_header(self, row: Row) -> bytes | None:
        """Return the key of a row for headers, which equals the record's key."""
        return self.key(row)

    def value(
        self,
        before: Row | None,
        after: Row | None,
        facts: EnvelopeFacts,
        *,
        is_full: bool,
    ) -> bytes:
        """Return the envelope."""
        operation, committed_us, now_us, snapshot, xid, lsn, commit_lsn, *_, at = facts
        if now_us != self._now_us:
            self._now_us = now_us
            self._times = _times(now_us)
        old = NULL
        if before is not None:
            old = self._object(before) if is_full else self._key_object(before)
        return self._envelope % (
            old,
            NULL if after is None else self._object(after),
            committed_us // 1000,
            snapshot,
            NULL if xid is None else b"%d" % xid,
            NULL if lsn is None else b"%d" % lsn,
            commit_lsn,
            b"" if facts.origin is None else _origin(facts),
            _finer(facts) if self._is_debezium else b"",
            operation,
            self._times,
            NULL if at is None else _place_json(at),
        )

    def keys(self, columns: Sequence[Values]) -> Sequence[bytes | None]:
        """
        Return the keys of a chunk's rows, which are given column by column.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """
        if not self._row_key:
            return [None] * len(columns[0])
        return row_objects(b"", self._row_key, columns, b"")

    def reads(self, columns: Sequence[Values], facts: EnvelopeFacts) -> Sequence[bytes]:
        """Return the envelopes of a chunk's rows."""
        empty = self.value(None, None, facts, is_full=False)
        closing = empty.removeprefix(_READ_HEAD + NULL)
        return row_objects(_READ_HEAD, self._row_columns, columns, closing)

    def _object(self, row: Row) -> bytes:
        if self._pick is not None:
            row = self._pick(row)
        parts = [
            null
            if value is None
            else unchanged
            if value is UNCHANGED
            else head + encode(value)
            for (head, encode, null, unchanged), value in zip(
                self._columns, row, strict=False
            )
        ]
        return b"{" + b"".join(parts)[1:] + b"}"

    def _key_object(self, row: Row) -> bytes:
        """Return the object of an old row that has values only in its key's columns."""
        if self._pick is not None:
            row = self._pick(row)
        columns = zip(self._columns, row, strict=False)
        parts = [
            head + encode(value)
            for (head, encode, _, _), value in columns
            if isinstance(value, bytes)
        ]
        return b"{" + b"".join(parts)[1:] + b"}"


def _envelope(names: TableNames) -> bytes:
    """Return the shared parts of a table's envelopes, as a format string."""
    fields = {"db": names.database, "schema": names.schema, "table": names.table}
    head = {
        "version": envelope.SOURCE_VERSION,
        "connector": envelope.CONNECTOR,
        "name": names.prefix,
    }
    first, second = (
        orjson.dumps(part)[1:-1].replace(b"%", b"%%") for part in (head, fields)
    )
    return (
        b'{"before":%b,"after":%b,"source":{'
        + first
        + b',"ts_ms":%d,"snapshot":"%b",'
        + second
        + b',"txId":%b,"lsn":%b,"commit_lsn":%d,"xmin":null%b%b},"op":"%b",%b'
        + b',"transaction":%b}'
    )


def _times(now_us: int) -> bytes:
    times = now_us // 1000, now_us, now_us * 1000
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % times


def _origin(facts: EnvelopeFacts) -> bytes:
    fields = orjson.dumps(facts.origin), facts.origin_lsn or 0
    return b',"origin":%b,"origin_lsn":%d' % fields


def _finer(facts: EnvelopeFacts) -> bytes:
    """
    Return the members that only Debezium's ``source`` has.

    A chunk's row has no LSN of its own: the low watermark replaces it.
    """
    committed_us, commit_lsn = facts.committed_us, facts.commit_lsn
    lsn = commit_lsn if facts.lsn is None else facts.lsn
    sequence = orjson.dumps(f'["{commit_lsn}","{lsn}"]')
    finer = committed_us, committed_us * 1000, sequence
    return b',"ts_us":%d,"ts_ns":%d,"sequence":%b' % finer


def json_maker(
    relay: Relay,
) -> Callable[[TableNames, Sequence[Field], Sequence[Field]], Codec]:
    """Return a function that makes codecs with the configured options."""
    placeholder = relay.rows.placeholder
    is_debezium = relay.preset == "debezium"

    def make(
        names: TableNames, key: Sequence[Field], columns: Sequence[Field]
    ) -> Codec:
        return JsonCodec(
            names, key, columns, placeholder=placeholder, is_debezium=is_debezium
        )

    return make


def filler(schema: Schema, placeholder: str) -> bytes | None:
    """
    Return the placeholder of a column; None if its type cannot express one.

    Types whose values are numbers or booleans cannot: a placeholder would look like
    data. The header ``unchanged`` names every unchanged column, with or without a
    placeholder.
    """
    marker = placeholder_bytes(placeholder)
    if schema.kind == "string":
        return orjson.dumps(marker.decode(errors="replace"))
    if schema.kind == "bytes" and schema.name is None:
        return b'"' + base64.b64encode(marker) + b'"'
    entry = filler(schema.items, placeholder) if schema.items else None
    if entry is None:
        return None
    if schema.kind == "array":
        return b"[" + entry + b"]"
    return b"{" + orjson.dumps(marker.decode(errors="replace")) + b":" + entry + b"}"


def _head(field: Field) -> bytes:
    return b"," + orjson.dumps(field.name) + b":"


def _column(field: Field, placeholder: str | None) -> _Column:
    head = _head(field)
    unchanged = _MISSING
    if placeholder is not None:
        substitute = filler(field.form.schema, placeholder)
        unchanged = _MISSING if substitute is None else head + substitute
    return head, field.form.json, head + NULL, unchanged


def _picker(columns: Sequence[Field]) -> Callable[[Row], Row] | None:
    """
    Return a function that picks a row's published values.

    None is returned if they are the row's first values, in order.
    """
    places = [field.at for field in columns]
    if places == list(range(len(places))):
        return None
    if len(places) == 1:
        (only,) = places
        return lambda row: (row[only],)
    return itemgetter(*places)


def _place_json(place: TransactionPlace) -> bytes:
    transaction_id, total_order, collection_order = place
    return b'{"id":%b,"total_order":%d,"data_collection_order":%d}' % (
        orjson.dumps(transaction_id),
        total_order,
        collection_order,
    )
