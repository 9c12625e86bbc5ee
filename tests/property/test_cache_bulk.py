"""Rows written to the cache as columns give the same result as single rows."""

from typing import NamedTuple

import orjson
import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from support.guard_model import GuardModel
from support.record_table import cache_routes, table_of
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.columns import plain_columns
from towpath.sinks.changes.decode import decode, records_of
from towpath.sinks.fold import newest_per_key
from towpath.sinks.tally import Floors, Tally
from towpath.sinks.targets.cache import write

TOPIC = "towpath.shop.orders"
ROUTE = "shop:orders"
ROUTES = cache_routes(TOPIC, ROUTE)

TEXTS = st.sampled_from(["", ":", "%", "%3A", "%00", "a:b", "é", "\x00", 'q"\\', "\n"])
TEXTS |= st.text(max_size=5) | st.text(st.characters(max_codepoint=127), max_size=5)
INTEGERS = st.integers(-3, 3) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])
JSON = {
    "text": TEXTS.map(lambda text: orjson.dumps(text).decode()),
    "escaped": TEXTS.map(ascii).map(lambda _: '"\\u00e9\\/\\ud83d\\ude00"'),
    "integer": INTEGERS.map(str),
    "boolean": st.sampled_from(["true", "false"]),
    "instant": st.sampled_from(
        ['"2026-11-22T12:00:00.123456Z"', '"2026-11-22"', '"2026-11-22 12:00:00"', '""']
    ),
    "number": st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.sampled_from(["1.0", "1", "1e3", "1E+3", "-0", "-0.0", "0.10", "1e-7", "1e22"])
    | st.sampled_from(["9223372036854775808", "18446744073709551616"]),
    "nested": st.sampled_from(['[1,"a"]', "[]", '{"x":"\\""}', "{}", '[{"y":1.0}]']),
    "any": st.sampled_from(["1", '"1"', "true", "1.5", "null", "[]", '"null"']),
    "mixed": st.sampled_from(["1", '"1"', "1.5", "null", '[":"]', "-0", "2"]),
    "strange": st.sampled_from(
        ["NaN", "1e999", "01", '"\\ud800"', '"\\udc00"', '"\n"', "[1,]", "-Infinity"]
    ),
}
COLUMNS = ["id", "a b", 'q"\\', "é:%", "n\x00"]
USUAL = '{"before":null,"after":%s,"source":{"lsn":%d},"op":"%s","ts_ms":1}'
FORMS = st.sampled_from(
    [
        USUAL,
        '{"before":{"id":1.5,"at":"2026-11-22"},"after":%s,"source":{"lsn":%d},"op":"%s"}',
        '{"after":%s,"x":%d,"op":"%s"}',
        '{"after": %s, "source": {"lsn": %d}, "op": "%s"}',
        '{"op":"d","after":%s,"x":{"lsn":%d},"source":{"op":"%s"}}',
        '{"source":1,"after":%s,"source":{"lsn":%d},"op":"%s"}',
        '{"after":%s,"source":{"lsn":%d},"op":"%s"}\n',
        '{"after":%s,"source":{"lsn":%d},"op":"%s"',
        '{"after":%s,"source":{"lsn":%d},"op":"%s"}}',
        '{}{"after":%s,"source":{"lsn":%d},"op":"%s"}',
        '{"after":{},"after":%s,"source":{"lsn":%d},"op":"%s"}',
        '{"after":%s,"op":"c","source":{"lsn":%d},"op":"%s"}',
        '{"op":"d","after":%s,"source":{"lsn":%d},"op":"%s"}',
        '{"after":%s,"source":{"source":{},"source":{"lsn":%d}},"op":"%s"}',
        '{"before":{"x":NaN},"after":%s,"source":{"lsn":%d},"op":"%s"}',
        '{"after":%s,"source":{"lsn":%d,"x":1e999},"op":"%s"}',
    ]
)


class Shape(NamedTuple):
    """
    How a table's keys and values are spelled; only a strange table spells them oddly.
    """

    key: str
    columns: dict[str, st.SearchStrategy[str]]
    form: st.SearchStrategy[str]
    is_strange: bool


@st.composite
def shapes(draw):
    """Draw the shape of a table."""
    is_strange = draw(st.sampled_from([False, False, False, True]))
    usual = ["text", "text", "escaped", "integer", "boolean", "instant"]
    odd = ["number", "nested", *(["any", "strange"] if is_strange else [])]
    columns = {}
    for name in draw(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True)):
        kind = draw(st.sampled_from(usual * 3 + odd))
        nulls = draw(st.sampled_from([[], ["null"], ["null", ""]]))
        columns[name] = st.sampled_from(nulls) | JSON[kind] if nulls else JSON[kind]
    if is_strange and not draw(st.integers(0, 9)):
        columns["_position"] = JSON["text"]
    key = draw(st.sampled_from(["integer", "text", "both", "boolean", "mixed"]))
    form = st.just(draw(FORMS) if is_strange else USUAL)
    return Shape(
        key, columns, form | form | form | FORMS if is_strange else form, is_strange
    )


@st.composite
def keys(draw, shape):
    """Draw a key, mostly in the relay's spelling."""
    kinds = ["text", "integer"] if shape.key == "both" else [shape.key]
    parts = [draw(JSON[kind]) for kind in kinds]
    key = "{" + ",".join(f'"k {n}":{part}' for n, part in enumerate(parts)) + "}"
    if shape.is_strange and not draw(st.integers(0, 9)):
        return draw(st.sampled_from([key.replace(":", ": ", 1), key[1:], "{}", "[1]"]))
    return key


@st.composite
def histories(draw):
    """
    Draw records of a few keys: whole rows, and records that columns cannot hold.
    """
    shape = draw(shapes())
    few = st.sampled_from(draw(st.lists(keys(shape), min_size=1, max_size=6)))
    records = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        kind = draw(st.sampled_from("ccccccuuurrrdpt"))
        values = {name: draw(value) for name, value in shape.columns.items()}
        headers = {"position": b"%016x.%010d" % (8 * (number // 3), number % 3)}
        if kind == "p":
            headers["unchanged"] = orjson.dumps([values.popitem()[0]])
        named = [f"{orjson.dumps(n).decode()}:{v}" for n, v in values.items() if v]
        row = "null" if kind == "d" else "{" + ",".join(named) + "}"
        value_text = draw(shape.form) % (row, number, "u" if kind == "p" else kind)
        value = None if kind == "t" else value_text.encode()
        key = draw(few).encode()
        records.append(Record(Origin(TOPIC, 0, number), key, value, headers))
    records += draw(st.lists(st.sampled_from(records), max_size=2))
    return draw(st.permutations(records)) if draw(st.booleans()) else records


def written(guard, table, floor):
    """Write records one by one, like the sink; return unreadable ones' offsets."""
    decoded = decode(records_of(table), ROUTES)
    folded = newest_per_key(decoded.changes)
    floors, tally = Floors(), Tally()
    floors.learn(ROUTE, floor)
    for changes in (folded.changes, folded.after):
        guard.write(floors.above(changes, tally))
    guard.counts[1] += tally.stale
    return [unreadable.origin.offset for unreadable in decoded.unreadable]


FLOORS = st.none() | st.integers(0, 4).map(lambda n: f"{8 * n:016x}.0000000001")


@given(histories(), FLOORS)
def test_rows_written_as_columns_equal_rows_written_one_by_one(found, floor):
    """
    For any keys and values, both methods store the same rows.

    Records that columns cannot hold, such as unreadable ones, are left to be written
    one by one. If no record is left, the counts are equal too.
    """
    table = table_of(found)
    one_by_one, guard = GuardModel(), GuardModel()
    unreadable = written(one_by_one, table, floor)
    left = table
    for columns in plain_columns(table, ROUTES):
        taken = write.encode(columns, floor)
        event("taken" if taken is not None else "not taken")
        if taken is not None:
            guard.take(taken, ROUTE)
            every = pa.array(range(len(table)))
            at = taken.indices.cast(every.type)
            left = table.filter(pa.compute.invert(pa.compute.is_in(every, at)))
    is_taken = len(left) < len(table)

    assert (unreadable, one_by_one.rows) == (written(guard, left, floor), guard.rows)
    if is_taken and not len(left):
        assert one_by_one.counts == guard.counts
