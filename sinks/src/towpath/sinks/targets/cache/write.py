"""
Encode whole rows column by column, as calls to the guard, without any I/O.

The calls write the same data as those of ``schema`` would for the same records, folded:
the newest row of each key, with its fields as text and without nulls. A record that
needs special handling is left to ``schema``, so that the handling exists only once.

Each text equals the one that ``key_text`` or ``text_of`` returns for the value. Values
that Arrow does not read exactly are converted one by one: a number that it reads as a
float may be an integer with more digits, or its text may differ; lists and objects are
JSON.

Hot path: a fixed number of passes over the columns of a slice.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.change import RESERVED_COLUMNS
from towpath.sinks.changes.columns import Columns, ParsedRows, read_rows
from towpath.sinks.key_text import key_text, text_of
from towpath.sinks.targets.cache.schema import (
    BYTES_PER_CALL,
    POSITION_FIELD,
    ROWS_PER_CALL,
)

# The patterns of key parts whose key text can be cut out of their JSON text: integers
# that are short enough to be read exactly, strings without escapes, and booleans.
_FORMS: Final[Mapping[type, str]] = {
    int: "(?P<{name}>0|[1-9][0-9]{{0,18}}|-[1-9][0-9]{{0,17}})",
    str: r'"(?P<{name}>[^"\\\x00-\x1f]*)"',
    bool: "(?P<{name}>true|false)",
}
# The percent sign comes first, because the code of a colon contains one.
_CODED: Final = [(character, key_text((character,))) for character in "%:"]
_EMPTY: Final = key_text(("",))

_READ_WHOLE: Final = (pa.string(), pa.int64(), pa.bool_())

# Characters that JSON escapes.
_ESCAPED: Final = r'[\x00-\x1f"\\]'


def key_texts(keys: pa.ChunkedArray) -> pa.StringArray | None:
    """
    Convert keys as ``key_text`` does; keys that differ in form from the first are null.

    Returns:
        The key texts; ``None`` if the first key has no known form.

    Raises:
        pa.ArrowInvalid: A key is not UTF-8.
        orjson.JSONDecodeError: The first key is not JSON.
    """
    encoded = keys.cast(pa.string()).combine_chunks()
    first = orjson.loads(encoded[0].as_py())
    if not isinstance(first, dict) or not first:
        return None
    kinds = [type(value) for value in first.values()]
    if not _FORMS.keys() >= set(kinds):
        return None
    columns = (
        f"{re.escape(orjson.dumps(column).decode())}:{_FORMS[kind].format(name=f'p{n}')}"
        for n, (column, kind) in enumerate(zip(first, kinds, strict=True))
    )
    found = pc.extract_regex(encoded, rf"^\{{{','.join(columns)}\}}$")
    parts = [_coded(pc.struct_field(found, [n]), kind) for n, kind in enumerate(kinds)]
    return pc.binary_join_element_wise(*parts, ":")


def is_read_whole(kind: pa.DataType) -> bool:
    """Return whether Arrow reads values of this type without loss."""
    return kind in _READ_WHOLE


def value_texts(column: pa.Array) -> pa.StringArray:
    """Convert values of a type that ``is_read_whole`` accepts, as ``text_of`` does."""
    return column.cast(pa.string())


def texts_of_each(values: Sequence[Any]) -> pa.StringArray:
    """Convert values one by one; null stays null."""
    return pa.array([None if v is None else text_of(v) for v in values], pa.string())


def escaped(texts: pa.StringArray) -> pa.StringArray:
    """Escape strings as in JSON, without adding the quotes."""
    is_escaped = pc.fill_null(
        pc.match_substring_regex(texts, _ESCAPED), fill_value=False
    )
    if not pc.any(is_escaped).as_py():
        return texts
    written = [_json_text(text) for text in texts.filter(is_escaped).to_pylist()]
    return pc.replace_with_mask(texts, is_escaped, pa.array(written, pa.string()))


def _json_text(text: str) -> str:
    """Escape one string as in JSON, without adding the quotes."""
    return orjson.dumps(text)[1:-1].decode()


def _coded(part: pa.StringArray, kind: type) -> pa.StringArray:
    """Escape the separators in one part of each key."""
    if kind is not str:
        return part
    for character, code in _CODED:
        part = pc.replace_substring(part, character, code)
    return pc.if_else(pc.equal(part, ""), _EMPTY, part)


# Arrow's errors for values that it cannot read, or cannot read as one column; and the
# error for a first key or a sampled row that is not JSON.
_MISFIT: Final = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    orjson.JSONDecodeError,
)
# How many rows are sampled to find the columns of text. If the sample misses one, Arrow
# may read it as timestamps, whose values are then converted one by one.
_SAMPLED_ROWS: Final = 32


class EncodedRows(NamedTuple):
    """
    Encoded rows of one route.

    Attributes:
        indices: The indexes of the encoded records in the batch.
        keys: The key text of each key's newest row.
        columns: The texts of each field of these rows, escaped as in JSON strings, null
            where a row lacks the field; the last column is the position.
        below_floor: The number of newest rows below the floor, which are left out.
    """

    indices: pa.Array
    keys: pa.StringArray
    columns: Mapping[str, pa.StringArray]
    below_floor: int


class BulkCall(NamedTuple):
    """
    One call to the guard.

    Attributes:
        row_count: The number of its rows.
        keys: Their keys, each as a bulk string of the Redis protocol.
        columns: JSON: the names of the fields, then the texts of each field.
    """

    row_count: int
    keys: bytes
    columns: bytes


def encode(columns: Columns, floor: str | None = None) -> EncodedRows | None:
    """
    Encode the whole rows of plain records for the guard.

    Args:
        columns: The records.
        floor: Rows at positions below it are left out.

    Returns:
        The rows; ``None`` if all records are left to the calls of ``schema``.
    """
    try:
        keys = key_texts(columns.keys)
        return None if keys is None else _encode(columns, keys, floor)
    except _MISFIT:
        return None


def calls(encoded: EncodedRows, key_prefix: str) -> Iterator[BulkCall]:
    """
    Cut encoded rows into calls, bounded like those of ``schema``.

    Args:
        encoded: The rows.
        key_prefix: The prefix of the keys of the route.
    """
    columns = encoded.columns.values()
    ends = _ends(_lengths(columns).to_pylist())
    begins = pa.array([0, *ends], pa.int32())
    length = pc.add(pc.binary_length(encoded.keys), len(key_prefix.encode()))
    names = pc.binary_join_element_wise(
        "$", length.cast(pa.string()), "\r\n" + key_prefix, encoded.keys, "\r\n", ""
    )
    cut_keys = _joined(names, begins, b"")
    cut_columns = zip(*(_lists(texts, begins) for texts in columns), strict=True)
    fields = orjson.dumps(list(encoded.columns))
    begin = 0
    for end, keys, lists in zip(ends, cut_keys, cut_columns, strict=True):
        yield BulkCall(end - begin, keys, b"[%b,%b]" % (fields, b",".join(lists)))
        begin = end


def _encode(
    columns: Columns, keys: pa.StringArray, floor: str | None
) -> EncodedRows | None:
    texts = [(name, pa.string()) for name in _columns_of_text(columns.values)]
    read = read_rows(columns, pa.struct(texts))
    if any(field.name in RESERVED_COLUMNS for field in read.rows.type):
        return None
    is_encoded = pc.and_(read.is_whole, keys.is_valid())
    newest = _newest(keys, columns.positions, pc.indices_nonzero(is_encoded))
    above = newest
    if floor is not None:
        is_above = pc.greater_equal(columns.positions.take(newest), floor)
        above = newest.filter(is_above)
    fields = _fields(read, columns.values, above)
    if fields is None:
        return None
    return EncodedRows(
        indices=columns.indices.filter(is_encoded),
        keys=keys.take(above),
        columns={**fields, POSITION_FIELD: columns.positions.take(above)},
        below_floor=len(newest) - len(above),
    )


def _columns_of_text(values: pa.ChunkedArray) -> list[str]:
    """Return the columns that have text in rows sampled across the slice."""
    step = max(len(values) // _SAMPLED_ROWS, 1)
    found: dict[str, None] = {}
    for value in values.take(pa.array(range(0, len(values), step))).to_pylist():
        envelope = orjson.loads(value)
        row = envelope.get("after") if isinstance(envelope, dict) else None
        if isinstance(row, dict):
            found |= dict.fromkeys(name for name, v in row.items() if type(v) is str)
    return list(found)


def _newest(keys: pa.StringArray, positions: pa.Array, indexes: pa.Array) -> pa.Array:
    """Return the index of each key's newest row; for equal positions, the first."""
    keys = keys.take(indexes)
    if len(keys.unique()) == len(keys):
        return indexes
    rows = pa.table({"key": keys, "position": positions.take(indexes), "at": indexes})
    rows = rows.sort_by([("position", "descending"), ("at", "ascending")])
    by_key = rows.group_by("key", use_threads=False).aggregate([("at", "first")])
    return by_key.column("at_first").combine_chunks().sort()


def _fields(
    read: ParsedRows, values: pa.ChunkedArray, indexes: pa.Array
) -> dict[str, pa.StringArray] | None:
    """Return the texts of rows by field; ``None`` if a row may have no field at all."""
    rows = read.rows
    if len(indexes) < len(rows):
        rows, values = rows.take(indexes), values.take(indexes)
    named = zip((field.name for field in rows.type), rows.flatten(), strict=True)
    columns = {name: column for name, column in named if column.null_count < len(rows)}
    if all(column.null_count for column in columns.values()):
        return None
    are_whole = all(is_read_whole(column.type) for column in columns.values())
    single = [] if are_whole else [orjson.loads(v)["after"] for v in values.to_pylist()]
    fields: dict[str, pa.StringArray] = {}
    for name, column in columns.items():
        if not is_read_whole(column.type):
            fields[name] = escaped(texts_of_each([row.get(name) for row in single]))
        elif read.has_escapes:
            fields[name] = escaped(value_texts(column))
        else:
            fields[name] = value_texts(column)
    return fields


def _lengths(columns: Iterable[pa.StringArray]) -> pa.Array:
    """Return the number of bytes of text in each row."""
    lengths = (pc.fill_null(pc.binary_length(texts), 0) for texts in columns)
    return reduce(pc.add, lengths)


def _ends(lengths: list[int]) -> list[int]:
    """Return the index after the last row of each call, bounded in rows and bytes."""
    ends: list[int] = []
    begin = size_bytes = 0
    for index, length in enumerate(lengths):
        if index > begin and (
            index - begin == ROWS_PER_CALL or size_bytes + length > BYTES_PER_CALL
        ):
            ends.append(index)
            begin, size_bytes = index, 0
        size_bytes += length
    return [*ends, len(lengths)]


def _lists(texts: pa.StringArray, begins: pa.Array) -> list[bytes]:
    """Return the texts of each call as a JSON list."""
    if not texts.null_count:
        return [b'["%b"]' % one for one in _joined(texts, begins, b'","')]
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    joined = _joined(pc.fill_null(quoted, "null"), begins, b",")
    return [b"[%b]" % one for one in joined]


def _joined(texts: pa.StringArray, begins: pa.Array, between: bytes) -> list[bytes]:
    """Join the texts of each call."""
    lists = pa.ListArray.from_arrays(begins, texts.cast(pa.binary()))
    joined: list[bytes] = pc.binary_join(lists, between).to_pylist()
    return joined
