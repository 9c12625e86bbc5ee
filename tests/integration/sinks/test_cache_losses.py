"""
Losses in a cache are detected, and its rows are requested once, even after a crash.
"""

import orjson
import pytest

from support.valkey import valkey
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.errors import (
    BrokerUnavailableError,
    EvictingCacheError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.targets.cache.client import FULL_RETRY_AFTER_S
from towpath.sinks.targets.cache.losses import CacheWatch
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.cache.sink import CacheSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROUTES = ("orders", "labels")
LAST_SECOND = "the cache lost its most recent writes"
EMPTIED = "the cache was emptied"
EVICTED = "the cache evicted keys because its memory was full"


class Recorder:
    """Records the requested routes; fails for a route that is unreachable."""

    def __init__(self):
        self.all = []
        self.unreachable = None

    def request_keys(self, route, keys):
        """Fail, because no key may be requested here."""
        raise AssertionError((route, keys))

    def request_all(self, route, why):
        """Record a route and the reason."""
        if route == self.unreachable:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.all.append((route, why))
        return True


class Rig:
    """One server, the recorded requests, and sinks on it that share a state file."""

    def __init__(self, server, file):
        self.server = server
        self.file = file
        self.recorder = Recorder()
        self.made = []

    def sink(self):
        """Make a sink, as a new process would."""
        watch = CacheWatch("cache", self.file, ROUTES, self.recorder)
        sink = CacheSink(self.server.url, "p", 3600, watch)
        self.made.append(sink)
        return sink

    def opened(self):
        """Make a sink and open it."""
        sink = self.sink()
        sink.open()
        return sink

    def rows(self):
        """Return the stored orders by key."""
        reader = CacheReader(self.server.url, "p")
        try:
            return {row.key: row.fields for row in reader.rows("orders")}
        finally:
            reader.close()


@pytest.fixture
def rig(tmp_path):
    """Provide a server for the test."""
    with valkey(tmp_path / "server") as server:
        made = Rig(server, tmp_path / "sink" / "cache.json")
        yield made
        for sink in made.made:
            sink.close()


def orders(*keys, row=True, at=1):
    """Make a batch of orders; without a row they are deletes."""
    changes = []
    for key in keys:
        image = {"id": key, "note": f"of {at}"} if row else None
        position = f"{at * 8:016x}.{key:010d}"
        origin = Origin("orders", 0, key)
        change = ("orders", (key,), ("id",), position, image, ALL_PRESENT, False)
        changes.append(Change(*change, origin))
    return Batch(at, tuple(changes))


def write(sink, *batches):
    """Apply and flush each batch."""
    for batch in batches:
        sink.apply(batch)
        sink.flush()


def all_requests(why):
    """Return the requests that follow a complete loss."""
    return [(route, why) for route in ROUTES]


def test_a_cache_that_lost_its_last_second_is_filled_again_once(rig):
    """
    The file lacks an acknowledged batch, so all routes are requested once.
    """
    sink = rig.opened()
    write(sink, orders(1))
    size_bytes = rig.server.written_bytes()
    write(sink, orders(2, at=2))
    rig.server.cut_short(size_bytes)
    rig.opened()
    again = rig.opened()
    write(again, orders(3, at=3))

    assert (all_requests(LAST_SECOND), {"1", "3"}) == (
        rig.recorder.all,
        rig.rows().keys(),
    )


def test_a_running_sink_notices_a_lost_last_second(rig):
    """
    The broken connection is reported; the batch is retried, and the loss is found.
    """
    sink = rig.opened()
    write(sink, orders(1))
    size_bytes = rig.server.written_bytes()
    write(sink, orders(2, at=2))
    rig.server.cut_short(size_bytes)
    write(sink, orders(3, at=3))

    assert all_requests(LAST_SECOND) == rig.recorder.all


def test_a_kill_without_a_loss_requests_no_rows(rig):
    """
    All rows that the server had written before it died are still there.
    """
    write(rig.opened(), orders(1), orders(2, at=2))
    rig.server.kill()
    rig.server.start()
    sink = rig.opened()
    write(sink, orders(3, at=3))

    assert ([], {"1", "2", "3"}) == (rig.recorder.all, rig.rows().keys())


def test_an_emptied_cache_is_filled_again_once(rig):
    """
    The flush after FLUSHALL requests the rows; the next one has new witnesses.
    """
    sink = rig.opened()
    write(sink, orders(1))
    rig.server.client.flushall()
    write(sink, orders(2, at=2), orders(3, at=3))

    assert all_requests(EMPTIED) == rig.recorder.all


def test_an_idle_sink_notices_that_its_cache_was_emptied(rig):
    """Although no batch arrives, all routes are requested once."""
    sink = rig.opened()
    write(sink, orders(1))
    rig.server.client.flushall()
    sink.maintain()
    sink.maintain()
    write(sink, orders(2, at=2))

    assert (all_requests(EMPTIED), {"2"}) == (rig.recorder.all, rig.rows().keys())


def test_an_idle_sink_halts_when_its_cache_may_evict_keys(rig):
    """
    Keys may be evicted at any time, so the sink cannot continue.
    """
    sink = rig.opened()
    rig.server.client.config_set("maxmemory-policy", "allkeys-lru")

    with pytest.raises(EvictingCacheError, match="maxmemory-policy"):
        sink.maintain()


def test_a_batch_is_retried_while_the_cache_is_full(rig):
    """
    The error requires a pause; the retry writes the missing rows once memory is free.
    """
    client = rig.server.client
    sink = rig.opened()
    write(sink, orders(1))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
    batch = orders(*range(5000), at=2)
    with pytest.raises(TargetBusyError, match="memory is full") as full:
        write(sink, batch)
    client.config_set("maxmemory", 0)
    write(sink, batch)

    assert (FULL_RETRY_AFTER_S, 5000, []) == (
        full.value.retry_after_s,
        len(rig.rows()),
        rig.recorder.all,
    )


def test_a_running_sink_notices_an_empty_cache_after_a_restart(tmp_path):
    """
    A server without a file restarts between two batches: the rows are read again.
    """
    with valkey(tmp_path / "server", "--appendonly", "no") as server:
        rig = Rig(server, tmp_path / "cache.json")
        sink = rig.opened()
        write(sink, orders(1))
        server.kill()
        server.start()
        write(sink, orders(2, at=2))
        sink.close()

    assert all_requests(EMPTIED) == rig.recorder.all


def test_a_cache_emptied_while_the_sink_is_down_is_filled_again(rig):
    """
    At its next start, the sink finds that its witness is missing.
    """
    write(rig.opened(), orders(1))
    rig.server.client.flushall()
    rig.opened()

    assert all_requests(EMPTIED) == rig.recorder.all


def test_a_new_sink_requests_no_rows(rig):
    """
    Without a witness and without stored state there is no loss.
    """
    write(rig.opened(), orders(1))

    assert rig.recorder.all == []


def test_a_cache_that_evicted_keys_is_filled_again_once_eviction_ends(rig):
    """
    The sink halts; although a restart hides the evictions, all rows are requested.
    """
    client = rig.server.client
    sink = rig.opened()
    write(sink, orders(*range(5000)))
    used_bytes = client.info("memory")["used_memory"]
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", used_bytes - 200_000)
    sink.apply(orders(1, at=2))
    with pytest.raises(EvictingCacheError, match="allkeys-lru"):
        sink.flush()
    evicted = client.info("stats")["evicted_keys"]
    rig.server.kill()
    rig.server.start()
    rig.opened()
    rig.opened()

    assert evicted > 0
    assert all_requests(EVICTED) == rig.recorder.all


def test_old_evictions_are_not_a_loss(rig):
    """Keys that were evicted before the sink existed were not its keys."""
    client = rig.server.client
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.set("other", "x")
    client.config_set("maxmemory", 1)
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")
    write(rig.opened(), orders(1))

    assert client.info("stats")["evicted_keys"] > 0
    assert rig.recorder.all == []


def test_a_loss_is_kept_until_its_rows_are_requested(rig):
    """
    After a broker outage and a crash, the next process requests the remaining routes.
    """
    sink = rig.opened()
    write(sink, orders(1))
    rig.server.client.flushall()
    rig.recorder.unreachable = "labels"
    sink.apply(orders(2, at=2))
    with pytest.raises(BrokerUnavailableError):
        sink.flush()
    rig.recorder.unreachable = None
    rig.opened()

    assert all_requests(EMPTIED) == rig.recorder.all


def test_a_crash_before_new_witnesses_repeats_no_request(rig):
    """
    Every route was requested, and only the new witnesses are missing.
    """
    sink = rig.opened()
    write(sink, orders(1))
    known = orjson.loads(rig.file.read_bytes())
    rig.file.write_bytes(orjson.dumps({**known, "lost": EMPTIED, "unasked": []}))
    write(rig.opened(), orders(2, at=2))

    assert rig.recorder.all == []
    assert known["id"] != orjson.loads(rig.file.read_bytes())["id"]


def test_a_cache_without_a_file_is_filled_again_after_a_restart(tmp_path):
    """
    A server without persistence has lost everything.
    """
    with valkey(tmp_path / "server", "--appendonly", "no") as server:
        rig = Rig(server, tmp_path / "cache.json")
        write(rig.opened(), orders(1))
        server.kill()
        server.start()
        rig.opened()
        for sink in rig.made:
            sink.close()

    assert all_requests(EMPTIED) == rig.recorder.all


def test_a_server_that_dies_between_apply_and_flush_causes_a_retry(rig):
    """Rows that may have been lost do not count; written again, they count once."""
    sink = rig.opened()
    size_bytes = rig.server.written_bytes()
    sink.apply(orders(1, 2))
    rig.server.cut_short(size_bytes)
    with pytest.raises(TargetUnavailableError):
        sink.flush()
    sink.apply(orders(1, 2))

    assert (2, [], {"1", "2"}) == (
        sink.flush().applied,
        rig.recorder.all,
        rig.rows().keys(),
    )


def test_a_server_that_dies_while_a_batch_is_written_is_reported(rig):
    """Apply fails and nothing counts; a new sink writes the entire batch."""
    sink = rig.opened()
    rig.server.written_bytes()
    rig.server.kill()
    with pytest.raises(TargetUnavailableError):
        sink.apply(orders(*range(2000)))
    rig.server.start()
    write(rig.opened(), orders(*range(2000)))

    assert (2000, []) == (len(rig.rows()), rig.recorder.all)


def test_repeating_all_batches_changes_nothing(rig):
    """All batches are written again from the first, and every hash remains the same."""
    history = [
        orders(*range(300)),
        orders(*range(100, 200), at=2),
        orders(*range(0, 300, 7), row=False, at=3),
        orders(*range(0, 300, 21), at=4),
    ]
    sink = rig.opened()
    write(sink, *history)
    before = rig.rows()
    write(rig.opened(), *history)

    assert before == rig.rows()


def test_a_flush_waits_for_a_file_that_is_synced_on_every_write(tmp_path):
    """With appendfsync always, a flush returns once the batch is on disk."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey(tmp_path / "server", *options) as server:
        rig = Rig(server, tmp_path / "cache.json")
        write(rig.opened(), orders(1), orders(2, at=2))
        waits = server.client.info("commandstats")["cmdstat_waitaof"]["calls"]
        for sink in rig.made:
            sink.close()

    assert waits == 2


def test_a_flush_does_not_wait_for_a_file_that_was_turned_off(tmp_path):
    """The first batch afterwards is retried; the sink does not halt."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey(tmp_path / "server", *options) as server:
        rig = Rig(server, tmp_path / "cache.json")
        sink = rig.opened()
        write(sink, orders(1))
        server.client.config_set("appendonly", "no")
        with pytest.raises(TargetUnavailableError, match="no append-only file"):
            write(sink, orders(2, at=2))
        write(sink, orders(2, at=2))
        waits = server.client.info("commandstats")["cmdstat_waitaof"]
        rows = rig.rows()
        for each in rig.made:
            each.close()

    assert (2, 1, 2) == (waits["calls"], waits["failed_calls"], len(rows))
