"""
Read-your-writes with a real source, relay and broker, and a lightweight sink.

The sink is a thread that writes each row into Redis shortly after its arrival, and then
publishes its progress, as the driver of a sink does.
"""

import json
import threading
from contextlib import contextmanager

import psycopg
import pytest
import redis
from confluent_kafka import Consumer

from support.published import SinkRun
from support.rig import Rig
from towpath.cli.app import run
from towpath.settings import load
from towpath.sinks.state.progress import Progress, State
from towpath.sinks.wait import Waiter
from towpath.sinks.wait.errors import NotAppliedError, UnknownLsnError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

# How long the sink delays a record before it applies it.
SINK_LATENCY_S = 0.05
FLUSHED = "select pg_current_wal_flush_lsn()::text"


class LightweightSink:
    """Writes the rows of one topic into a Redis hash."""

    def __init__(self, rig, redis_url):
        self.target = redis.Redis.from_url(redis_url, decode_responses=True)
        self.hash = f"{rig.prefix}:orders"
        self._driver = SinkRun.in_kafka(load(rig.config, {}), "cache")
        self._consumer = Consumer(
            {
                "bootstrap.servers": rig.kafka,
                "group.id": rig.prefix,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200,
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([rig.topic("public.orders")])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        """Stop applying records."""
        self._stop.set()
        self._thread.join()

    def close(self):
        """Stop, and close the connections."""
        self.stop()
        self._consumer.close()
        self.target.close()

    def _run(self):
        applied = {}
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None or message.error():
                self._driver.publish(Progress("cache", State.RUNNING, applied))
                continue
            self._stop.wait(SINK_LATENCY_S)
            if message.value():
                row = json.loads(message.value())["after"]
                self.target.hset(self.hash, row["id"], row["note"])
            partitions = applied.setdefault(message.topic(), {})
            partitions[str(message.partition())] = message.offset() + 1
            self._driver.publish(Progress("cache", State.RUNNING, applied))
        self._driver.end(Progress("cache", State.RUNNING, applied))


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a database with a table that a relay follows, and a declared sink."""
    stack.up("kafka", "redis")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.execute("create table orders (id bigint primary key, note text)")
    made.configure(tables=["public.orders"])
    sink = f"""
        [[sink]]
        name = "cache"
        kind = "cache"
        url = "{stack.redis_url}"
        [[sink.route]]
        topic = "{made.topic("public.orders")}"
        name = "orders"
    """
    made.config.write_text(made.config.read_text(encoding="utf-8") + sink)
    made.before_lsn = made.one(FLUSHED)
    made.execute("insert into orders values (0, 'before')")
    made.init()
    made.start()
    yield made
    made.close()


@pytest.fixture
def sink(rig, stack):
    """Provide the sink that applies the relay's records."""
    made = LightweightSink(rig, stack.redis_url)
    yield made
    made.close()


@pytest.fixture
def waiter(rig):
    """Provide a waiter for the rig's configuration."""
    with Waiter(load(rig.config, {})) as made:
        yield made


@contextmanager
def writing(dsn):
    """Write from another session during the block, as quickly as possible."""
    stop = threading.Event()

    def write():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table others (id serial, text text)")
            while not stop.is_set():
                connection.execute("insert into others (text) values (repeat('x', 99))")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def write(rig, key):
    """Write a row; return an LSN after its commit."""
    rig.execute("insert into orders values (%s, %s)", key, f"note {key}")
    return rig.one(FLUSHED)


def test_a_write_is_visible_when_the_wait_returns(rig, sink, waiter):
    """
    Each write is read from the sink at once, on a quiet source and on a busy one.

    A wait adds a few tenths of a second to the sink's own latency.
    """
    read, took_s = [], []
    for key in range(1, 9):
        outcome = waiter.wait_for(write(rig, key), "cache", 30)
        read.append(sink.target.hget(sink.hash, key))
        took_s.append(outcome.waited_s)
    with writing(rig.dsn):
        for key in range(9, 17):
            outcome = waiter.wait_for(write(rig, key), "cache", 30)
            read.append(sink.target.hget(sink.hash, key))
            took_s.append(outcome.waited_s)
    # The first wait includes the start of the relay.
    print(sorted(took_s[1:]))  # noqa: T201 - the latencies, for the reader

    assert sorted(took_s[1:])[7] < 2.0
    assert [f"note {key}" for key in range(1, 17)] == read


def test_a_wait_succeeds_only_once_the_relay_is_back(rig, sink, waiter):
    """
    While the relay is down, the sink has applied all records, but not the last write.
    """
    waiter.wait_for(write(rig, 1), "cache", 30)
    rig.kill()
    lsn = write(rig, 2)
    with pytest.raises(NotAppliedError) as raised:
        waiter.wait_for(lsn, "cache", 1.0)
    rig.start()
    waiter.wait_for(lsn, "cache", 30)

    assert "the relay has confirmed" in str(raised.value)
    assert "note 2" == sink.target.hget(sink.hash, 2)


@pytest.mark.usefixtures("sink")
def test_a_wait_makes_the_log_advance(rig, waiter):
    """
    An open transaction's unflushed rows do not delay a wait until the next heartbeat.
    """
    waiter.wait_for(write(rig, 1), "cache", 30)
    with psycopg.connect(rig.dsn) as other:
        other.execute("insert into orders values (99, 'open')")
        lsn = rig.one("select pg_current_wal_insert_lsn()::text")
        outcome = waiter.wait_for(lsn, "cache", 30)
        other.rollback()

    assert outcome.waited_s < 4.0


def test_an_lsn_from_before_the_relays_start_is_rejected(rig, sink, waiter):
    """
    The slot is past the LSN, but no relay has published the changes up to it.
    """
    waiter.wait_for(write(rig, 1), "cache", 30)
    with pytest.raises(UnknownLsnError):
        waiter.wait_for(rig.before_lsn, "cache", 5)

    assert sink.target.hget(sink.hash, 0) is None


@pytest.mark.usefixtures("sink")
def test_the_command_distinguishes_applied_pending_and_unknown_lsns(
    rig, waiter, capsys
):
    """
    The exit codes are 0, 1 and 2, and scripts get one JSON document.
    """
    waiter.wait_for(write(rig, 1), "cache", 30)
    command = ["wait", "--sink", "cache", "--config", str(rig.config), "--json"]
    codes = [run([*command, "--lsn", write(rig, 2), "--timeout", "30"])]
    applied = json.loads(capsys.readouterr().out)
    rig.kill()
    codes.append(run([*command, "--lsn", write(rig, 3), "--timeout", "0.5"]))
    pending = json.loads(capsys.readouterr().out)
    codes.append(run([*command, "--lsn", "FFFF/0"]))
    codes.append(run([*command, "--lsn", "nonsense"]))

    assert [0, 1, 2, 2] == codes
    assert (True, False) == (applied["applied"], pending["applied"])


def test_the_status_shows_the_relay_the_sink_and_their_problems(
    rig, sink, waiter, capsys
):
    """
    A sink's ended driver, its lag and a killed relay are reported with exit code 1.
    """
    waiter.wait_for(write(rig, 1), "cache", 30)
    command = ["status", "--json", "--config", str(rig.config), "--state"]
    command.append(str(rig.folder / "none"))
    codes = [run(command)]
    alive = json.loads(capsys.readouterr().out)
    sink.stop()
    write(rig, 2)
    rig.confirm()
    rig.kill()
    rig.wait_for(lambda: not rig.one("select active from pg_replication_slots limit 1"))
    codes.append(run(command))
    dead = json.loads(capsys.readouterr().out)
    (current,), (lagging,) = alive["sinks"], dead["sinks"]

    assert [0, 1] == codes
    assert (1, True) == (lagging["lag_records"], 0.0 < lagging["lag_s"] < 60.0)
    assert (0, 0.0, 10.0, "running") == (
        *(
            current["lag_records"],
            current["lag_s"],
            current["budget_s"],
            current["state"],
        ),
    )
    assert [] == alive["wrong"]
    assert "cache: its driver 'sinks' is not running: the driver of the sink cache" in (
        "".join(dead["wrong"])
    )
    assert (
        f"no relay is consuming the slot {rig.prefix}: the relay is not running"
        in (dead["wrong"])
    )
