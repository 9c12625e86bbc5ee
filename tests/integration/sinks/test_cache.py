"""The cache, beyond the contract: what only Redis can do wrong."""

import uuid
from contextlib import closing

import pytest

from support.copying import replace
from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.errors import (
    CacheRefusedError,
    EvictingCacheError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch, StoredRow
from towpath.sinks.targets.cache import schema
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.cache.sink import CacheSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TOMBSTONE_S = 3600


@pytest.fixture
def prefix():
    """Return a prefix of the test's own."""
    return f"p{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sink(stack, prefix):
    """Provide a sink under the prefix, opened."""
    made = CacheSink(stack.redis_url, prefix, TOMBSTONE_S)
    made.open()
    yield made
    made.close()


def batch(row):
    """Make a batch of one change."""
    origin = Origin("orders", 0, 0)
    position = "0000000000000008.0000000000"
    change = Change("orders", (7,), ("id",), position, row, ALL_PRESENT, False, origin)
    return Batch(0, (change,))


def test_a_row_is_a_hash_of_text(sink, prefix, client):
    """Fields are columns as text; null is absent; the row never expires."""
    sink.apply(batch({"id": 7, "paid": True, "total": "1.50", "note": None}))
    sink.flush()
    place = f"{prefix}:orders:7"

    assert (
        {
            "id": "7",
            "paid": "true",
            "total": "1.50",
            "_position": "0000000000000008.0000000000",
        },
        -1,
    ) == (client.hgetall(place), client.ttl(place))


def test_a_tombstone_lives_as_long_as_a_replay_may_come(sink, prefix, client):
    """A delete leaves position and mark, and expires after the replay window."""
    sink.apply(batch(None))
    sink.flush()
    place = f"{prefix}:orders:7"

    assert (
        {"_position": "0000000000000008.0000000000", "_x": "1"},
        True,
    ) == (
        client.hgetall(place),
        TOMBSTONE_S - 60 < client.ttl(place) <= TOMBSTONE_S,
    )


def test_a_cache_that_evicts_is_refused(stack, client):
    """A policy that may throw guards away stops the sink, with its cure."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(EvictingCacheError, match="allkeys-lru") as refused:
            CacheSink(stack.redis_url, "p", TOMBSTONE_S).open()
    finally:
        client.config_set("maxmemory-policy", "noeviction")

    assert "noeviction" in refused.value.remedy
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_a_lost_guard_is_loaded_again(sink, client):
    """A server that lost its functions gets the guard back in the same batch."""
    client.function_flush()
    sink.apply(batch({"id": 7}))

    assert sink.flush().applied == 1


def test_a_guard_that_another_release_loaded_stays(sink, client):
    """Releases load libraries of their own names; one under an old name harms none."""
    does_nothing = "function() return {0, 0} end"
    other = f"redis.register_function('towpath_apply', {does_nothing})"
    client.function_load(f"#!lua name=towpath\n{other}", replace=True)
    sink.apply(batch({"id": 7}))

    assert sink.flush().applied == 1
    assert {"towpath", schema.library().source.partition("name=")[2].split()[0]} <= {
        library[1] for library in client.function_list()
    }


def test_a_foreign_value_under_a_rows_name_is_replaced(sink, prefix, client):
    """
    A value that another program wrote under a row's name is replaced by the row.
    """
    place = f"{prefix}:orders:7"
    client.set(place, "x")
    sink.apply(batch({"id": 7}))
    sink.flush()

    assert "7" == client.hget(place, "id")


def test_a_foreign_value_is_named_by_verification_and_stops_no_sweep(
    stack, sink, prefix, client
):
    """
    Another program's value is read as a row without content; a sweep leaves it alone.
    """
    sink.apply(batch({"id": 7}))
    sink.flush()
    client.set(f"{prefix}:orders:8", "x")
    reader = CacheReader(stack.redis_url, prefix)
    with closing(reader):
        before = {row.key: (row.fields, row.position) for row in reader.rows("orders")}
        floor = Floor("orders", "0000000000000009.-", False, Origin("orders", 0, 1))
        sink.apply(Batch(1, floors=(floor,)))
        sink.flush()
        after = list(reader.rows("orders"))

    assert (
        {"7": ({"id": "7"}, "0000000000000008.0000000000"), "8": ({}, "")},
        [StoredRow("8", {}, "", is_deleted=False)],
        "x",
    ) == (before, after, client.get(f"{prefix}:orders:8"))


@pytest.mark.parametrize("guard", [{"_position": "x"}, {}])
def test_a_position_that_is_none_is_below_every_position(sink, prefix, client, guard):
    """A hash with a guard that nobody can read, or with none, is overwritten, whole."""
    place = f"{prefix}:orders:7"
    client.hset(place, mapping={**guard, "old": "1"})
    sink.apply(batch({"id": 7}))
    sink.flush()

    assert {"id": "7", "_position": "0000000000000008.0000000000"} == (
        client.hgetall(place)
    )


def test_positions_above_a_double_are_distinguished(sink, prefix, client):
    """Two positions that one double stands for are still older and newer."""
    low, high = (f"{2**53 + n:016x}.0000000000" for n in (0, 1))
    (change,) = batch({"id": 7}).changes
    for position, note in ((high, "new"), (low, "old")):
        row = {"id": 7, "note": note}
        sink.apply(Batch(0, (replace(change, position=position, row=row),)))
    flushed = sink.flush()

    assert (1, 1, "new") == (
        flushed.applied,
        flushed.stale,
        client.hget(f"{prefix}:orders:7", "note"),
    )


def test_wrong_credentials_stop_the_sink(stack):
    """A password that the cache refuses is reported as such: waiting does not help."""
    sink = CacheSink(stack.redis_url.replace("//", "//u:p@"), "p", TOMBSTONE_S)

    with pytest.raises(CacheRefusedError, match="credentials"):
        sink.open()


def test_a_cache_that_does_not_answer_is_unavailable(unused_port):
    """A refused connection is reported as such, to be tried again."""
    sink = CacheSink(f"redis://127.0.0.1:{unused_port}/0", "p", TOMBSTONE_S)

    with pytest.raises(TargetUnavailableError, match="does not answer"):
        sink.open()
