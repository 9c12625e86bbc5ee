"""The process of the serving sinks: real records in, equal targets out."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.deploy import java
from towpath.deploy.jars import store
from towpath.schemas.clock import SystemClock
from towpath.settings import load
from towpath.sinks import __main__ as sinks
from towpath.sinks import declare
from towpath.sinks.cache.reader import CacheReader
from towpath.sinks.progress import State, progress_path, read_progress
from towpath.sinks.search.reader import SearchReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

PATIENCE_S = 120

RELATION = {
    "schema": "shop",
    "table": "orders",
    "oid": 16400,
    "columns": [
        {"name": name, "type": type_, "type_oid": 0, "typmod": -1, "nullable": True}
        for name, type_ in (
            ("order_id", "bigint"),
            ("status", "shop.order_status"),
            ("note", "text"),
        )
    ],
    "key": ["order_id"],
    "position": "0000000000000000.0000000000",
}


@dataclass
class Place:
    """One test's corner of the stack."""

    stack: object
    name: str
    folder: Path

    @property
    def topic(self):
        """The table's topic."""
        return f"{self.name}.shop.orders"

    @property
    def config(self):
        """The configuration file."""
        return self.folder / "towpath.toml"

    @property
    def settings(self):
        """The configuration."""
        return load(self.config, {})

    def write_config(self, *blocks):
        """Write the configuration with these sinks."""
        head = f"""
            version = 1
            state_folder = "state"
            [[source]]
            dsn = "postgresql://unused/shop"
            prefix = "{self.name}"
            [kafka]
            bootstrap_servers = "{self.stack.kafka}"
            [registry]
            url = "http://unused"
            [topics]
            partitions = 3
        """
        text = textwrap.dedent(head) + "".join(blocks)
        self.config.write_text(text, encoding="utf-8")

    def sink(self, name, kind, url):
        """Write the block of a sink with one route, named as the sink."""
        return textwrap.dedent(f"""
            [[sink]]
            name = "{name}"
            kind = "{kind}"
            driver = "serving"
            url = "{url}"
            trigger_ms = 200
            max_batch_records = 700
            [[sink.route]]
            topic = "{self.topic}"
            name = "{self.name}-{name}"
        """)

    def progress(self, sink):
        """Read a sink's progress."""
        return read_progress(progress_path(self.settings.state_folder, sink), sink)

    def wait_applied(self, sink):
        """Wait until a sink has applied all there is."""
        ends = sinks.sink_ends(self.config, sink)
        sinks.wait_applied(self.config, sink, ends, PATIENCE_S)

    def cached(self, sink="cache"):
        """Read the cache: position and fields of live rows, position of the others."""
        return self._read(CacheReader(self.stack.redis_url, self.name), sink)

    def indexed(self, sink="search"):
        """Read the index in the same form."""
        return self._read(SearchReader(self.stack.opensearch_url), sink)

    def _read(self, reader, sink):
        rows = list(reader.rows(f"{self.name}-{sink}"))
        reader.close()
        return {
            int(row.key): (row.position, None)
            if row.is_deleted
            else (row.position, row.fields["status"], row.fields.get("note"))
            for row in rows
        }


class Feed:
    """Produces a table's records, and remembers what they come to."""

    def __init__(self, place):
        self._place = place
        self._log_lsn = 8
        self._producer = Producer(
            {"bootstrap.servers": place.stack.kafka, "partitioner": "murmur2_random"}
        )
        self.rows = {}
        self._create(f"{place.name}.relations", **{"cleanup.policy": "compact"})
        self._create(place.topic)
        relation = json.dumps(RELATION)
        self._producer.produce(f"{place.name}.relations", relation, "shop.orders")
        self._producer.flush()

    def _create(self, topic, **config):
        admin = AdminClient({"bootstrap.servers": self._place.stack.kafka})
        created = admin.create_topics([NewTopic(topic, 3, 1, config=config)])
        created[topic].result()

    def put(self, key, operation, row, *, topic=None, unchanged=(), ordinal=0):
        """Produce one change at the next position; a delete has its tombstone."""
        self._log_lsn += 8
        place = "-" if operation == "r" else f"{ordinal:010d}"
        position = f"{self._log_lsn:016x}.{place}"
        headers = {"position": position}
        if unchanged:
            headers["unchanged"] = json.dumps(list(unchanged))
        after = None if row is None else {"order_id": key, **row}
        value = json.dumps({"before": None, "after": after, "op": operation})
        self._send(topic, key, value, headers)
        if row is None:
            self._send(topic, key, None, {"position": f"{position}.1"})
            self.rows[key] = (position, None)
            return
        old = self.rows.get(key, (None, None, None))
        note = old[2] if unchanged else row.get("note")
        self.rows[key] = (position, row["status"], note)

    def poison(self):
        """Produce a record that is no change."""
        self._send(None, 1, "{", {"position": "x"})
        self._producer.flush()

    def _send(self, topic, key, value, headers):
        self._producer.produce(
            topic or self._place.topic,
            value,
            json.dumps({"order_id": key}),
            headers=list(headers.items()),
        )
        self._producer.poll(0)

    def work(self, count, *, keys, seed):
        """Produce a random history of creates, updates, partial updates, deletes."""
        rng = random.Random(seed)  # noqa: S311 - a repeatable test
        for number in range(count):
            key = rng.randrange(keys)
            is_live = self.rows.get(key, (None, None))[1] is not None
            row = {"status": rng.choice(("placed", "paid")), "note": f"{number}"}
            if not is_live:
                self.put(key, "c", row)
            elif rng.random() < 0.2:
                self.put(key, "d", None)
            elif rng.random() < 0.3:
                self.put(key, "u", {"status": "cancelled"}, unchanged=["note"])
            else:
                self.put(key, "u", row)
        self._producer.flush()

    def backfill(self, sink, keys):
        """Produce READ rows that are meant for one sink only."""
        topic = f"{self._place.topic}.backfill.{sink}"
        self._create(topic)
        for key in keys:
            self.put(key, "r", {"status": "placed", "note": "read"}, topic=topic)
        self._producer.flush()


@pytest.fixture
def place(stack, unique, tmp_path):
    """Lend a corner of the stack with both serving parts running."""
    stack.up("kafka", "redis", "opensearch")
    return Place(stack, unique, tmp_path)


@contextmanager
def driver(place):
    """Run the driver's process; it must end by itself when told to."""
    process = start(place)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log(place)
    finally:
        process.kill()
        process.wait(10)


def start(place):
    """Start the driver's process."""
    environment = {
        **os.environ,  # noqa: TID251 - a process of its own
        "JAVA_HOME": str(java.spark_home(place.folder / "java")),
        "TOWPATH_SPARK_JARS": str(store.of("spark")),
    }
    command = ["-m", "towpath.sinks", "--config", place.config, "--driver", "serving"]
    with (place.folder / "driver.log").open("ab") as log_file:
        return subprocess.Popen(
            [sys.executable, *command], env=environment, stderr=log_file
        )


def log(place):
    """Return what the driver said."""
    return (place.folder / "driver.log").read_text(encoding="utf-8")[-4000:]


def until(condition):
    """Wait for a condition, with a deadline."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        SystemClock().wait(0.1)


def dead_letters(place, sink):
    """Read the dead letters of a sink: origin and reason."""
    topic = f"{place.name}.dead.{sink}"
    consumer = Consumer(
        {
            "bootstrap.servers": place.stack.kafka,
            "group.id": place.name,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    letters = []
    until(lambda: letters.extend(consumer.consume(1, 1.0)) or letters)
    consumer.close()
    (letter,) = letters
    headers = {name: value.decode() for name, value in letter.headers()}
    return headers["topic"], headers["reason"], letter.value()


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_killed_driver_ends_equal(place):
    """
    Whatever the driver was doing when it died, both targets equal the history.
    """
    place.write_config(
        place.sink("cache", "cache", place.stack.redis_url),
        place.sink("search", "search", place.stack.opensearch_url),
    )
    feed = Feed(place)
    feed.work(3000, keys=400, seed=1)
    first = start(place)
    until(lambda: place.progress("cache").rows > 0)
    feed.work(3000, keys=400, seed=2)
    first.kill()
    first.wait(10)
    feed.poison()
    feed.work(1000, keys=400, seed=3)
    with driver(place):
        place.wait_applied("cache")
        place.wait_applied("search")

    letter = (place.topic, "the value is not JSON", b"{")
    assert [letter, letter] == [
        dead_letters(place, "cache"),
        dead_letters(place, "search"),
    ]
    assert (feed.rows, feed.rows) == (place.cached(), place.indexed())


def test_a_dead_target_and_a_new_sink_leave_the_others_alone(place, unused_port):
    """
    A sink whose target is down says so; its neighbours go on, and a new one joins.
    """
    place.write_config(
        place.sink("cache", "cache", place.stack.redis_url),
        place.sink("search", "search", f"http://127.0.0.1:{unused_port}"),
    )
    feed = Feed(place)
    feed.work(200, keys=50, seed=4)
    with driver(place):
        place.wait_applied("cache")
        until(lambda: place.progress("search").state is State.FAILED)
        before = dict(feed.rows)

        block = place.sink("search2", "search", place.stack.opensearch_url)
        sinks.declare_sink(place.config, block)
        sinks.wait_running(place.config, "search2", PATIENCE_S)
        feed.backfill("search2", keys=before)
        for key in range(50, 60):
            feed.put(key, "c", {"status": "placed", "note": "new"})
        feed.work(1, keys=1, seed=5)
        place.wait_applied("cache")
        place.wait_applied("search2")
        error = place.progress("search").error
        cache = place.progress("cache")

    fed = feed.rows
    streamed = {k: row for k, row in fed.items() if row[-1] != "read"}
    assert "does not answer" in error
    assert fed == place.indexed("search2")
    assert {**before, **streamed} == place.cached()
    assert ({place.topic}, 0) == (set(cache.applied), cache.dead_letters)
    assert [0, 0] == [
        declare.lag_of(place.settings, name, sinks._cluster(place.settings)).lag_records
        for name in ("cache", "search2")
    ]


@pytest.fixture
def unused_port():
    """Find a port on which nobody listens."""
    import socket  # noqa: PLC0415 - only here

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
