"""Writing columns to a real cache has the same result as writing rows."""

import random
import uuid
from typing import NamedTuple

import orjson
import pytest

from support.record_table import cache_routes, table_of
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.columns import plain_columns
from towpath.sinks.changes.decode import decode
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch
from towpath.sinks.targets.cache.sink import CacheSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TOPIC, ROUTE = "towpath.shop.lines", "shop.lines"
ROUTES = cache_routes(TOPIC, ROUTE)
TEXTS = ["", "x" * 140, 'a "b"\\\n\x00\x1f', "é😀", "%:", None]
PARTS = ["", ":", "%", "a:b", "a%3Ab", "é", '"', "\n", "plain"]
TOMBSTONE_S = 3600


class SinkWithPrefix(NamedTuple):
    """A sink, and the prefix of its rows' keys."""

    sink: CacheSink
    prefix: str


@pytest.fixture
def make(stack):
    """Provide a function that makes open sinks, each with its own prefix."""
    made = []

    def make():
        prefix = f"p:{uuid.uuid4().hex}"
        made.append(CacheSink(stack.redis_url, prefix, TOMBSTONE_S))
        made[-1].open()
        return SinkWithPrefix(made[-1], prefix.replace(":", "%3A") + ":" + ROUTE)

    yield make
    for sink in made:
        sink.close()


def history(rng, count):
    """Make records of some keys: whole rows, some deletes, some partial changes."""
    records = []
    for number in range(count):
        part, line = rng.choice(PARTS), rng.randrange(count // 20)
        row = {
            "part": part,
            "line": line,
            "size": rng.choice([number, 2**63 - 1, -(2**63), None]),
            "ratio": rng.choice([0.1, 1.0, 1, -0.0, 1e300, None]),
            "is_paid": rng.choice([True, False, None]),
            "changed_at": f"2026-11-22T12:00:00.{number:06d}Z",
            "note": rng.choice(TEXTS),
            "tags": rng.choice([["a", '"'], [], None]),
        }
        operation = rng.choice("cuurrd" if number % 10 == 0 else "cuurrr")
        after = None if operation == "d" else row
        headers = {"position": b"%016x.%010d" % (8 * (number // 4), number % 4)}
        if number % 50 == 49 and after is not None:
            del row["note"]
            headers["unchanged"] = b'["note"]'
        source = {"lsn": number // 7, "txId": None}
        value = {"before": None, "after": after, "source": source, "op": operation}
        key = orjson.dumps({"part": part, "line": line})
        origin = Origin(TOPIC, 0, number)
        records.append(Record(origin, key, orjson.dumps(value), headers))
    return records


def write(sink, records):
    """Write the folded records row by row."""
    folded = newest_per_key(decode(records, ROUTES).changes)
    sink.apply(Batch(0, folded.changes))
    sink.apply(Batch(0, folded.after))
    sink.flush()


def hashes(client, prefix):
    """Return every hash of a sink by its key, without the prefix."""
    names = sorted(client.scan_iter(f"{prefix}:*", count=1000))
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(name)
        found = pipeline.execute()
    return {n.removeprefix(prefix): f for n, f in zip(names, found, strict=True)}


def test_rows_taken_as_columns_equal_those_written_one_by_one(make, client):
    """
    3,000 shuffled records yield equal rows; those not taken as columns come last.

    Writing the columns again changes nothing.
    """
    rng = random.Random(11)  # noqa: S311 - a repeatable test
    records = history(rng, 3000)
    rng.shuffle(records)
    (by_column, prefix), one_by_one = make(), make()
    write(one_by_one.sink, records)
    (columns,) = plain_columns(table_of(records), ROUTES)
    taken = by_column.apply_columns(columns).to_pylist()
    left = sorted({*range(len(records))} - {*taken})
    write(by_column, [records[index] for index in left])
    by_column.flush()
    expected = hashes(client, one_by_one.prefix)

    assert (True, True) == (1000 < len(taken) < 3000, len(expected) > 500)
    assert expected == hashes(client, prefix)
    by_column.apply_columns(columns)
    by_column.flush()
    assert expected == hashes(client, prefix)


def test_columns_replace_any_value_under_their_keys(make, client):
    """Columns replace tombstones, wider rows, strings, and hashes without a guard."""
    records = [r for r in history(random.Random(3), 100) if b'"op":"d"' not in r.value]  # noqa: S311 - a repeatable test
    (columns,) = plain_columns(table_of(records), ROUTES)
    (by_column, prefix), expected = make(), make()
    expected.sink.apply_columns(columns)
    expected.sink.flush()
    names = sorted(hashes(client, expected.prefix))
    deleted, wider, unguarded, strange = (prefix + name for name in names[:4])
    client.hset(deleted, mapping={"_position": "0" * 16 + ".-", "_x": "1"})
    client.expire(deleted, TOMBSTONE_S)
    client.hset(wider, mapping={"_position": "0" * 16 + ".-", "dropped": "1"})
    client.hset(unguarded, "dropped", "1")
    client.set(strange, "x")
    by_column.apply_columns(columns)
    by_column.flush()

    assert hashes(client, expected.prefix) == hashes(client, prefix)
    assert [-1] * 4 == [client.ttl(n) for n in (deleted, wider, unguarded, strange)]


def test_counts_match_the_written_rows(make, client):
    """
    Rows count as applied, or as stale if the cache has newer ones.

    A lost guard is loaded again.
    """
    sink, prefix = make()
    rng = random.Random(5)  # noqa: S311 - a repeatable test
    records = [r for r in history(rng, 3000) if b'"op":"d"' not in r.value]
    records = [r for r in records if "unchanged" not in r.headers]
    (columns,) = plain_columns(table_of(records), ROUTES)
    client.function_flush()
    taken = sink.apply_columns(columns)
    first = sink.flush()
    (older,) = plain_columns(table_of(records[:1000]), ROUTES)
    sink.apply_columns(older)
    second = sink.flush()
    keys = {records[index].key for index in taken.to_pylist()}
    older_keys = {record.key for record in records[:1000]} & keys

    assert (len(keys), 0) == (first.applied, first.stale)
    assert (len(older_keys), True) == (
        second.applied + second.stale,
        0 < second.applied < second.stale,
    )
    assert len(keys) == len(hashes(client, prefix))
