"""
Whole rows as columns, without a Python value for each row.

A record is plain if only one route reads its topic, a table route without a routing,
and if it has a key, a value, a position and no other header, except that of a snapshot.
Other records are read one by one, together with all records of their keys, so that each
key is handled in one place. Dead letters, parked keys and floors are therefore unknown
here. No I/O.

Hot path: a fixed number of passes over the columns of a batch, none over its rows.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from towpath.schemas import headers as names
from towpath.schemas.envelope import Operation
from towpath.settings import RouteKind
from towpath.sinks.changes.routing import Routes

# Like ``change.position_in``, this leaves out the suffix that numbers the records of
# one change.
_POSITION: Final = r"^(?P<position>[0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?$"

_WHOLE: Final = pa.array(
    [Operation.CREATE.value, Operation.UPDATE.value, Operation.READ.value]
)
# The block that one thread parses; a larger record cannot be parsed here.
_BLOCK_BYTES: Final = 16 * 1024 * 1024
# Follows the row in an envelope. No string contains it, because quotes in strings are
# escaped.
_SOURCE: Final = '"source":{'
# Arrow takes seconds for a value with a few thousand levels, and at a hundred thousand
# its stack overflows and the process crashes. A record that is read by itself may have
# a thousand levels.
_BRACKETS: Final = 500
# A shorter string cannot be that deep, because each bracket must be closed.
_SHORT_BYTES: Final = 2 * _BRACKETS
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Columns(NamedTuple):
    """
    Plain records of one route.

    Attributes:
        indices: The records' row numbers in the batch.
        positions: The records' positions as text.
        keys: The record keys, as bytes.
        values: The envelopes, as bytes.
    """

    route: str
    indices: pa.Array
    positions: pa.Array
    keys: pa.ChunkedArray
    values: pa.ChunkedArray


class EncodedColumns(NamedTuple):
    """
    Whole rows as a sink's own columns.

    Attributes:
        rows: The rows; a key may occur several times.
        indices: The row number in the batch of each row's record.
    """

    rows: pa.Table
    indices: pa.Array


class ParsedRows(NamedTuple):
    """
    Rows parsed from envelopes.

    Attributes:
        rows: The rows of all records.
        is_whole: For each row, whether it is whole.
        has_escapes: Whether a string may contain characters that JSON escapes.
    """

    rows: pa.StructArray
    is_whole: pa.Array
    has_escapes: bool


class _SplitEnvelopes(NamedTuple):
    """Envelopes up to their sources, and the distinct strings that follow."""

    heads: pa.LargeStringArray
    tails: pa.DictionaryArray


class _ParsedObjects(NamedTuple):
    """Parsed JSON objects, and whether any string in them is escaped."""

    read: pa.Table
    has_escapes: bool


def plain_columns(
    records: pa.Table, routes: Routes, excluded_keys: Collection[bytes] = ()
) -> list[Columns]:
    """
    Return the plain records of a batch, by route, in the order of the batch.

    Args:
        records: The batch.
        routes: The routes of the sink.
        excluded_keys: Keys whose records are read one by one.
    """
    positions = _positions(records.column("headers"))
    keys = records.column("key")
    has_all = pc.and_(
        pc.and_(keys.is_valid(), records.column("value").is_valid()),
        positions.is_valid(),
    )
    if excluded_keys:
        is_excluded = pc.is_in(keys, pa.array(excluded_keys, keys.type))
        has_all = pc.and_(has_all, pc.invert(is_excluded))
    has_all = _without(_one(has_all), keys, keys.filter(pc.invert(has_all)))
    topics = records.column("topic")
    found = []
    for route, route_topics in _plain_topics(
        topics.unique().to_pylist(), routes
    ).items():
        is_plain = pc.and_(pc.is_in(topics, pa.array(route_topics)), has_all)
        indices = pc.indices_nonzero(is_plain)
        if not len(indices):
            continue
        plain = (_at(c, indices) for c in (positions, keys, records.column("value")))
        found.append(Columns(route, indices, *plain))
    return found


def read_rows(columns: Columns, row: pa.StructType) -> ParsedRows:
    """
    Parse the rows in envelopes.

    Args:
        columns: Plain records.
        row: The columns to parse, as JSON has them; the types of others are inferred.

    Raises:
        pa.ArrowInvalid: A value is not JSON, or not of its column's type.
    """
    envelopes = _one(columns.values.cast(pa.large_string()))
    rows, operations, has_escapes = _read(envelopes, row)
    is_whole = pc.and_(pc.is_in(operations, _WHOLE), rows.is_valid())
    is_whole = pc.fill_null(is_whole, fill_value=False)
    other_keys = columns.keys.filter(pc.invert(is_whole))
    return ParsedRows(rows, _without(is_whole, columns.keys, other_keys), has_escapes)


def newest_rows(rows: pa.Table, key: tuple[str, ...], position: str) -> pa.Table:
    """Keep the newest row of each key; all rows must be whole."""
    if len(rows.group_by(list(key), use_threads=False).aggregate([])) == len(rows):
        return rows
    order = pc.sort_indices(rows.column(position))
    sorted_keys = rows.select(key).take(order)
    numbered = sorted_keys.append_column(position, pa.array(range(len(rows))))
    # Threads do not make this faster, not even with 20,000 rows.
    grouped = numbered.group_by(list(key), use_threads=False)
    last = grouped.aggregate([(position, "max")])
    newest = order.take(last.column(f"{position}_max").combine_chunks())
    # ``take`` would need all strings in one chunk, which cannot have more than 2 GiB.
    return rows.filter(pc.is_in(pa.array(range(len(rows)), newest.type), newest))


def _read(
    envelopes: pa.LargeStringArray, row: pa.StructType
) -> tuple[pa.StructArray, pa.StringArray, bool]:
    """Return rows, operations, and whether a string in them is escaped."""
    are_objects = pc.and_(pc.starts_with(envelopes, '{"'), pc.ends_with(envelopes, "}"))
    if not pc.all(are_objects).as_py():
        _refuse("a value is not a JSON object")
    after, operation = ("after", row), ("op", pa.string())
    parts = _cut(envelopes)
    if parts is not None:
        head = _objects(parts.heads, [after], closing=b"}")
        opening = b"{" + _SOURCE.encode()
        tail = _objects(parts.tails.dictionary, [operation], opening)
        if set(head.read.column_names).isdisjoint(tail.read.column_names):
            operations = _one(tail.read.column("op")).take(parts.tails.indices)
            return _one(head.read.column("after")), operations, head.has_escapes
    whole = _objects(envelopes, [after, operation])
    rows, operations = (_one(whole.read.column(name)) for name in ("after", "op"))
    return rows, operations, whole.has_escapes


def _cut(envelopes: pa.LargeStringArray) -> _SplitEnvelopes | None:
    """Split each envelope before its source, which is the same in many envelopes."""
    parts = pc.split_pattern(envelopes, "," + _SOURCE, max_splits=1)
    if not pc.all(pc.equal(pc.list_value_length(parts), 2)).as_py():
        return None
    flat = parts.flatten()
    is_head = pa.array([True, False] * len(parts))
    tails = flat.filter(pc.invert(is_head))
    return _SplitEnvelopes(flat.filter(is_head), tails.dictionary_encode())


def _objects(
    texts: pa.LargeStringArray,
    fields: list[tuple[str, pa.DataType]],
    opening: bytes = b"",
    closing: bytes = b"",
) -> _ParsedObjects:
    """
    Parse each string as one JSON object.

    With ``opening`` and ``closing``, each string begins and ends with a brace. The
    number of parsed objects reveals a string that is not exactly one object, because an
    object cannot continue after its closing brace.
    """
    encoded = texts.cast(pa.large_binary())
    if any(map(_is_deep, _long(encoded))):
        _refuse("a value is nested too deeply")
    every = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), encoded)
    between = pa.scalar(closing + b"\n" + opening, encoded.type)
    lines = b"".join((opening, pc.binary_join(every, between)[0].as_buffer(), closing))
    read = pyarrow.json.read_json(
        pa.BufferReader(lines),
        # Threads for a single block would only add two context switches, which take
        # long on a busy machine.
        pyarrow.json.ReadOptions(
            use_threads=len(lines) > _BLOCK_BYTES, block_size=_BLOCK_BYTES
        ),
        pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="infer"
        ),
    )
    if len(read) != len(texts):
        _refuse("a value is not one JSON object")
    if _is_beyond_json(read):
        _refuse("a value has a number that JSON does not have")
    return _ParsedObjects(read, b"\\" in lines)


def _long(texts: pa.LargeBinaryArray) -> Iterator[bytes]:
    is_long = pc.greater(pc.binary_length(texts), _SHORT_BYTES)
    return (text.as_py() for text in texts.filter(is_long))


def _is_deep(text: bytes) -> bool:
    """
    Return whether a JSON text may be nested too deeply.

    Brackets in strings do not count.
    """
    return _brackets(text) > _BRACKETS and _brackets(_TEXT.sub(b"", text)) > _BRACKETS


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _is_beyond_json(read: pa.Table) -> bool:
    """Return whether Arrow has parsed a number that JSON does not have."""
    finite: list[pa.ChunkedArray] = []
    left = list(read.columns)
    while left:
        column = left.pop()
        kind = column.type
        if pa.types.is_struct(kind):
            left += column.flatten()
        elif pa.types.is_list(kind):
            left.append(pc.list_flatten(column))
        elif pa.types.is_floating(kind):
            finite.append(pc.is_finite(column))
    return any(pc.any(pc.invert(column)).as_py() for column in finite)


def _refuse(message: str) -> NoReturn:
    """Raise the error for values that cannot be parsed here."""
    raise pa.ArrowInvalid(message)


def _plain_topics(topics: list[str], routes: Routes) -> dict[str, list[str]]:
    """Group topics by the one route that reads them without a routing."""
    found: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        reading = routes.reading(topic)
        if len(reading) == 1 and reading[0].routing is None:
            route = reading[0].route
            if route.kind is RouteKind.TABLE:
                found[route.name].append(topic)
    return found


def _positions(headers: pa.ChunkedArray) -> pa.Array:
    """Return each record's position; null if it has none, or an unknown header."""
    lists = _one(headers)
    entries = lists.flatten()
    parents = pc.list_parent_indices(lists)
    every = pa.array(range(len(lists)), parents.type)
    name, values = entries.field("key"), entries.field("value")
    is_position = pc.equal(name, names.POSITION)
    known = pa.array([names.POSITION, names.SNAPSHOT], name.type)
    is_unknown = pc.invert(pc.is_in(name, known))
    if parents.filter(is_position).equals(every) and not pc.any(is_unknown).as_py():
        texts = values.filter(is_position)
    else:
        entries_table = pa.table(
            {
                "record": parents,
                "text": pc.if_else(is_position, values, None),
                "is_position": is_position,
                "is_unknown": is_unknown,
            }
        )
        texts = _plain_positions(entries_table, every)
    found = pc.extract_regex(texts, _POSITION)
    return pc.struct_field(found, "position").cast(pa.string())


def _plain_positions(entries_table: pa.Table, every: pa.Array) -> pa.Array:
    """Return the position of each record that has one, and no unknown header."""
    by_record = entries_table.group_by("record", use_threads=False).aggregate(
        [("text", "max"), ("is_position", "sum"), ("is_unknown", "max")]
    )
    is_plain = pc.and_(
        pc.equal(by_record.column("is_position_sum"), 1),
        pc.invert(by_record.column("is_unknown_max")),
    )
    texts = _one(pc.if_else(is_plain, by_record.column("text_max"), None))
    # A record without headers is missing here: it becomes null.
    return texts.take(pc.index_in(every, _one(by_record.column("record"))))


def _without(
    chosen: pa.Array, keys: pa.ChunkedArray, other_keys: pa.ChunkedArray
) -> pa.Array:
    """Remove all records of the given keys from a selection."""
    if not len(other_keys):
        return chosen
    return pc.and_(chosen, pc.invert(_one(pc.is_in(keys, other_keys.unique()))))


def _at(
    column: pa.ChunkedArray | pa.Array, indices: pa.Array
) -> pa.ChunkedArray | pa.Array:
    """Return the values at indices; nothing is copied if all are taken."""
    return column if len(indices) == len(column) else column.take(indices)


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array; nothing is copied if it has one chunk."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return (
        pa.concat_arrays(column.chunks)
        if column.num_chunks
        else column.combine_chunks()
    )
