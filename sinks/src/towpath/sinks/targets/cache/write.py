"""
Whole rows as calls of the guard, column by column, without a value of each. Pure.

What the calls come to is what those of ``script`` would of the same records, folded: of
each key the newest row, its fields as text, nothing of what is null. A record that has
to be looked at by itself is not taken, so that it is judged in one place.

Hot path: a fixed number of passes over the columns of a portion.

Keys and values of many rows as text, a column at a time. Pure.

Each text is what ``key_text`` and ``text_of`` write of that value alone. Whatever Arrow
reads as less than it was is asked for one by one: a float may have been an integer of
more digits or may be written in another way, and lists and objects are JSON.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.change import RESERVED_COLUMNS
from towpath.sinks.changes.columns import Columns, Read, read_rows
from towpath.sinks.key_text import key_text, text_of
from towpath.sinks.targets.cache.schema import (
    BYTES_PER_CALL,
    POSITION_FIELD,
    ROWS_PER_CALL,
)

# How parts of a key are written if their text is their value's: integers that keep
# their digits, texts without escapes.
_FORMS: Final[Mapping[type, str]] = {
    int: "(?P<{name}>0|[1-9][0-9]{{0,18}}|-[1-9][0-9]{{0,17}})",
    str: r'"(?P<{name}>[^"\\\x00-\x1f]*)"',
    bool: "(?P<{name}>true|false)",
}
# In this order: what stands for a colon holds a percent sign.
_CODED: Final = [(sign, key_text((sign,))) for sign in "%:"]
_EMPTY: Final = key_text(("",))

_READ_WHOLE: Final = (pa.string(), pa.int64(), pa.bool_())

# What stands in no JSON text as it is.
_ESCAPED: Final = r'[\x00-\x1f"\\]'


def key_texts(keys: pa.ChunkedArray) -> pa.StringArray | None:
    """
    Write keys as ``key_text`` does, null where a key has another form than the first.

    Returns:
        Their texts; ``None`` if the first has no such form.

    Raises:
        pa.ArrowInvalid: A key is not UTF-8.
        orjson.JSONDecodeError: The first is not JSON.
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
    """Tell whether what Arrow reads as a type is all that a value was."""
    return kind in _READ_WHOLE


def value_texts(column: pa.Array) -> pa.StringArray:
    """Write values as ``text_of`` does, of a type that ``is_read_whole``."""
    return column.cast(pa.string())


def texts_of_each(values: Sequence[Any]) -> pa.StringArray:
    """Write values one by one; null stays null."""
    return pa.array([None if v is None else text_of(v) for v in values], pa.string())


def escaped(texts: pa.StringArray) -> pa.StringArray:
    """Write texts as they stand between the quotes of JSON."""
    is_escaped = pc.fill_null(
        pc.match_substring_regex(texts, _ESCAPED), fill_value=False
    )
    if not pc.any(is_escaped).as_py():
        return texts
    written = [_json_text(text) for text in texts.filter(is_escaped).to_pylist()]
    return pc.replace_with_mask(texts, is_escaped, pa.array(written, pa.string()))


def _json_text(text: str) -> str:
    """Write one text as it stands between the quotes of JSON."""
    return orjson.dumps(text)[1:-1].decode()


def _coded(part: pa.StringArray, kind: type) -> pa.StringArray:
    """Write a part of keys so that it holds no joint."""
    if kind is not str:
        return part
    for sign, code in _CODED:
        part = pc.replace_substring(part, sign, code)
    return pc.if_else(pc.equal(part, ""), _EMPTY, part)


# What Arrow raises for values that it cannot read, or not as one column; and what is
# raised where the first key or one of the rows that are looked at is not JSON.
_MISFIT: Final = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    orjson.JSONDecodeError,
)
# Below what offsets of 32 bits reach, whatever is written around a row.
_MOST_BYTES: Final = 1024 * 1024 * 1024
# So many rows are looked at, to learn which columns are texts. Of any other that Arrow
# takes for an instant, the texts are looked for row by row.
_LOOKED_AT: Final = 32


class Taken(NamedTuple):
    """
    What was taken of a route's records.

    Attributes:
        places: Where they stand in the batch.
        keys: Of each key's newest row, the key's text.
        columns: Of the same rows the texts of each field, as they stand between the
            quotes of JSON, null where a row has none; at last the positions.
        below: How many more lie below the floor.
    """

    places: pa.Array
    keys: pa.StringArray
    columns: Mapping[str, pa.StringArray]
    below: int


class BulkCall(NamedTuple):
    """
    One call of the guard.

    Attributes:
        row_count: How many rows it writes.
        keys: Their names, each as a word of the server's protocol.
        columns: What is written, as JSON: the names of the fields, then of each the
            texts of all rows.
    """

    row_count: int
    keys: bytes
    columns: bytes


def take(columns: Columns, floor: str | None = None) -> Taken | None:
    """
    Write the whole rows of plain records for the guard.

    Args:
        columns: The records.
        floor: Rows at positions below are not written.

    Returns:
        What was taken; ``None`` if nothing is, or if a row has to be judged alone.
    """
    if columns.values.nbytes > _MOST_BYTES:
        return None
    try:
        keys = key_texts(columns.keys)
        return None if keys is None else _take(columns, keys, floor)
    except _MISFIT:
        return None


def calls(taken: Taken, place: str) -> Iterator[BulkCall]:
    """
    Cut what was taken into calls, bounded as those of ``script``.

    Args:
        taken: The rows.
        place: What the names of all rows of the route begin with.
    """
    columns = taken.columns.values()
    ends = _ends(_lengths(columns).to_pylist())
    begins = pa.array([0, *ends], pa.int32())
    length = pc.add(pc.binary_length(taken.keys), len(place.encode()))
    names = pc.binary_join_element_wise(
        "$", length.cast(pa.string()), "\r\n" + place, taken.keys, "\r\n", ""
    )
    cut_keys = _joined(names, begins, b"")
    cut_columns = zip(*(_lists(texts, begins) for texts in columns), strict=True)
    fields = orjson.dumps(list(taken.columns))
    begin = 0
    for end, keys, lists in zip(ends, cut_keys, cut_columns, strict=True):
        yield BulkCall(end - begin, keys, b"[%b,%b]" % (fields, b",".join(lists)))
        begin = end


def _take(columns: Columns, keys: pa.StringArray, floor: str | None) -> Taken | None:
    texts = [(name, pa.string()) for name in _columns_of_text(columns.values)]
    read = read_rows(columns, pa.struct(texts))
    if any(field.name in RESERVED_COLUMNS for field in read.rows.type):
        return None
    is_taken = pc.and_(read.is_whole, keys.is_valid())
    newest = _newest(keys, columns.positions, pc.indices_nonzero(is_taken))
    above = newest
    if floor is not None:
        is_above = pc.greater_equal(columns.positions.take(newest), floor)
        above = newest.filter(is_above)
    fields = _fields(read, columns.values, above)
    if fields is None:
        return None
    return Taken(
        places=columns.places.filter(is_taken),
        keys=keys.take(above),
        columns={**fields, POSITION_FIELD: columns.positions.take(above)},
        below=len(newest) - len(above),
    )


def _columns_of_text(values: pa.ChunkedArray) -> list[str]:
    """Look at some rows, all over the portion, for columns of text."""
    step = max(len(values) // _LOOKED_AT, 1)
    found: dict[str, None] = {}
    for value in values.take(pa.array(range(0, len(values), step))).to_pylist():
        envelope = orjson.loads(value)
        row = envelope.get("after") if isinstance(envelope, dict) else None
        if isinstance(row, dict):
            found |= dict.fromkeys(name for name, v in row.items() if type(v) is str)
    return list(found)


def _newest(keys: pa.StringArray, positions: pa.Array, at: pa.Array) -> pa.Array:
    """Choose each key's newest row, in order; of equal ones the first, as folded."""
    keys = keys.take(at)
    if len(keys.unique()) == len(keys):
        return at
    told = pa.table({"key": keys, "position": positions.take(at), "at": at})
    told = told.sort_by([("position", "descending"), ("at", "ascending")])
    by_key = told.group_by("key", use_threads=False).aggregate([("at", "first")])
    return by_key.column("at_first").combine_chunks().sort()


def _fields(
    read: Read, values: pa.ChunkedArray, at: pa.Array
) -> dict[str, pa.StringArray] | None:
    """Write the texts of some rows; ``None`` if a row may be without any."""
    rows = read.rows
    if len(at) < len(rows):
        rows, values = rows.take(at), values.take(at)
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
    """Return how many bytes of text each row has."""
    lengths = (pc.fill_null(pc.binary_length(texts), 0) for texts in columns)
    return reduce(pc.add, lengths)


def _ends(lengths: list[int]) -> list[int]:
    """Return where calls end that hold neither too many rows nor too many bytes."""
    ends: list[int] = []
    begin = size_bytes = 0
    for at, length in enumerate(lengths):
        if at > begin and (
            at - begin == ROWS_PER_CALL or size_bytes + length > BYTES_PER_CALL
        ):
            ends.append(at)
            begin, size_bytes = at, 0
        size_bytes += length
    return [*ends, len(lengths)]


def _lists(texts: pa.StringArray, begins: pa.Array) -> list[bytes]:
    """Write the texts of each call as a list of JSON."""
    if not texts.null_count:
        return [b'["%b"]' % one for one in _joined(texts, begins, b'","')]
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    told = _joined(pc.fill_null(quoted, "null"), begins, b",")
    return [b"[%b]" % one for one in told]


def _joined(texts: pa.StringArray, begins: pa.Array, between: bytes) -> list[bytes]:
    """Join the texts of each call."""
    lists = pa.ListArray.from_arrays(begins, texts.cast(pa.binary()))
    joined: list[bytes] = pc.binary_join(lists, between).to_pylist()
    return joined
