"""
Whole rows as calls of the guard, column by column, without a value of each. Pure.

What the calls hold is what ``script`` would write of the same records, folded: of each
key the newest row, its fields as text, nothing of what is null. A record that has to be
looked at by itself is not taken, so that it is judged in one place.

Hot path: a fixed number of passes over the columns of a portion.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.cache.script import BYTES_PER_CALL, ROWS_PER_CALL
from towpath.sinks.cache.texts import (
    escaped,
    is_read_whole,
    json_text,
    key_texts,
    texts_of_each,
    value_texts,
)
from towpath.sinks.columns import Columns, Read, read_rows
from towpath.sinks.record import RESERVED_COLUMNS

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

_BETWEEN: Final = '","'


class Taken(NamedTuple):
    """
    What was taken of a route's records.

    Attributes:
        places: Where they stand in the batch.
        keys: Of each key's newest row, the key's text.
        rows: The same rows as the guard takes them, JSON each.
        below: How many more lie below the floor.
    """

    places: pa.Array
    keys: pa.StringArray
    rows: pa.StringArray
    below: int


class BulkCall(NamedTuple):
    """
    One call of the guard.

    Attributes:
        row_count: How many rows it writes.
        keys: Their names, each as a word of the server's protocol.
        rows: What is written, as JSON.
    """

    row_count: int
    keys: bytes
    rows: bytes


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
    ends = _ends(pc.binary_length(taken.rows).to_pylist())
    begins = pa.array([0, *ends], pa.int32())
    length = pc.add(pc.binary_length(taken.keys), len(place.encode()))
    names = pc.binary_join_element_wise(
        "$", length.cast(pa.string()), "\r\n" + place, taken.keys, "\r\n", ""
    )
    cut = (_joined(names, begins, b""), _joined(taken.rows, begins, b","))
    begin = 0
    for end, keys, rows in zip(ends, *cut, strict=True):
        yield BulkCall(end - begin, keys, b"[%b]" % rows)
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
        rows=pc.binary_join_element_wise(
            '["', columns.positions.take(above), '","f",["', fields, '"],[]]', ""
        ),
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


def _fields(read: Read, values: pa.ChunkedArray, at: pa.Array) -> pa.StringArray | None:
    """Write names and texts of some rows; ``None`` if a row may be without any."""
    rows = read.rows
    if len(at) < len(rows):
        rows, values = rows.take(at), values.take(at)
    named = zip((field.name for field in rows.type), rows.flatten(), strict=True)
    columns = {name: column for name, column in named if column.null_count < len(rows)}
    if all(column.null_count for column in columns.values()):
        return None
    are_whole = all(is_read_whole(column.type) for column in columns.values())
    single = [] if are_whole else [orjson.loads(v)["after"] for v in values.to_pylist()]
    parts: list[pa.StringArray | str] = []
    for name, column in columns.items():
        if not is_read_whole(column.type):
            texts = escaped(texts_of_each([row.get(name) for row in single]))
        elif read.has_escapes:
            texts = escaped(value_texts(column))
        else:
            texts = value_texts(column)
        parts += _pair(json_text(name), texts)
    return pc.binary_join_element_wise(*parts, _BETWEEN, null_handling="skip")


def _pair(name: str, texts: pa.StringArray) -> tuple[pa.StringArray | str, ...]:
    """Return a column's name and its texts; what is null takes the name with it."""
    if not texts.null_count:
        return name, texts
    return (pc.binary_join_element_wise(name, texts, _BETWEEN),)


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


def _joined(texts: pa.StringArray, begins: pa.Array, between: bytes) -> list[bytes]:
    """Join the texts of each call."""
    lists = pa.ListArray.from_arrays(begins, texts.cast(pa.binary()))
    joined: list[bytes] = pc.binary_join(lists, between).to_pylist()
    return joined
