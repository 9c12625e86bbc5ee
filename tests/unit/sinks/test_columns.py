"""Rows taken as columns: plain rows are encoded as on the record path."""

import random

import orjson
import pyarrow as pa
import pytest

from support.copying import replace
from towpath.settings import Route, RouteKind, Sink, SinkKind
from towpath.sinks.changes.columns import newest_rows, plain_columns
from towpath.sinks.changes.decode import decode, records_of
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routes
from towpath.sinks.fold import newest_per_key
from towpath.sinks.targets.warehouse import rows
from towpath.sinks.targets.warehouse.schema import POSITION, current_state

TOPIC = "towpath.shop.orders"
SHAPE = RelationShape(
    "shop",
    "orders",
    (
        Column("id", "bigint"),
        Column("line", "integer"),
        Column("total", "numeric", (12 << 16 | 2) + 4),
        Column("weight", "numeric"),
        Column("paid", "boolean"),
        Column("body", "jsonb"),
        Column("placed_at", "timestamp with time zone"),
        Column("local_at", "timestamp without time zone"),
        Column("day", "date"),
        Column("ratio", "double precision"),
        Column("share", "real"),
    ),
    ("id", "line"),
    "0",
)
TABLE = current_state("shop.orders", SHAPE)
ROW = {
    "total": "-9999999999.99",
    "weight": "1234567890123456789012345678901234567890.5",
    "paid": True,
    "body": '{"a": "😀\\n", "b": [1.0, null]}',
    "placed_at": "2026-03-29T01:30:00.000001Z",
    "local_at": "1066-10-14T09:00:00.999999",
    "day": "2026-02-28",
    "ratio": 0.1,
    "share": 0.3,
}
HEADER = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def routes(**options):
    """Return the routes of a warehouse with one table."""
    route = Route(topic=TOPIC, name="shop.orders", **options)
    return Routes(
        Sink(
            name="w",
            kind=SinkKind.WAREHOUSE,
            url="postgresql://db/w",
            folder="/data",
            route=(route,),
        )
    )


def record(number, key, row, operation="c", topic=TOPIC, **headers):
    """Make a record as Kafka has it; ``headers`` are added to the position."""
    named = {"id": key, "line": 1}
    after = None if row is None else named | row
    envelope = {"before": None, "after": after, "source": {"x": number, "d": "2026"}}
    position = b"%016x.%010d" % (8 * number, 0)
    return {
        "topic": topic,
        "partition": 0,
        "offset": number,
        "key": orjson.dumps(named),
        "value": orjson.dumps(envelope | {"op": operation}),
        "headers": [
            {"key": name, "value": value}
            for name, value in {"position": position, **headers}.items()
        ],
    }


def batch(*records):
    """Put records into a table like those of the engine."""
    columns = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADER,
    }
    return pa.table(
        {n: pa.array([r[n] for r in records], kind) for n, kind in columns.items()}
    )


def taken(table, read=None):
    """Take all plain rows; return each key's newest row, and all indices."""
    (columns,) = plain_columns(table, read or routes())
    encoded = rows.encode_columns(TABLE, columns)
    if encoded is None:
        return None
    return replace(encoded, rows=newest_rows(encoded.rows, TABLE.key, POSITION))


def as_records(table):
    """Encode the same rows on the record path."""
    changes = decode(records_of(table), routes()).changes
    return rows.encode_changes(TABLE, newest_per_key(changes).changes).rows


def test_column_rows_equal_those_of_the_record_path():
    """The rows have all types, nulls, missing columns, repeated keys and READ rows."""
    rng = random.Random(7)  # noqa: S311 - shuffles rows
    records = [record(n, rng.randrange(40), ROW) for n in range(1, 60)]
    records += [record(n, n, {"paid": None, "ratio": 1}) for n in range(60, 70)]
    records += [record(n, n, ROW | {"share": None}, "u") for n in range(70, 80)]
    read = record(80, 99, ROW, "r", snapshot=b"s")
    read["headers"][0]["value"] = b"%016x.-" % 640
    again = record(81, 99, ROW | {"day": None}, "u")
    again["headers"][0]["value"] += b".2"
    records += [read, again, record(82, 79, {"total": None}, "u")]
    rng.shuffle(records)
    table = batch(*records)
    by_key = [("id", "ascending")]
    found = taken(table)

    assert len(records) == len(found.indices)
    expected = as_records(table).sort_by(by_key).to_pylist()

    assert expected == found.rows.sort_by(by_key).to_pylist()


@pytest.mark.parametrize(
    "odd",
    [
        record(5, 5, None, "d"),
        record(5, 5, ROW, unchanged=b'["body"]'),
        record(5, 5, None, "c"),
        record(5, 5, ROW, sweep=b"0"),
        record(5, 5, ROW, strange=b"\xff"),
        record(5, 5, ROW) | {"headers": [{"key": "position", "value": b"\xff"}]},
        record(5, 5, ROW, **{"towpath-barrier": b""}),
        record(5, 5, ROW) | {"value": None},
        record(5, 5, ROW) | {"key": None},
        record(5, 5, ROW) | {"headers": []},
        record(5, 5, ROW) | {"headers": [{"key": "position", "value": b"x"}]},
        record(5, 5, ROW) | {"headers": [{"key": "position", "value": b"1.0"}] * 2},
        record(5, 5, ROW, topic="towpath.other"),
        record(5, 5, ROW, "t"),
    ],
)
def test_records_that_are_not_plain_are_left_to_the_record_path(odd):
    """
    The records around such a record are taken.
    """
    found = taken(batch(record(1, 1, ROW), odd, record(9, 9, ROW)))

    assert ([0, 2], [1, 9]) == (
        found.indices.to_pylist(),
        found.rows.column("id").to_pylist(),
    )


@pytest.mark.parametrize(
    "row",
    [
        {"line": 2**40},
        {"total": "99999999999.99"},
        {"paid": "yes"},
        {"placed_at": "infinity"},
        {"ratio": "NaN"},
        {"id": None},
        {"id": 1.5},
        {"gone": "a column that the table does not have"},
        {"_position": "0"},
    ],
)
def test_a_batch_with_a_value_that_does_not_fit_is_not_taken(row):
    """
    The record path decides whether it is refused, converted or left out.
    """
    assert taken(batch(record(1, 1, ROW), record(2, 2, ROW | row))) is None


def test_a_value_that_is_not_json_is_not_taken():
    """
    Such a value would give one row too few, or no rows at all.
    """
    broken = record(2, 2, ROW) | {"value": b"\n"}

    assert taken(batch(record(1, 1, ROW), broken)) is None


@pytest.mark.parametrize(
    "options",
    [{"exclude": ("paid",)}, {"constants": {"a": 1}}, {"kind": RouteKind.EVENT_LOG}],
)
def test_a_route_that_changes_rows_takes_no_columns(options):
    """
    Only the record path implements its rules.
    """
    assert [] == plain_columns(batch(record(1, 1, ROW)), routes(**options))


def test_newest_rows_are_found_among_several_gib_of_text():
    """
    Five chunks hold half a GiB each, and their key has a newer row: none is copied.
    """
    half = 2**29
    half_gib = pa.StringArray.from_buffers(
        1, pa.array([0, half], pa.int32()).buffers()[1], pa.py_buffer(bytes(half))
    )
    columns = {
        "id": pa.chunked_array([pa.array([7])] * 6),
        "note": pa.chunked_array([*[half_gib] * 5, pa.array(["newest"])]),
        POSITION: pa.chunked_array([pa.array([str(n)]) for n in range(6)]),
    }
    found = newest_rows(pa.table(columns), ("id",), POSITION)

    assert [{"id": 7, "note": "newest", POSITION: "5"}] == found.to_pylist()
