"""Losses of a cache are noticed, and its rows are read again, once, after any crash."""

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


class Asked:
    """Notes what is asked for; refuses a route that it does not reach."""

    def __init__(self):
        self.all = []
        self.unreachable = None

    def request_keys(self, route, keys):
        """No key is asked for here."""
        raise AssertionError((route, keys))

    def request_all(self, route, why):
        """Note a route, and why."""
        if route == self.unreachable:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.all.append((route, why))
        return True


class Place:
    """One server, what was asked for, and sinks on it that share a file."""

    def __init__(self, server, file):
        self.server = server
        self.file = file
        self.asked = Asked()
        self.made = []

    def sink(self):
        """Make a sink, as a new process would."""
        watch = CacheWatch("cache", self.file, ROUTES, self.asked)
        sink = CacheSink(self.server.url, "p", 3600, watch)
        self.made.append(sink)
        return sink

    def opened(self):
        """Make a sink and open it."""
        sink = self.sink()
        sink.open()
        return sink

    def rows(self):
        """Read the orders back, by key."""
        reader = CacheReader(self.server.url, "p")
        try:
            return {row.key: row.fields for row in reader.rows("orders")}
        finally:
            reader.close()


@pytest.fixture
def place(tmp_path):
    """Provide a server of the test's own."""
    with valkey(tmp_path / "server") as server:
        lent = Place(server, tmp_path / "sink" / "cache.json")
        yield lent
        for sink in lent.made:
            sink.close()


def orders(*keys, row=True, at=1):
    """Make a batch of orders; without a row they are deleted."""
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


def everything(why):
    """Say what is asked for when all is lost."""
    return [(route, why) for route in ROUTES]


def test_a_cache_that_lost_its_last_second_is_read_again_once(place):
    """
    The file ends before an acknowledged batch: all routes are requested, once.
    """
    sink = place.opened()
    write(sink, orders(1))
    size_bytes = place.server.file.stat().st_size
    write(sink, orders(2, at=2))
    place.server.cut_short(size_bytes)
    place.opened()
    again = place.opened()
    write(again, orders(3, at=3))

    assert (everything(LAST_SECOND), {"1", "3"}) == (
        place.asked.all,
        place.rows().keys(),
    )


def test_a_running_sink_notices_a_lost_last_second(place):
    """
    The broken connection is reported; the batch is retried, and the loss is found.
    """
    sink = place.opened()
    write(sink, orders(1))
    size_bytes = place.server.file.stat().st_size
    write(sink, orders(2, at=2))
    place.server.cut_short(size_bytes)
    write(sink, orders(3, at=3))

    assert everything(LAST_SECOND) == place.asked.all


def test_a_kill_without_a_loss_requests_no_rows(place):
    """
    All rows that the server had written before it died are there.
    """
    write(place.opened(), orders(1), orders(2, at=2))
    place.server.kill()
    place.server.start()
    sink = place.opened()
    write(sink, orders(3, at=3))

    assert ([], {"1", "2", "3"}) == (place.asked.all, place.rows().keys())


def test_an_emptied_cache_is_read_again_once(place):
    """
    The flush after FLUSHALL requests the rows; the next one has new witnesses.
    """
    sink = place.opened()
    write(sink, orders(1))
    place.server.client.flushall()
    write(sink, orders(2, at=2), orders(3, at=3))

    assert everything(EMPTIED) == place.asked.all


def test_an_idle_sink_notices_that_its_cache_was_emptied(place):
    """No batch comes, and all is asked for all the same, once."""
    sink = place.opened()
    write(sink, orders(1))
    place.server.client.flushall()
    sink.maintain()
    sink.maintain()
    write(sink, orders(2, at=2))

    assert (everything(EMPTIED), {"2"}) == (place.asked.all, place.rows().keys())


def test_an_idle_sink_halts_when_its_cache_may_evict_keys(place):
    """
    Keys may be evicted at any time, so the sink cannot continue.
    """
    sink = place.opened()
    place.server.client.config_set("maxmemory-policy", "allkeys-lru")

    with pytest.raises(EvictingCacheError, match="maxmemory-policy"):
        sink.maintain()


def test_a_full_cache_makes_the_batch_retry(place):
    """
    It asks for room and for a pause; missing rows are written once it has room.
    """
    client = place.server.client
    sink = place.opened()
    write(sink, orders(1))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
    batch = orders(*range(5000), at=2)
    with pytest.raises(TargetBusyError, match="memory is full") as full:
        write(sink, batch)
    client.config_set("maxmemory", 0)
    write(sink, batch)

    assert (FULL_RETRY_AFTER_S, 5000, []) == (
        full.value.retry_after_s,
        len(place.rows()),
        place.asked.all,
    )


def test_a_running_sink_notices_an_empty_cache_after_a_restart(tmp_path):
    """
    A server without a file restarts between two batches: the rows are read again.
    """
    with valkey(tmp_path / "server", "--appendonly", "no") as server:
        place = Place(server, tmp_path / "cache.json")
        sink = place.opened()
        write(sink, orders(1))
        server.kill()
        server.start()
        write(sink, orders(2, at=2))
        sink.close()

    assert everything(EMPTIED) == place.asked.all


def test_a_cache_emptied_while_the_sink_is_down_is_read_again(place):
    """
    A sink that is opened finds its witness gone.
    """
    write(place.opened(), orders(1))
    place.server.client.flushall()
    place.opened()

    assert everything(EMPTIED) == place.asked.all


def test_a_new_sink_requests_no_rows(place):
    """
    Without a witness and stored state there is no loss.
    """
    write(place.opened(), orders(1))

    assert place.asked.all == []


def test_a_cache_that_evicted_keys_is_read_again_when_it_stops(place):
    """
    The sink halts; a restart hides the evictions, and all rows are read all the same.
    """
    client = place.server.client
    sink = place.opened()
    write(sink, orders(*range(5000)))
    used_bytes = client.info("memory")["used_memory"]
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", used_bytes - 200_000)
    sink.apply(orders(1, at=2))
    with pytest.raises(EvictingCacheError, match="allkeys-lru"):
        sink.flush()
    evicted = client.info("stats")["evicted_keys"]
    place.server.kill()
    place.server.start()
    place.opened()
    place.opened()

    assert evicted > 0
    assert everything(EVICTED) == place.asked.all


def test_old_evictions_are_no_loss(place):
    """Keys that went before the sink was there are not its own."""
    client = place.server.client
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.set("other", "x")
    client.config_set("maxmemory", 1)
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")
    write(place.opened(), orders(1))

    assert client.info("stats")["evicted_keys"] > 0
    assert place.asked.all == []


def test_a_loss_is_kept_until_its_rows_are_requested(place):
    """
    No broker, then a crash: the next process requests the remaining routes only.
    """
    sink = place.opened()
    write(sink, orders(1))
    place.server.client.flushall()
    place.asked.unreachable = "labels"
    sink.apply(orders(2, at=2))
    with pytest.raises(BrokerUnavailableError):
        sink.flush()
    place.asked.unreachable = None
    place.opened()

    assert everything(EMPTIED) == place.asked.all


def test_a_crash_before_new_witnesses_repeats_no_request(place):
    """
    Every route was requested: only the witnesses are missing.
    """
    sink = place.opened()
    write(sink, orders(1))
    known = orjson.loads(place.file.read_bytes())
    place.file.write_bytes(orjson.dumps({**known, "lost": EMPTIED, "unasked": []}))
    write(place.opened(), orders(2, at=2))

    assert place.asked.all == []
    assert known["id"] != orjson.loads(place.file.read_bytes())["id"]


def test_a_cache_without_a_file_is_read_again_after_a_restart(tmp_path):
    """
    A server without persistence has lost everything.
    """
    with valkey(tmp_path / "server", "--appendonly", "no") as server:
        place = Place(server, tmp_path / "cache.json")
        write(place.opened(), orders(1))
        server.kill()
        server.start()
        place.opened()
        for sink in place.made:
            sink.close()

    assert everything(EMPTIED) == place.asked.all


def test_a_server_that_dies_between_apply_and_flush_makes_the_batch_come_again(place):
    """Rows that it may have lost do not count; written again, they count once."""
    sink = place.opened()
    size_bytes = place.server.file.stat().st_size
    sink.apply(orders(1, 2))
    place.server.cut_short(size_bytes)
    with pytest.raises(TargetUnavailableError):
        sink.flush()
    sink.apply(orders(1, 2))

    assert (2, [], {"1", "2"}) == (
        sink.flush().applied,
        place.asked.all,
        place.rows().keys(),
    )


def test_a_server_that_is_gone_while_a_batch_is_written_is_reported(place):
    """Apply fails, nothing counts; a new sink writes the batch whole."""
    sink = place.opened()
    place.server.await_file()
    place.server.kill()
    with pytest.raises(TargetUnavailableError):
        sink.apply(orders(*range(2000)))
    place.server.start()
    write(place.opened(), orders(*range(2000)))

    assert (2000, []) == (len(place.rows()), place.asked.all)


def test_everything_again_changes_nothing(place):
    """All batches once more, from the first, leave each hash as it is."""
    history = [
        orders(*range(300)),
        orders(*range(100, 200), at=2),
        orders(*range(0, 300, 7), row=False, at=3),
        orders(*range(0, 300, 21), at=4),
    ]
    sink = place.opened()
    write(sink, *history)
    before = place.rows()
    write(place.opened(), *history)

    assert before == place.rows()


def test_a_file_that_is_written_at_once_is_waited_for(tmp_path):
    """With appendfsync always, a flush returns when the batch is on the disk."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey(tmp_path / "server", *options) as server:
        place = Place(server, tmp_path / "cache.json")
        write(place.opened(), orders(1), orders(2, at=2))
        waits = server.client.info("commandstats")["cmdstat_waitaof"]["calls"]
        for sink in place.made:
            sink.close()

    assert waits == 2


def test_a_file_that_is_turned_off_is_no_longer_waited_for(tmp_path):
    """The batch that meets it is retried; the sink does not halt."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey(tmp_path / "server", *options) as server:
        place = Place(server, tmp_path / "cache.json")
        sink = place.opened()
        write(sink, orders(1))
        server.client.config_set("appendonly", "no")
        with pytest.raises(TargetUnavailableError, match="no append-only file"):
            write(sink, orders(2, at=2))
        write(sink, orders(2, at=2))
        waits = server.client.info("commandstats")["cmdstat_waitaof"]
        rows = place.rows()
        for each in place.made:
            each.close()

    assert (2, 1, 2) == (waits["calls"], waits["failed_calls"], len(rows))
