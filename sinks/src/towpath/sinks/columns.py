"""
Whole rows as columns: what can be taken of a batch without making a value of each.

A record is plain if it is a row change of one route that leaves rows as they are, has a
key, a value and a position, and says nothing else. Whatever is not plain goes the
ordinary way, record by record; so this needs to know nothing of poison, parked keys or
floors. It takes all other records of its key with it: a partial change must be folded
with whatever came before it. Pure.

Hot path: a fixed number of passes over the columns of a batch, none over its rows.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from towpath.schemas import headers as names
from towpath.schemas.envelope import Operation
from towpath.settings import RouteKind
from towpath.sinks.routes import Routes

# As ``record`` reads it: without the number among records of one change.
_POSITION: Final = r"^(?P<position>[0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?$"

_WHOLE: Final = pa.array(
    [Operation.CREATE.value, Operation.UPDATE.value, Operation.READ.value]
)
# What one thread reads at once; a larger record cannot be read here.
_BLOCK_BYTES: Final = 16 * 1024 * 1024


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
    places: pa.Array
    positions: pa.Array
    keys: pa.ChunkedArray
    values: pa.ChunkedArray


class Read(NamedTuple):
    """Rows that were read, and where those stand that are whole."""

    rows: pa.StructArray
    is_whole: pa.Array


def plain_columns(
    records: pa.Table, routes: Routes, apart: Collection[bytes] = ()
) -> list[Columns]:
    """
    Find the plain records of a batch, by route, in the order of the batch.

    Args:
        records: The batch.
        routes: What its records say.
        apart: Keys whose records go the ordinary way, whatever they say.
    """
    positions = _positions(records.column("headers"))
    keys = records.column("key")
    has_all = pc.and_(
        pc.and_(keys.is_valid(), records.column("value").is_valid()),
        positions.is_valid(),
    )
    if apart:
        is_apart = pc.is_in(keys, pa.array(apart, keys.type))
        has_all = pc.and_(has_all, pc.invert(is_apart))
    has_all = _without(_one(has_all), keys, keys.filter(pc.invert(has_all)))
    topics = records.column("topic")
    found = []
    for route, of_route in _plain_topics(topics.unique().to_pylist(), routes).items():
        is_plain = pc.and_(pc.is_in(topics, pa.array(of_route)), has_all)
        places = pc.indices_nonzero(is_plain)
        if not len(places):
            continue
        values = records.column("value").take(places)
        plain = (positions.take(places), keys.take(places), values)
        found.append(Columns(route, places, *plain))
    return found


def read_rows(columns: Columns, row: pa.StructType) -> Read:
    """
    Read the rows out of envelopes.

    Args:
        columns: Plain records.
        row: The columns to be read, as JSON has them; others come as they are found.

    Raises:
        pa.ArrowInvalid: A value is not JSON, or not of its column's type.
    """
    text = pa.BufferReader(b"\n".join(columns.values.to_pylist()))
    schema = pa.schema([("after", row), ("op", pa.string())])
    read = pyarrow.json.read_json(
        text,
        pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
        pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer"
        ),
    ).combine_chunks()
    if len(read) != len(columns.places):
        message = "a value is not one JSON document"
        raise pa.ArrowInvalid(message)
    rows = _one(read.column("after"))
    said = read.column("op")
    is_whole = _one(pc.and_(pc.is_in(said, _WHOLE), rows.is_valid()))
    is_known = pc.or_(is_whole, _one(pc.equal(said, Operation.DELETE.value)))
    strange = columns.keys.filter(pc.invert(pc.fill_null(is_known, fill_value=False)))
    return Read(rows, _without(is_whole, columns.keys, strange))


def newest_rows(rows: pa.Table, key: tuple[str, ...], position: str) -> pa.Table:
    """Keep the newest row of each key; all of them are whole."""
    if len(rows.group_by(list(key)).aggregate([])) == len(rows):
        return rows
    order = pc.sort_indices(rows.column(position))
    sorted_keys = rows.select(key).take(order)
    numbered = sorted_keys.append_column(position, pa.array(range(len(rows))))
    last = numbered.group_by(list(key)).aggregate([(position, "max")])
    return rows.take(order.take(last.column(f"{position}_max").combine_chunks()))


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


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    return (
        pa.concat_arrays(column.chunks)
        if column.num_chunks
        else column.combine_chunks()
    )
