"""The cache on a cluster of three servers: no call has keys from two slots."""

import random
from contextlib import ExitStack, suppress

import pytest
import redis

from support.valkey import valkey
from support.waiting import until
from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.errors import TargetBusyError, TargetUnavailableError
from towpath.sinks.fold import newest_per_key
from towpath.sinks.ports import Batch
from towpath.sinks.targets.cache.client import Servers
from towpath.sinks.targets.cache.losses import CacheWatch
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.cache.schema import slot_of
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.memory import MemorySink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

OPTIONS = ("--appendonly", "yes", "--cluster-enabled", "yes")
SHARES = ((0, 5460), (5461, 10922), (10923, 16383))


class Recorder:
    """Records the routes that are requested."""

    def __init__(self):
        self.all = []

    def request_keys(self, route, keys):
        """Fail, because no key may be requested here."""
        raise AssertionError((route, keys))

    def request_all(self, route, why):
        """Record a route and the reason."""
        self.all.append((route, why))
        return True


def write(sink, batch):
    """Write a batch, and wait for the responses."""
    sink.apply(batch)
    sink.flush()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Provide three servers that share the slots."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as held:
        made = [
            held.enter_context(valkey(folder / f"{number}", *OPTIONS))
            for number in range(len(SHARES))
        ]
        for node, share in zip(made, SHARES, strict=True):
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", *share)
            address = ("127.0.0.1", made[0].port, made[0].bus_port)
            node.client.execute_command("CLUSTER MEET", *address)
        until(lambda: all(map(is_whole, made)), "the cluster is whole", pause_s=0.02)
        yield made


@pytest.fixture
def recorder():
    """Provide a recorder of requests."""
    return Recorder()


@pytest.fixture
def sink(nodes, recorder, tmp_path, unique):
    """Provide a sink that has the address of one of the servers."""
    watch = CacheWatch("cache", tmp_path / "cache.json", ("orders",), recorder)
    made = CacheSink(nodes[1].url, unique, 3600, watch)
    made.open()
    yield made
    made.close()


@pytest.fixture
def reader(nodes, unique):
    """Provide a reader that has the address of a different server."""
    made = CacheReader(nodes[2].url, unique)
    yield made
    made.close()


def is_whole(node):
    """
    Return whether a server reports a healthy cluster, and knows all other servers.
    """
    found = node.client.execute_command("CLUSTER INFO")
    return found["cluster_state"] == "ok" and found["cluster_known_nodes"] == "3"


def order(key, at, row=True, unchanged=ALL_PRESENT):
    """Make a change to an order; without a row it is a delete."""
    image = {"id": key, "note": f"of {at}"} if row else None
    origin = Origin("orders", 0, 0)
    position = f"{at * 8:016x}.0000000000"
    return Change("orders", (key,), ("id",), position, image, unchanged, False, origin)


def stored(reader):
    """Return the stored orders by key: the position, and whether the row is deleted."""
    return {r.key: (r.position, r.is_deleted) for r in reader.rows("orders")}


def test_rows_are_spread_over_servers_and_any_client_finds_them(
    nodes, sink, reader, unique
):
    """Keys are the same as on a single server; each server has some of the rows."""
    sink.apply(Batch(0, tuple(order(key, 1) for key in range(600))))
    flushed = sink.flush()
    parts = [sum(1 for _ in n.client.scan_iter(f"{unique}:orders:*")) for n in nodes]
    with redis.cluster.RedisCluster.from_url(nodes[0].url) as client:
        note = client.hget(f"{unique}:orders:7", "note")

    assert (600, 600, b"of 1") == (flushed.applied, len(stored(reader)), note)
    assert (600, True) == (sum(parts), all(part > 100 for part in parts))


def test_any_delivery_converges_to_the_reference(sink, reader):
    """Changes are shuffled, repeated and split, with deletes and a floor in between."""
    rng = random.Random(20_260_102)  # noqa: S311 - a repeatable test
    history = [order(rng.randint(1, 200), at, rng.random() < 0.8) for at in range(900)]
    floor = Floor("orders", f"{300 * 8:016x}.-", False, Origin("orders", 0, 0))
    reference = MemorySink()
    for target in (reference, sink):
        delivery = history + rng.choices(history, k=200)
        rng.shuffle(delivery)
        while delivery:
            some, delivery = delivery[:150], delivery[150:]
            target.apply(Batch(0, newest_per_key(some).changes, (), (floor,)))
            target.flush()

    expected = {
        key: (row.position, row.row is None)
        for key, row in reference.rows["orders"].items()
    }

    assert expected == stored(reader)


def test_a_partial_change_to_a_missing_row_requests_a_refetch(sink):
    """The change is refused and needs a refetch, whichever call it was in."""
    whole = [order(key, 1) for key in range(50)]
    partial = order(99, 1, unchanged=frozenset({"blob"}))
    sink.apply(Batch(0, (*whole, partial)))
    (refusal,) = sink.flush().refused

    assert ((99,), True) == (refusal.change.key, refusal.needs_refetch)


def test_one_emptied_server_counts_as_a_loss(nodes, sink, recorder):
    """Each server has its own witnesses."""
    sink.apply(Batch(0, tuple(order(key, 1) for key in range(100))))
    sink.flush()
    nodes[2].client.flushall()
    sink.flush()
    sink.flush()

    assert recorder.all == [("orders", "the cache was emptied")]


def test_a_loss_after_another_server_was_full_is_detected(nodes, sink, recorder):
    """A witness count that rose on one server while another was full hides no loss."""
    sink.apply(Batch(0, tuple(order(key, 1) for key in range(100))))
    sink.flush()
    nodes[2].client.config_set("maxmemory", 1)
    for _ in range(3):
        with pytest.raises(TargetBusyError, match="memory is full"):
            sink.maintain()
    nodes[2].client.config_set("maxmemory", 0)
    size_bytes = nodes[0].written_bytes()
    sink.apply(Batch(1, tuple(order(key, 2) for key in range(100))))
    sink.flush()
    nodes[0].cut_short(size_bytes)
    until(lambda: all(map(is_whole, nodes)), "the cluster is whole", pause_s=0.02)
    with suppress(TargetBusyError, TargetUnavailableError):
        sink.maintain()
    sink.maintain()

    assert recorder.all == [("orders", "the cache lost its most recent writes")]


def test_a_slot_that_moved_is_found_again(nodes, sink, unique):
    """The first batch fails as busy; its retry finds the slot on the new server."""
    slots = {key: slot_of(f"{unique}:orders:{key}") for key in range(1000)}
    key, slot = next(kept for kept in slots.items() if is_free(nodes[0], kept[1]))
    give(nodes, slot, taker=nodes[1])
    with pytest.raises(TargetBusyError, match="is moving slots"):
        write(sink, Batch(0, (order(key, 1),)))
    sink.apply(Batch(0, (order(key, 1),)))
    applied = sink.flush().applied
    found = list(nodes[1].client.scan_iter(f"{unique}:orders:*"))
    nodes[1].client.flushall()
    give(nodes, slot, taker=nodes[0])

    assert (1, [f"{unique}:orders:{key}"]) == (applied, found)


def is_free(node, slot):
    """
    Return whether a slot is empty, belongs to the first server, and has no witness.
    """
    count = node.client.execute_command("CLUSTER COUNTKEYSINSLOT", slot)
    return slot <= SHARES[0][1] and slot % 256 and not count


def give(nodes, slot, taker):
    """Move an empty slot to another server."""
    name = taker.client.execute_command("CLUSTER MYID")
    for node in (taker, *nodes):
        node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", name)


def test_a_row_whose_slot_is_moving_is_written_once_the_move_ends(nodes, sink, unique):
    """
    A redirect from the server that is giving the slot away means a busy target.
    """
    slots = {key: slot_of(f"{unique}:orders:{key}") for key in range(1000)}
    key, slot = next(kept for kept in slots.items() if is_free(nodes[0], kept[1]))
    giver, taker = nodes[0].client, nodes[1].client
    names = [client.execute_command("CLUSTER MYID") for client in (giver, taker)]
    taker.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
    giver.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
    with pytest.raises(TargetBusyError, match="is moving slots"):
        write(sink, Batch(0, (order(key, 1),)))
    for client in (giver, taker):
        client.execute_command("CLUSTER SETSLOT", slot, "STABLE")
    sink.apply(Batch(0, (order(key, 1),)))

    assert 1 == sink.flush().applied


class MovingServers(Servers):
    """Servers, the last of which gives a slot to the first while keys are listed."""

    def __init__(self, url, move):
        super().__init__(url)
        self.move = move

    def scan(self, *arguments):
        """List the keys; the slot moves once the first server has been read."""
        keys = super().scan(*arguments)
        yield next(keys)
        if self.move is not None:
            move, self.move = self.move, None
            move()
        yield from keys


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_sweep_misses_no_key_whose_slot_moves(nodes, reader, unique, is_finished):
    """
    The key moves to a server that was already read: the sweep ends with the busy error.

    It is then retried.
    """
    giver, taker = nodes[2], nodes[0]
    keys = {key: f"{unique}:orders:{key}" for key in range(1000)}
    moved = next(
        p for p in keys.values() if slot_of(p) > SHARES[2][0] and slot_of(p) % 256
    )
    slot = slot_of(moved)
    names = [n.client.execute_command("CLUSTER MYID") for n in (giver, taker)]

    def move():
        taker.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        giver.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        giver.client.migrate("127.0.0.1", taker.port, moved, 0, 5000)
        if is_finished:
            give(nodes, slot, taker)

    sink = CacheSink(
        nodes[1].url, unique, 3600, servers=MovingServers(nodes[1].url, move)
    )
    sink.open()
    write(sink, Batch(0, tuple(order(key, 1) for key in keys)))
    floor = Floor("orders", f"{2 * 8:016x}.-", False, Origin("orders", 0, 0))
    with pytest.raises(TargetBusyError, match="is moving slots"):
        write(sink, Batch(1, (), (), (floor,)))
    if not is_finished:
        give(nodes, slot, taker)
    until(lambda: all(map(is_whole, nodes)), "the cluster is whole", pause_s=0.02)
    write(sink, Batch(1, (), (), (floor,)))
    sink.close()
    left = stored(reader)
    give(nodes, slot, giver)

    assert {} == left


def test_a_server_that_dies_and_returns_accepts_the_retried_batch(
    nodes, sink, reader, recorder
):
    """The batch fails while the server is down; its retry loses nothing."""
    changes = tuple(order(key, 1) for key in range(100))
    sink.apply(Batch(0, changes))
    sink.flush()
    nodes[0].kill()
    with pytest.raises((TargetBusyError, TargetUnavailableError)):
        write(sink, Batch(0, tuple(order(key, 2) for key in range(100))))
    nodes[0].start()
    until(lambda: all(map(is_whole, nodes)), "the cluster is whole", pause_s=0.02)
    sink.apply(Batch(0, tuple(order(key, 2) for key in range(100))))

    assert 100 == sink.flush().applied
    assert (100, []) == (len(stored(reader)), recorder.all)


@pytest.fixture
def pair(tmp_path):
    """Provide a primary with all slots, and its replica."""
    with ExitStack() as held:
        first, second = (
            held.enter_context(valkey(tmp_path / name, *OPTIONS))
            for name in ("primary", "replica")
        )
        first.client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        address = ("127.0.0.1", first.port, first.bus_port)
        second.client.execute_command("CLUSTER MEET", *address)
        until(lambda: knows(second, first), "the servers know each other", pause_s=0.02)
        name = first.client.execute_command("CLUSTER MYID")
        second.client.execute_command("CLUSTER REPLICATE", name)
        until(lambda: is_copied(second), "the replica is filled", pause_s=0.02)
        until(
            lambda: lists_replica(first), "the primary lists the replica", pause_s=0.02
        )
        yield first, second


def knows(node, other):
    """Return whether a server knows another server and that server's slots."""
    name = other.client.execute_command("CLUSTER MYID")
    found = node.client.execute_command("CLUSTER NODES")
    return any(name in entry["node_id"] and entry["slots"] for entry in found.values())


def lists_replica(primary):
    """
    Return whether a primary lists its replica to a client that requests the slots.
    """
    ((_, _, *nodes),) = primary.client.cluster("SLOTS")
    return len(nodes) == 2


def is_copied(replica):
    """
    Return whether a replica has finished its first synchronization and is connected.
    """
    found = replica.client.info("replication")
    return found["role"] == "slave" and found["master_link_status"] == "up"


def has_read(replica, offset):
    """Return whether a replica has read the log of its primary up to an offset."""
    return replica.client.info("replication")["slave_repl_offset"] >= offset


def is_serving(node):
    """Return whether a server serves all slots as a primary."""
    found = node.client.execute_command("CLUSTER INFO")
    return found["cluster_state"] == "ok" and node.client.info()["role"] == "master"


def cut_off(first, second):
    """Stop a replica from following its primary; the cluster counts both as healthy."""
    second.client.config_set("masterauth", "refused")
    first.client.execute_command("CLIENT KILL TYPE REPLICA")
    until(lambda: not is_copied(second), "the replica is cut off", pause_s=0.02)


@pytest.mark.parametrize("lags", [False, True])
def test_a_replica_takes_over_and_missing_rows_are_read_again(
    pair, recorder, tmp_path, lags
):
    """
    The batch is retried; a replica that lacks acknowledged rows is detected.
    """
    first, second = pair
    sink = CacheSink(
        *(first.url, "p", 3600),
        CacheWatch("cache", tmp_path / "cache.json", ("orders",), recorder),
    )
    sink.open()
    if lags:
        cut_off(first, second)
    sink.apply(Batch(0, tuple(order(key, 1) for key in range(20))))
    sink.flush()
    written = first.client.info("replication")["master_repl_offset"]
    if not lags:
        until(lambda: has_read(second, written), "the replica has the rows")
    first.kill()
    second.client.execute_command("CLUSTER FAILOVER", "TAKEOVER")
    until(lambda: is_serving(second), "the replica serves", pause_s=0.02)
    later = Batch(1, (order(99, 2),))
    with pytest.raises((TargetBusyError, TargetUnavailableError)):
        write(sink, later)
    sink.apply(later)
    sink.flush()
    sink.close()

    lost = [("orders", "the cache lost its most recent writes")] if lags else []

    assert lost == recorder.all
