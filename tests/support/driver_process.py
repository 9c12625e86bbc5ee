"""A driver process, a producer of one table's records, and the resulting rows."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import published
from towpath.settings import load
from towpath.sinks.change import Origin
from towpath.sinks.jars import java, store
from towpath.sinks.kinds import reader_of
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.search.read import SearchReader

PATIENCE_S = 240.0

# The value of a record that is not a change.
UNREADABLE = "{"

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
    """One test's names, folder and configuration in the stack."""

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

    def route(self, sink):
        """Return the name of a sink's route."""
        return f"{self.name}-{sink}"

    def sink(self, name, kind, url, route=None, **options):
        """Return the block of a sink with one route, which is named after the sink."""
        usual = {"driver": "serving", "trigger_ms": 200, "max_batch_records": 700}
        block = {"name": name, "kind": kind, "url": url, **usual, **options}
        route_block = {"topic": self.topic, "name": route or self.route(name)}
        lines = (
            *("", "[[sink]]", *_lines(block)),
            *("[[sink.route]]", *_lines(route_block), ""),
        )
        return "\n".join(lines)

    def progress(self, sink):
        """Read a sink's progress."""
        return published.progress_of(self.settings, sink)

    def wait_applied(self, sink):
        """Wait until a sink has applied all existing records."""
        wait_applied(self.settings, sink)

    def cached(self, sink="cache"):
        """Read the cache: position and fields of live rows, the position of others."""
        return stored_rows(
            self.stored(self.route(sink), CacheReader(self.stack.redis_url, self.name))
        )

    def indexed(self, sink="search"):
        """Read the index in the same form."""
        return stored_rows(
            self.stored(self.route(sink), SearchReader(self.stack.opensearch_url))
        )

    @staticmethod
    def stored(route, reader):
        """Return all rows of a route, sorted by key."""
        rows = sorted(reader.rows(route), key=lambda row: row.key)
        reader.close()
        return rows

    def contents(self, name):
        """Read a sink: position and fields of live rows, the position of others."""
        sink = self.settings.sink_named(name)
        reader = reader_of(sink, self.settings)
        return stored_rows(self.stored(sink.route[0].name, reader))

    def log(self):
        """Return the end of the driver's log."""
        return (self.folder / "driver.log").read_text(encoding="utf-8")[-6000:]


def metrics_port(log):
    """Return the metrics port from a driver's log; None if it is not open yet."""
    lines = log.read_text(encoding="utf-8").splitlines()
    records = (json.loads(line) for line in lines if line.startswith("{"))
    ports = [r["port"] for r in records if r["event"] == "metrics port opened"]
    return ports[-1] if ports else None


def wait_applied(settings, sink):
    """Wait until a sink has applied all existing records."""
    published.wait_applied(settings, sink, PATIENCE_S)


def live_fields(settings, name):
    """Return the fields of a sink's live rows by key; the sink has one route."""
    sink = settings.sink_named(name)
    with closing(reader_of(sink, settings)) as reader:
        rows = [*reader.rows(sink.route[0].name)]
    return {row.key: dict(row.fields) for row in rows if not row.is_deleted}


def _lines(section):
    """Return the keys of a section as lines; values are strings and numbers."""
    return [f"{name} = {json.dumps(value)}" for name, value in section.items()]


def stored_rows(rows):
    """Return position and fields of live rows, and only the position of others."""
    return {
        int(row.key): (row.position, None)
        if row.is_deleted
        else (row.position, row.fields["status"], row.fields.get("note"))
        for row in rows
    }


class Feed:
    """Produces a table's records, and keeps the resulting rows."""

    def __init__(self, place):
        self._place = place
        self._log_lsn = 8
        self._producer = Producer(
            {"bootstrap.servers": place.stack.kafka, "partitioner": "murmur2_random"}
        )
        self.rows = {}
        self.unreadable = []
        self._create(f"{place.name}.relations", **{"cleanup.policy": "compact"})
        self._create(place.topic)
        self._create(f"{place.name}-signal")
        relation = json.dumps(RELATION)
        self._producer.produce(f"{place.name}.relations", relation, "shop.orders")
        self._producer.flush()

    def _create(self, topic, **config):
        admin = AdminClient({"bootstrap.servers": self._place.stack.kafka})
        created = admin.create_topics([NewTopic(topic, 3, 1, config=config)])
        created[topic].result()

    def put(self, key, operation, row, *, topic=None, unchanged=(), ordinal=0):
        """Produce one change at the next position, and a tombstone after a delete."""
        self._log_lsn += 8
        ordinal_text = "-" if operation == "r" else f"{ordinal:010d}"
        position = f"{self._log_lsn:016x}.{ordinal_text}"
        headers = {"position": position}
        if unchanged:
            headers["unchanged"] = json.dumps(list(unchanged))
        after = None if row is None else {"order_id": key, **row}
        value = json.dumps({"before": None, "after": after, "op": operation})
        self.send(topic, key, value, headers)
        if row is None:
            self.send(topic, key, None, {"position": f"{position}.1"})
            self.rows[key] = (position, None)
            return
        old = self.rows.get(key, (None, None, None))
        note = old[2] if unchanged else row.get("note")
        self.rows[key] = (position, row["status"], note)

    def flush(self):
        """Wait until the broker has everything."""
        self._producer.flush()

    def truncate(self):
        """Produce a truncation to each partition, as the relay does."""
        self._producer.flush()
        self._log_lsn += 8
        position = f"{self._log_lsn:016x}.0000000000"
        value = json.dumps({"before": None, "after": None, "op": "t"})
        for partition in range(3):
            self._producer.produce(
                self._place.topic,
                value,
                partition=partition,
                headers=[("position", position)],
            )
        self._producer.flush()
        self.rows.clear()

    def send_unreadable(self, key=1, *, parks=False):
        """
        Produce a record that is not a change, and keep its origin.

        With a position it parks its key; without one, only the record is a dead letter.
        """
        position = "x"
        if parks:
            self._log_lsn += 8
            position = f"{self._log_lsn:016x}.0000000000"

        def keep_origin(_error, message):
            origin = (message.topic(), message.partition(), message.offset())
            self.unreadable.append(Origin(*origin))

        self.send(None, key, UNREADABLE, {"position": position}, keep_origin)
        self._producer.flush()

    def send(self, topic, key, value, headers, on_delivery=None):
        """Produce one record without waiting for its acknowledgement."""
        self._producer.produce(
            topic or self._place.topic,
            value,
            json.dumps({"order_id": key}),
            headers=list(headers.items()),
            on_delivery=on_delivery,
        )
        self._producer.poll(0)

    def work(self, count, *, keys, seed):
        """Produce a random history of creates, updates, partial updates and deletes."""
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
        """Produce READ rows for one sink, to the topic that ``sink add`` created."""
        topic = f"{self._place.topic}.backfill.{sink}"
        for key in keys:
            self.put(key, "r", {"status": "placed", "note": "read"}, topic=topic)
        self._producer.flush()


def start(place, *command):
    """Start the driver's process; a command replaces the driver's own."""
    environment = {
        **os.environ,  # noqa: TID251 - a process of its own
        "JAVA_HOME": str(java.spark_home(place.folder / "java")),
        "TOWPATH_SPARK_JARS": str(store.of("spark")),
        "PYTHONUNBUFFERED": "1",
    }
    program = command or ("-m", "towpath.sinks")
    options = ("--config", place.config, "--driver", "serving")
    with (place.folder / "driver.log").open("ab") as log_file:
        return subprocess.Popen(
            [sys.executable, *program, *options],
            env=environment,
            stdout=log_file,
            stderr=log_file,
        )


@contextmanager
def driver(place):
    """Run the driver's process; it must end cleanly on SIGTERM."""
    process = start(place)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, place.log()
    finally:
        process.kill()
        process.wait(10)
