"""
Whole rows as columns: what can be taken of a batch without making a value of each.

A record is plain if it is a row change of one route that leaves rows as they are, has a
key, a value and a position, and says nothing else. Whatever is not plain goes the
ordinary way, record by record; so this needs to know nothing of poison, parked keys or
floors. It takes all other records of its key with it, so that what becomes of a key is
settled in one place. Pure.

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

# As ``record`` reads it: without the number among records of one change.
_POSITION: Final = r"^(?P<position>[0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?$"

_WHOLE: Final = pa.array(
    [Operation.CREATE.value, Operation.UPDATE.value, Operation.READ.value]
)
# What one thread reads at once; a larger record cannot be read here.
_BLOCK_BYTES: Final = 16 * 1024 * 1024
# What stands behind the row in an envelope; no text holds it, its quotes are escaped.
_SOURCE: Final = '"source":{'
# Arrow takes seconds for one value that is nested some thousand times; at a hundred
# thousand its stack, and the process, ends. The ordinary way reads up to a thousand.
_BRACKETS: Final = 500
# A shorter text cannot be as deep: each bracket is closed again.
_SHORT_BYTES: Final = 2 * _BRACKETS
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Columns(NamedTuple):
    """
    Plain records of one route.

    Attributes:
        places: Where they stand in the batch.
        positions: Their positions as text.
        keys: Their keys as they came.
        values: Their envelopes.
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
        rows: A key may stand there several times.
        places: Where the records stand that they came from, one for each row.
    """

    rows: pa.Table
    indices: pa.Array


class ParsedRows(NamedTuple):
    """
    Rows that were read.

    Attributes:
        rows: The rows, of all records.
        is_whole: Where those stand that are whole.
        has_escapes: Whether a text may hold what JSON escapes.
    """

    rows: pa.StructArray
    is_whole: pa.Array
    has_escapes: bool


class _SplitEnvelopes(NamedTuple):
    """Envelopes up to their sources, and what follows, each text once."""

    heads: pa.LargeStringArray
    tails: pa.DictionaryArray


class _ParsedObjects(NamedTuple):
    """JSON objects as they were read, and whether anything in them is escaped."""

    read: pa.Table
    has_escapes: bool


def plain_columns(
    records: pa.Table, routes: Routes, excluded_keys: Collection[bytes] = ()
) -> list[Columns]:
    """
    Find the plain records of a batch, by route, in the order of the batch.

    Args:
        records: The batch.
        routes: What its records say.
        excluded_keys: Keys whose records are written record by record.
    """
    positions = _positions(records.column("headers"))
    keys = records.column("key")
    has_all = pc.and_(
        pc.and_(keys.is_valid(), records.column("value").is_valid()),
        positions.is_valid(),
    )
    if excluded_keys:
        is_apart = pc.is_in(keys, pa.array(excluded_keys, keys.type))
        has_all = pc.and_(has_all, pc.invert(is_apart))
    has_all = _without(_one(has_all), keys, keys.filter(pc.invert(has_all)))
    topics = records.column("topic")
    found = []
    for route, of_route in _plain_topics(topics.unique().to_pylist(), routes).items():
        is_plain = pc.and_(pc.is_in(topics, pa.array(of_route)), has_all)
        indices = pc.indices_nonzero(is_plain)
        if not len(indices):
            continue
        plain = (_at(c, indices) for c in (positions, keys, records.column("value")))
        found.append(Columns(route, indices, *plain))
    return found


def read_rows(columns: Columns, row: pa.StructType) -> ParsedRows:
    """
    Read the rows out of envelopes.

    Args:
        columns: Plain records.
        row: The columns to be read, as JSON has them; others come as they are found.

    Raises:
        pa.ArrowInvalid: A value is not JSON, or not of its column's type.
    """
    rows, said, has_escapes = _read(_one(columns.values.cast(pa.large_string())), row)
    is_whole = pc.and_(pc.is_in(said, _WHOLE), rows.is_valid())
    is_whole = pc.fill_null(is_whole, fill_value=False)
    strange = columns.keys.filter(pc.invert(is_whole))
    return ParsedRows(rows, _without(is_whole, columns.keys, strange), has_escapes)


def newest_rows(rows: pa.Table, key: tuple[str, ...], position: str) -> pa.Table:
    """Keep the newest row of each key; all of them are whole."""
    if len(rows.group_by(list(key)).aggregate([])) == len(rows):
        return rows
    order = pc.sort_indices(rows.column(position))
    sorted_keys = rows.select(key).take(order)
    numbered = sorted_keys.append_column(position, pa.array(range(len(rows))))
    last = numbered.group_by(list(key)).aggregate([(position, "max")])
    newest = order.take(last.column(f"{position}_max").combine_chunks())
    # Taken by their places, texts of more than 2 GiB would have to be one piece.
    return rows.filter(pc.is_in(pa.array(range(len(rows)), newest.type), newest))


def _read(
    envelopes: pa.LargeStringArray, row: pa.StructType
) -> tuple[pa.StructArray, pa.StringArray, bool]:
    """Return rows, operations, and whether anything is escaped in them."""
    are_objects = pc.and_(pc.starts_with(envelopes, '{"'), pc.ends_with(envelopes, "}"))
    if not pc.all(are_objects).as_py():
        _refuse("a value is no JSON object")
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
    """Cut each in front of its source, which is mostly the same for many of them."""
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
    Read texts as one JSON object each.

    With what is put before and behind them they begin and end with a brace; so one that
    is none, or several, shows in the count: no object goes on behind another's brace.
    """
    encoded = texts.cast(pa.large_binary())
    if any(map(_is_deep, _long(encoded))):
        _refuse("a value is nested too deeply")
    every = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), encoded)
    between = pa.scalar(closing + b"\n" + opening, encoded.type)
    lines = b"".join((opening, pc.binary_join(every, between)[0].as_buffer(), closing))
    read = pyarrow.json.read_json(
        pa.BufferReader(lines),
        pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
        pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="infer"
        ),
    )
    if len(read) != len(texts):
        _refuse("a value is not one JSON object")
    if _is_beyond_json(read):
        _refuse("a value has a number that JSON does not know")
    return _ParsedObjects(read, b"\\" in lines)


def _long(texts: pa.LargeBinaryArray) -> Iterator[bytes]:
    is_long = pc.greater(pc.binary_length(texts), _SHORT_BYTES)
    return (text.as_py() for text in texts.filter(is_long))


def _is_deep(text: bytes) -> bool:
    """Tell whether a text may be nested too deeply; brackets in its texts are not."""
    return _brackets(text) > _BRACKETS and _brackets(_TEXT.sub(b"", text)) > _BRACKETS


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _is_beyond_json(read: pa.Table) -> bool:
    """Tell whether Arrow has read a number that JSON has no word for."""
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
    """Say that values cannot be read here."""
    raise pa.ArrowInvalid(message)


def _plain_topics(topics: list[str], routes: Routes) -> dict[str, list[str]]:
    """Sort topics by the route that reads them, if one does and changes nothing."""
    found: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        reading = routes.reading(topic)
        if len(reading) == 1 and reading[0].routing is None:
            route = reading[0].route
            if route.kind is RouteKind.TABLE:
                found[route.name].append(topic)
    return found


def _positions(headers: pa.ChunkedArray) -> pa.Array:
    """Return each record's position; null where the headers say more, or less."""
    lists = _one(headers)
    entries = lists.flatten()
    parents = pc.list_parent_indices(lists)
    every = pa.array(range(len(lists)), parents.type)
    name, values = entries.field("key"), entries.field("value")
    is_position = pc.equal(name, names.POSITION)
    known = pa.array([names.POSITION, names.SNAPSHOT], name.type)
    is_strange = pc.invert(pc.is_in(name, known))
    if parents.filter(is_position).equals(every) and not pc.any(is_strange).as_py():
        texts = values.filter(is_position)
    else:
        told = pa.table(
            {
                "record": parents,
                "text": pc.if_else(is_position, values, None),
                "is_position": is_position,
                "is_strange": is_strange,
            }
        )
        texts = _of_plain(told, every)
    found = pc.extract_regex(texts, _POSITION)
    return pc.struct_field(found, "position").cast(pa.string())


def _of_plain(told: pa.Table, every: pa.Array) -> pa.Array:
    """Return the position of each record that has one, and no strange header."""
    by_record = told.group_by("record").aggregate(
        [("text", "max"), ("is_position", "sum"), ("is_strange", "max")]
    )
    is_plain = pc.and_(
        pc.equal(by_record.column("is_position_sum"), 1),
        pc.invert(by_record.column("is_strange_max")),
    )
    texts = _one(pc.if_else(is_plain, by_record.column("text_max"), None))
    # A record without headers is not among them: it is put back as null.
    return texts.take(pc.index_in(every, _one(by_record.column("record"))))


def _without(
    chosen: pa.Array, keys: pa.ChunkedArray, strange: pa.ChunkedArray
) -> pa.Array:
    """Take all records of strange keys out of what is chosen."""
    if not len(strange):
        return chosen
    return pc.and_(chosen, pc.invert(_one(pc.is_in(keys, strange.unique()))))


def _at(
    column: pa.ChunkedArray | pa.Array, indices: pa.Array
) -> pa.ChunkedArray | pa.Array:
    """Return what stands at places in their order; nothing is copied if it is all."""
    return column if len(indices) == len(column) else column.take(indices)


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array; nothing is copied if it is one."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return (
        pa.concat_arrays(column.chunks)
        if column.num_chunks
        else column.combine_chunks()
    )
