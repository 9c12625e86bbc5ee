"""Behavior of the cache sink that is specific to Redis, beyond the sink contract."""

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
    """Return a key prefix for the test."""
    return f"p{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sink(stack, prefix):
    """Provide an open sink that uses the prefix."""
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
    """Fields are the columns as text; a null is left out; the row never expires."""
    sink.apply(batch({"id": 7, "paid": True, "total": "1.50", "note": None}))
    sink.flush()
    key = f"{prefix}:orders:7"

    assert (
        {
            "id": "7",
            "paid": "true",
            "total": "1.50",
            "_position": "0000000000000008.0000000000",
        },
        -1,
    ) == (client.hgetall(key), client.ttl(key))


def test_a_tombstone_expires_after_the_replay_window(sink, prefix, client):
    """
    A delete leaves its position and a marker, which expire after the replay window.
    """
    sink.apply(batch(None))
    sink.flush()
    key = f"{prefix}:orders:7"

    assert (
        {"_position": "0000000000000008.0000000000", "_x": "1"},
        True,
    ) == (
        client.hgetall(key),
        TOMBSTONE_S - 60 < client.ttl(key) <= TOMBSTONE_S,
    )


def test_a_cache_that_evicts_is_refused(stack, client):
    """An eviction policy that may remove guards stops the sink with a remedy."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(EvictingCacheError, match="allkeys-lru") as failure:
            CacheSink(stack.redis_url, "p", TOMBSTONE_S).open()
    finally:
        client.config_set("maxmemory-policy", "noeviction")

    assert "noeviction" in failure.value.remedy
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_a_lost_guard_is_loaded_again(sink, client):
    """
    A server that has lost its functions gets the guard back within the same batch.
    """
    client.function_flush()
    sink.apply(batch({"id": 7}))

    assert sink.flush().applied == 1


def test_a_guard_that_another_release_loaded_is_kept(sink, client):
    """
    Each release loads a library with its own name; one with an old name does no harm.
    """
    does_nothing = "function() return {0, 0} end"
    other = f"redis.register_function('towpath_apply', {does_nothing})"
    client.function_load(f"#!lua name=towpath\n{other}", replace=True)
    sink.apply(batch({"id": 7}))

    assert sink.flush().applied == 1
    assert {"towpath", schema.library().source.partition("name=")[2].split()[0]} <= {
        library[1] for library in client.function_list()
    }


def test_a_foreign_value_under_a_rows_key_is_replaced(sink, prefix, client):
    """
    A value that another program wrote under a row's key is replaced by the row.
    """
    key = f"{prefix}:orders:7"
    client.set(key, "x")
    sink.apply(batch({"id": 7}))
    sink.flush()

    assert "7" == client.hget(key, "id")


def test_a_foreign_value_is_read_as_an_empty_row_and_does_not_stop_a_sweep(
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
def test_an_invalid_position_is_below_every_position(sink, prefix, client, guard):
    """A hash with an unreadable guard, or without one, is replaced entirely."""
    key = f"{prefix}:orders:7"
    client.hset(key, mapping={**guard, "old": "1"})
    sink.apply(batch({"id": 7}))
    sink.flush()

    assert {"id": "7", "_position": "0000000000000008.0000000000"} == (
        client.hgetall(key)
    )


def test_positions_beyond_the_precision_of_a_double_are_distinguished(
    sink, prefix, client
):
    """Two positions that are equal as doubles are still ordered."""
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
    """A password that the cache refuses is reported; a retry would not help."""
    sink = CacheSink(stack.redis_url.replace("//", "//u:p@"), "p", TOMBSTONE_S)

    with pytest.raises(CacheRefusedError, match="credentials"):
        sink.open()


def test_a_cache_that_refuses_connections_is_unavailable(unused_port):
    """A refused connection is reported as temporary, so the batch is retried."""
    sink = CacheSink(f"redis://127.0.0.1:{unused_port}/0", "p", TOMBSTONE_S)

    with pytest.raises(TargetUnavailableError, match="does not answer"):
        sink.open()
