"""Sinks on a cluster of Spark's own: submitted, spread, and short of a worker."""

import json
import random
import signal
import textwrap

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.spark_cluster import SparkCluster
from support.waiting import CLOCK, until
from towpath.settings import load
from towpath.sinks import declare
from towpath.sinks.kafka import Topics
from towpath.sinks.kinds import reader_of
from towpath.sinks.progress import progress_path, read_progress

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_S = 240.0
SERVING = ("cache", "search")
ALL = (*SERVING, "warehouse")
RELATION = {
    "schema": "shop",
    "table": "orders",
    "oid": 16400,
    "columns": [
        {"name": name, "type": type_, "type_oid": 0, "typmod": -1, "nullable": True}
        for name, type_ in (
            ("order_id", "bigint"),
            ("status", "text"),
            ("note", "text"),
        )
    ],
    "key": ["order_id"],
    "position": "0000000000000000.0000000000",
}


class Shop:
    """A table's records in Kafka, what they come to, and three sinks that read it."""

    def __init__(self, stack, name, folder):
        self.name = name
        self.config = folder / "towpath.toml"
        self.rows = {}
        self._topic = f"{name}.shop.orders"
        self._log_lsn = 8
        self._history = []
        self._rng = random.Random(7)  # noqa: S311 - a repeatable test
        self._producer = Producer(
            {"bootstrap.servers": stack.kafka, "partitioner": "murmur2_random"}
        )
        self._configure(stack, folder)
        admin = AdminClient({"bootstrap.servers": stack.kafka})
        made = admin.create_topics(
            [
                NewTopic(
                    f"{name}.relations", 1, 1, config={"cleanup.policy": "compact"}
                ),
                NewTopic(self._topic, 3, 1),
            ]
        )
        for future in made.values():
            future.result()
        self._producer.produce(f"{name}.relations", json.dumps(RELATION), "shop.orders")
        self._producer.flush()

    def _configure(self, stack, folder):
        head = f"""
            version = 1
            state_folder = "state"
            [[source]]
            dsn = "postgresql://unused/shop"
            prefix = "{self.name}"
            [kafka]
            bootstrap_servers = "{stack.kafka}"
            [registry]
            url = "http://unused"
            [spark.settings]
            "spark.sql.shuffle.partitions" = "2"
        """
        spread = 'write_from = "executors"\nspread_from_records = 300'
        blocks = (
            self._block("cache", stack.redis_url, 200, spread),
            self._block("search", stack.opensearch_url, 200, spread),
            self._block(
                *("warehouse", stack.dsn("warehouse"), 2000),
                f'folder = "{folder / "lake"}"',
            ),
        )
        self.config.write_text(textwrap.dedent(head) + "".join(blocks), "utf-8")

    def _block(self, kind, url, trigger_ms, more):
        return textwrap.dedent(f"""
            [[sink]]
            name = "{kind}"
            kind = "{kind}"
            driver = "cluster"
            url = "{url}"
            trigger_ms = {trigger_ms}
            max_batch_records = {5000 if kind == "warehouse" else 1500}
            {{more}}
            [[sink.route]]
            topic = "{self._topic}"
            name = "{self.name}.{kind}"
        """).replace("{more}", more)

    def work(self, count, *, keys=200):
        """Produce a random history; a tenth of what is sent comes once more."""
        for number in range(count):
            key = self._rng.randrange(keys)
            row = {"status": self._rng.choice(("placed", "paid")), "note": f"{number}"}
            chance = self._rng.random()
            if self.rows.get(key, (None, None))[1] is None:
                self._put(key, "c", row)
            elif chance < 0.2:
                self._put(key, "d", None)
            elif chance < 0.4:
                self._put(key, "u", {"status": "cancelled"}, unchanged=["note"])
            else:
                self._put(key, "u", row)
            if chance > 0.9:
                self._send(*self._history[-1])
        self._producer.flush()

    def poison(self, key):
        """Produce a record that is no change, of a key that has no others."""
        self._send(json.dumps({"order_id": key}), "{", {"position": "x"})
        self._producer.flush()

    def replay(self):
        """Produce whole rows and deletes once more: all of it is stale by now."""
        for key, value, headers in self._history[:1000]:
            if "unchanged" not in headers:
                self._produce(key, value, headers)
        self._producer.flush()

    def _put(self, key, operation, row, *, unchanged=()):
        self._log_lsn += 8
        position = f"{self._log_lsn:016x}.0000000000"
        headers = {"position": position}
        if unchanged:
            headers["unchanged"] = json.dumps(list(unchanged))
        after = None if row is None else {"order_id": key, **row}
        value = json.dumps({"before": None, "after": after, "op": operation})
        self._send(json.dumps({"order_id": key}), value, headers)
        if row is None:
            self.rows[key] = (position, None)
            return
        old = self.rows.get(key, (None, None, None))
        note = old[2] if unchanged else row.get("note")
        self.rows[key] = (position, row["status"], note)

    def _send(self, key, value, headers):
        self._history.append((key, value, headers))
        self._produce(key, value, headers)

    def _produce(self, key, value, headers):
        self._producer.produce(self._topic, value, key, headers=list(headers.items()))
        self._producer.poll(0)

    def progress(self, name):
        """Read a sink's progress."""
        settings = load(self.config, {})
        return read_progress(progress_path(settings.state_folder, name), name)

    def wait_applied(self):
        """Wait until all sinks have applied all there is."""
        settings = load(self.config, {})
        topics = Topics(settings.kafka.bootstrap_servers)
        for name in ALL:
            ends = declare.sink_ends(settings, name, topics)
            declare.wait_applied(settings, name, ends, CLOCK, PATIENCE_S)

    def told(self, name):
        """Read a sink: position and fields of live rows, position of the others."""
        settings = load(self.config, {})
        reader = reader_of(settings.sink_named(name), settings)
        rows = list(reader.rows(f"{self.name}.{name}"))
        reader.close()
        return {
            int(row.key): (row.position, None)
            if row.is_deleted
            else (row.position, row.fields["status"], row.fields.get("note"))
            for row in rows
        }


@pytest.fixture
def cluster(tmp_path):
    """Lend a cluster of a master and two workers."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    lent = SparkCluster(folder)
    yield lent
    lent.close()


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Lend a shop; its targets run."""
    stack.up("kafka", "redis", "opensearch", "postgres")
    return Shop(stack, unique, tmp_path)


def while_it_runs(holds, cluster, submitted):
    """Wait for something that a driver does, as long as it runs."""
    text = "the driver has come so far"
    until(lambda: submitted.poll() is not None or holds(), text, timeout_s=PATIENCE_S)
    assert submitted.poll() is None, cluster.log("driver")[-3000:]


def python_of(submitted):
    """Find the driver's own process, which spark-submit has started."""
    (child,) = psutil.Process(submitted.pid).children()
    return child


def test_a_submitted_driver_survives_a_worker_and_ends_equal(cluster, shop):
    """
    Executors write large batches under the guard; one of them is killed meanwhile.

    Duplicates, a replay from the start and a poison record change nothing (B41).
    """
    shop.work(1500)
    submitted = cluster.submit(shop.config, "cluster")
    while_it_runs(
        lambda: all(shop.progress(name).rows for name in ALL), cluster, submitted
    )
    shop.work(2500)
    spread = "written by the executors"
    while_it_runs(
        lambda: cluster.log("driver").count(spread) == len(SERVING), cluster, submitted
    )
    cluster.kill(cluster.workers[0])
    shop.poison(1_000_000)
    shop.work(1000)
    shop.wait_applied()
    shop.replay()
    shop.wait_applied()
    letters = [shop.progress(name).dead_letters for name in ALL]
    python_of(submitted).send_signal(signal.SIGTERM)

    assert 0 == submitted.wait(60), cluster.log("driver")[-3000:]
    assert [shop.rows] * 3 == [shop.told(name) for name in ALL]
    assert [1, 1, 1] == letters
