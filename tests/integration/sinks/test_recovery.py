"""
A real query recovers from a crash, a lost checkpoint or a changed topic.
"""

import shutil
import threading
from contextlib import closing, contextmanager
from functools import partial

import orjson
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from support.dead_letters import Letters, RecordedRepairs
from support.waiting import until
from towpath.schemas.clock import Backoff, SystemClock
from towpath.settings import Kafka
from towpath.settings import Sink as SinkSettings
from towpath.sinks.engine import recovery
from towpath.sinks.engine.checkpoint import drop_checkpoint
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.engine.recovery import RECOVERIES_FILE
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.supervisor import Supervisor, SupervisorParts
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.fetch import KafkaBatches
from towpath.sinks.state.declare import records_between
from towpath.sinks.state.progress import progress_path, replace_file, stored_progress
from towpath.sinks.targets.memory import MemorySink

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


class DyingSink(MemorySink):
    """Fails once, before or after a flush; the sink outlives the query."""

    def __init__(self):
        super().__init__()
        self.dies = None
        self.between = lambda: None

    def flush(self):
        """Flush, and fail once if ``dies`` is set."""
        dies, self.dies = self.dies, None
        if dies == "before":
            self.between()
            message = "the process is gone"
            raise RuntimeError(message)
        checkpoint = super().flush()
        if dies == "after":
            message = "the process is gone"
            raise RuntimeError(message)
        return checkpoint


class Rig:
    """One sink with one topic of two partitions, and its query."""

    def __init__(self, spark, servers, name, folder):
        self.topic = f"{name}.shop.orders"
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result()
        self.cluster = Topics(Kafka(bootstrap_servers=servers))
        self.sink, self.letters, self.repairs = (
            DyingSink(),
            Letters(),
            RecordedRepairs(),
        )
        settings = SinkSettings.model_validate(
            {
                "name": "cache",
                "kind": "cache",
                "url": "redis://unused",
                "trigger_ms": 100,
                "route": [{"topic": self.topic, "name": "orders"}],
            }
        )
        self.plan = QueryPlan(settings, Kafka(bootstrap_servers=servers), folder)
        self._spark = spark
        self._servers = {"bootstrap.servers": servers, "log_level": 0}
        self._producer = Producer(self._servers)
        self.number = 0

    def put(self, count, *, partition=None):
        """Produce new orders; return their keys."""
        made = []
        for _ in range(count):
            self.number += 1
            chosen = self.number % 2 if partition is None else partition
            made.append(str(self.number))
            self.produce(made[-1], "c", partition=chosen)
        return made

    def produce(self, key, operation, *, topic=None, number=None, partition=0):
        """
        Produce one change of an order.

        A read's position is below that of every change with the same number.
        """
        if number is None and operation == "d":
            self.number += 1
        row = None if operation == "d" else {"order_id": int(key)}
        value = {"op": operation, "after": row}
        position = f"{(number or self.number) * 8:016x}"
        ordinal = "-" if operation == "r" else "0000000000"
        headers = {"position": f"{position}.{ordinal}"}
        self._produce(topic, key, orjson.dumps(value), headers, partition)

    def sweep(self, topic, partition, number):
        """End a snapshot: rows with positions below the number's are removed."""
        headers = {"sweep": f"{number * 8:016x}.-"}
        self._produce(topic, None, b"{}", headers, partition)

    def recreate(self):
        """Delete and recreate the topic."""
        self.admin.delete_topics([self.topic])[self.topic].result()
        until(lambda: self.topic not in self.cluster.names(), "the topic is deleted")
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result()
        self.reset_producer()

    def grow(self, count):
        """Increase the topic's number of partitions."""
        wanted = NewPartitions(self.topic, count)
        self.admin.create_partitions([wanted])[self.topic].result()
        until(lambda: len(self.ends()[self.topic]) == count, "the partitions exist")
        self.reset_producer()

    def reset_producer(self):
        """Make a new producer, without the earlier topic's metadata."""
        self._producer = Producer(self._servers)

    def _produce(self, topic, key, value, headers, partition):
        key_bytes = key and orjson.dumps({"order_id": int(key)})
        self._producer.produce(
            topic or self.topic, value, key_bytes, partition=partition, headers=headers
        )
        self._producer.flush()

    @contextmanager
    def running(self):
        """Run the query; it must apply all records, and then stop in time."""
        stop = threading.Event()
        clock = SystemClock()
        report = Report(self.plan.state_folder, "cache", clock)
        parts = SupervisorParts(
            lambda _: closing(self.sink),
            partial(KafkaBatches, self.plan.kafka),
            lambda *_: self.letters,
            self.cluster,
            clock,
            lambda _: self.repairs,
            backoff=Backoff(first_s=0.01),
        )
        supervisor = Supervisor(self._spark, self.plan, parts, report, stop)
        supervisor.start()
        try:
            yield report
            until(
                lambda: not records_between(report.progress.applied, self.ends()),
                "all records are applied",
            )
        finally:
            stop.set()
            has_ended = supervisor.join(40)

        assert has_ended

    def ends(self):
        """Return the end offsets of the topic."""
        return self.cluster.end_offsets([self.topic])

    def run(self):
        """
        Run the query until it has applied all records; return the keys of the sink.
        """
        with self.running():
            pass
        return sorted(self.sink.rows["orders"], key=int)

    @property
    def progress_path(self):
        """Return the path of the sink's progress."""
        return progress_path(self.plan.state_folder, "cache")

    @property
    def outcomes(self):
        """Return the outcomes of all recoveries, in order."""
        path = self.plan.checkpoint.parent / RECOVERIES_FILE
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [orjson.loads(line)["outcome"] for line in lines]


@pytest.fixture
def rig(lake, stack, unique, tmp_path):
    """Provide a sink whose query has applied its first orders, and has stopped."""
    stack.up("kafka")
    made = Rig(lake[1]._session, stack.kafka, unique, tmp_path)
    made.put(20)
    made.run()
    return made


def test_a_query_that_died_around_a_batch_writes_it_again(rig):
    """It dies before a flush, after a flush, and before Spark commits the batch."""
    for dies in ("before", "after"):
        rig.sink.dies = dies
        rig.put(10)
        rig.run()
    commits = rig.plan.checkpoint / "commits"
    numbers = [int(p.name) for p in commits.iterdir() if p.name.isdecimal()]
    (commits / str(max(numbers))).unlink()
    rig.put(10)

    assert ([str(n) for n in range(1, 51)], [], []) == (
        rig.run(),
        rig.outcomes,
        rig.repairs.routes,
    )


def test_unread_records_that_retention_deletes_cause_a_refetch(rig):
    """
    The query continues at the first retained record; the other partition loses nothing.
    """
    lost = rig.put(6, partition=0)
    rig.put(4, partition=1)
    end = rig.ends()[rig.topic]["0"]
    cut = TopicPartition(rig.topic, 0, end)
    rig.admin.delete_records([cut])[cut].result()
    kept = rig.put(3, partition=0)
    rows = rig.run()

    # No record is read twice: 20 at first, then 4 and 3.
    assert ((set(), True), ["retention_passed"], ["orders"], 27) == (
        (set(lost) & set(rows), set(kept) <= set(rows)),
        rig.outcomes,
        [route for route, _ in rig.repairs.routes],
        stored_progress(rig.progress_path, "cache").records,
    )


def test_partitions_that_are_added_are_read(rig):
    """
    Added partitions are read from the start; keys have moved, so rows are requested.
    """
    rig.grow(4)
    added = rig.put(5, partition=3)

    assert (set(added), ["partitions_added"], ["orders"], 25) == (
        set(added) & set(rig.run()),
        rig.outcomes,
        [route for route, _ in rig.repairs.routes],
        stored_progress(rig.progress_path, "cache").records,
    )


def test_partitions_that_are_added_to_a_running_query_are_detected(rig, monkeypatch):
    """The partitions are reported once; the query restarts, and reads nothing twice."""
    monkeypatch.setattr(recovery, "CHECK_EVERY_S", 0.1)
    with rig.running():
        rig.grow(3)
        added = set(rig.put(5, partition=2))
        until(lambda: rig.outcomes, "the partition is detected")
        rows = rig.sink.rows["orders"]
        until(lambda: added <= rows.keys(), "the new records are applied")
    rig.run()

    assert (["partitions_added"], ["orders"], 25) == (
        rig.outcomes,
        [route for route, _ in rig.repairs.routes],
        stored_progress(rig.progress_path, "cache").records,
    )


def test_a_lost_checkpoint_changes_nothing_in_the_sink(rig):
    """All retained records are read again, and the guard rejects them."""
    drop_checkpoint(rig.plan.checkpoint)
    before = dict(rig.sink.rows["orders"])
    rig.run()

    assert (before, ["checkpoint_lost"], []) == (
        rig.sink.rows["orders"],
        rig.outcomes,
        rig.repairs.routes,
    )


def test_a_recreated_topic_is_read_from_its_start(rig):
    """
    The new topic has fewer records than were read from the old one.
    """
    rig.recreate()
    added = set(rig.put(4))
    with rig.running():
        rows = rig.sink.rows["orders"]
        until(lambda: added <= rows.keys(), "the new records are applied")

    assert (["topic_recreated"], ["orders"]) == (
        rig.outcomes,
        [route for route, _ in rig.repairs.routes],
    )


def test_a_recreated_topic_that_has_grown_is_read_from_its_start(rig):
    """
    The topic's id reveals the recreation, although its offsets do not.
    """
    rig.recreate()
    added = set(rig.put(60))

    assert (added, ["topic_recreated"], ["orders"]) == (
        added & set(rig.run()),
        rig.outcomes,
        [route for route, _ in rig.repairs.routes],
    )


def test_a_topic_recreated_while_it_is_read_is_detected(rig, monkeypatch):
    """
    Whether Spark or the id check detects it first, no record is skipped.
    """
    monkeypatch.setattr(recovery, "CHECK_EVERY_S", 0.1)
    with rig.running():
        rig.recreate()
        added = set(rig.put(60))
        rows = rig.sink.rows["orders"]
        until(lambda: added <= rows.keys(), "all of the new records are applied")

    assert "orders" in [route for route, _ in rig.repairs.routes]


def test_a_topic_recreated_while_a_query_starts_is_detected(rig, monkeypatch):
    """
    The topic is missing when its id is requested, but exists when its offsets are read.
    """
    monkeypatch.setattr(recovery, "CHECK_EVERY_S", 0.1)
    added = set()

    def ids_between(_):
        monkeypatch.delattr(rig.cluster, "topic_ids")
        rig.recreate()
        added.update(rig.put(60))
        return {}

    monkeypatch.setattr(rig.cluster, "topic_ids", ids_between)
    with rig.running():
        rows = rig.sink.rows["orders"]
        until(lambda: added and added <= rows.keys(), "the new records are applied")

    assert (["topic_recreated"], ["orders"]) == (
        rig.outcomes,
        [route for route, _ in rig.repairs.routes],
    )


def test_a_row_that_was_deleted_in_a_gap_is_removed(rig):
    """
    Retention has removed the delete; the requested snapshot ends with a sweep.

    Rows that the snapshot read are kept, even those that only it delivered; so are
    newer rows.
    """
    lost = rig.put(4, partition=0)
    rig.produce("1", "d")
    end = rig.ends()[rig.topic]["0"]
    cut = TopicPartition(rig.topic, 0, end)
    rig.admin.delete_records([cut])[cut].result()
    rig.run()
    had = set(rig.sink.rows["orders"])
    fill = f"{rig.topic}.backfill.cache"
    rig.admin.create_topics([NewTopic(fill, 2, 1)])[fill].result()
    rig.number += 1
    floor = rig.number
    read = [*(str(n) for n in range(2, 21)), *lost]
    for key in read:
        rig.produce(key, "r", topic=fill, number=floor)
    newer = rig.put(1)
    for partition in (0, 1):
        rig.sweep(fill, partition, floor)
    rows = set(rig.run())

    assert (True, {"1"}, set(newer) | set(lost)) == (
        set(lost).isdisjoint(had),
        had - rows,
        rows - had,
    )


def test_a_new_sink_that_dies_before_its_first_batch_keeps_its_declared_start(
    rig,
):
    """
    It does not start at later end offsets; a snapshot delivers the earlier rows.
    """
    shutil.rmtree(rig.plan.checkpoint.parent)
    rig.sink.rows.clear()
    replace_file(rig.plan.starting_offsets_file, orjson.dumps(rig.ends()))
    first = rig.put(3)
    rig.sink.dies = "before"
    second: list[str] = []
    rig.sink.between = lambda: second.extend(rig.put(3))
    rows = rig.run()

    assert ([*first, *second], []) == (rows, rig.outcomes)
