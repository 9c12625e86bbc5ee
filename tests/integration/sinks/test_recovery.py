"""A real query that died, or whose topic or checkpoint is not as it left them."""

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


class Dying(MemorySink):
    """Dies once at a flush, before or after it; it outlives the query."""

    def __init__(self):
        super().__init__()
        self.dies = None
        self.between = lambda: None

    def flush(self):
        """Flush, and die."""
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


class Place:
    """One sink with one topic of two partitions, and its query."""

    def __init__(self, spark, servers, name, folder):
        self.topic = f"{name}.shop.orders"
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result()
        self.cluster = Topics(Kafka(bootstrap_servers=servers))
        self.sink, self.letters, self.repairs = Dying(), Letters(), RecordedRepairs()
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
            self.tell(made[-1], "c", partition=chosen)
        return made

    def tell(self, key, operation, *, topic=None, number=None, partition=0):
        """Produce one change of an order; one that is read stands below its number."""
        if number is None and operation == "d":
            self.number += 1
        row = None if operation == "d" else {"order_id": int(key)}
        value = {"op": operation, "after": row}
        position = f"{(number or self.number) * 8:016x}"
        ordinal = "-" if operation == "r" else "0000000000"
        headers = {"position": f"{position}.{ordinal}"}
        self._produce(topic, key, orjson.dumps(value), headers, partition)

    def sweep(self, topic, partition, number):
        """End a snapshot: below the number there is nothing any more."""
        headers = {"sweep": f"{number * 8:016x}.-"}
        self._produce(topic, None, b"{}", headers, partition)

    def remake(self):
        """Delete the topic and make it again."""
        self.admin.delete_topics([self.topic])[self.topic].result()
        until(lambda: self.topic not in self.cluster.names(), "the topic is gone")
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result()
        self.forget()

    def grow(self, count):
        """Give the topic so many partitions."""
        wanted = NewPartitions(self.topic, count)
        self.admin.create_partitions([wanted])[self.topic].result()
        until(lambda: len(self.ends()[self.topic]) == count, "the partitions are there")
        self.forget()

    def forget(self):
        """Know nothing any more of the topic as it was."""
        self._producer = Producer(self._servers)

    def _produce(self, topic, key, value, headers, partition):
        place = key and orjson.dumps({"order_id": int(key)})
        self._producer.produce(
            topic or self.topic, value, place, partition=partition, headers=headers
        )
        self._producer.flush()

    @contextmanager
    def running(self):
        """Run the query; it must have applied all there is, and then stop in time."""
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
        """Return the ends of the topic."""
        return self.cluster.end_offsets([self.topic])

    def run(self):
        """Run the query until it has applied all there is."""
        with self.running():
            pass
        return sorted(self.sink.rows["orders"], key=int)

    @property
    def progress_path(self):
        """Return the file of the sink's progress."""
        return progress_path(self.plan.state_folder, "cache")

    @property
    def outcomes(self):
        """Return what was found wrong, in the order it was."""
        path = self.plan.checkpoint.parent / RECOVERIES_FILE
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [orjson.loads(line)["outcome"] for line in lines]


@pytest.fixture
def place(lake, stack, unique, tmp_path):
    """Provide a sink whose query has applied its first orders, and is stopped."""
    stack.up("kafka")
    made = Place(lake[1]._session, stack.kafka, unique, tmp_path)
    made.put(20)
    made.run()
    return made


def test_a_query_that_died_around_a_batch_writes_it_again(place):
    """Before its flush, after it, and after it but for the engine's own note."""
    for dies in ("before", "after"):
        place.sink.dies = dies
        place.put(10)
        place.run()
    commits = place.plan.checkpoint / "commits"
    numbers = [int(p.name) for p in commits.iterdir() if p.name.isdecimal()]
    (commits / str(max(numbers))).unlink()
    place.put(10)

    assert ([str(n) for n in range(1, 51)], [], []) == (
        place.run(),
        place.outcomes,
        place.repairs.routes,
    )


def test_unread_records_deleted_by_retention_are_refetched(place):
    """
    The query continues at the first retained one; the other partition loses none.
    """
    lost = place.put(6, partition=0)
    place.put(4, partition=1)
    end = place.ends()[place.topic]["0"]
    cut = TopicPartition(place.topic, 0, end)
    place.admin.delete_records([cut])[cut].result()
    kept = place.put(3, partition=0)
    rows = place.run()

    # What was read before is not read again: 20, and then 4 and 3.
    assert ((set(), True), ["retention_passed"], ["orders"], 27) == (
        (set(lost) & set(rows), set(kept) <= set(rows)),
        place.outcomes,
        [route for route, _ in place.repairs.routes],
        stored_progress(place.progress_path, "cache").records,
    )


def test_partitions_that_are_added_are_read(place):
    """From their first record on; keys have moved, so their rows are asked for."""
    place.grow(4)
    added = place.put(5, partition=3)

    assert (set(added), ["partitions_added"], ["orders"], 25) == (
        set(added) & set(place.run()),
        place.outcomes,
        [route for route, _ in place.repairs.routes],
        stored_progress(place.progress_path, "cache").records,
    )


def test_partitions_that_are_added_to_a_running_query_are_noticed(place, monkeypatch):
    """Once, though the query starts again, which reads nothing twice."""
    monkeypatch.setattr(recovery, "LOOK_EVERY_S", 0.1)
    with place.running():
        place.grow(3)
        added = set(place.put(5, partition=2))
        until(lambda: place.outcomes, "the partition is noticed")
        rows = place.sink.rows["orders"]
        until(lambda: added <= rows.keys(), "the new records are applied")
    place.run()

    assert (["partitions_added"], ["orders"], 25) == (
        place.outcomes,
        [route for route, _ in place.repairs.routes],
        stored_progress(place.progress_path, "cache").records,
    )


def test_a_lost_checkpoint_changes_nothing_in_the_sink(place):
    """All that is retained is read again, and the guard absorbs it."""
    drop_checkpoint(place.plan.checkpoint)
    before = dict(place.sink.rows["orders"])
    place.run()

    assert (before, ["checkpoint_lost"], []) == (
        place.sink.rows["orders"],
        place.outcomes,
        place.repairs.routes,
    )


def test_a_recreated_topic_is_read_from_its_start(place):
    """
    It has fewer records than were read of it.
    """
    place.remake()
    added = set(place.put(4))
    with place.running():
        rows = place.sink.rows["orders"]
        until(lambda: added <= rows.keys(), "the new records are applied")

    assert (["topic_recreated"], ["orders"]) == (
        place.outcomes,
        [route for route, _ in place.repairs.routes],
    )


def test_a_recreated_topic_that_has_grown_is_read_from_its_start(place):
    """
    Its offsets do not show it, its id does.
    """
    place.remake()
    added = set(place.put(60))

    assert (added, ["topic_recreated"], ["orders"]) == (
        added & set(place.run()),
        place.outcomes,
        [route for route, _ in place.repairs.routes],
    )


def test_a_topic_recreated_while_it_is_read_is_noticed(place, monkeypatch):
    """
    The engine or the id check may be first: no record is left out.
    """
    monkeypatch.setattr(recovery, "LOOK_EVERY_S", 0.1)
    with place.running():
        place.remake()
        added = set(place.put(60))
        rows = place.sink.rows["orders"]
        until(lambda: added <= rows.keys(), "all of the new records are applied")

    assert "orders" in [route for route, _ in place.repairs.routes]


def test_a_topic_recreated_while_a_query_starts_is_noticed(place, monkeypatch):
    """
    It is gone when its id is requested, and has grown when its offsets are.
    """
    monkeypatch.setattr(recovery, "LOOK_EVERY_S", 0.1)
    added = set()

    def ids_between(_):
        monkeypatch.delattr(place.cluster, "topic_ids")
        place.remake()
        added.update(place.put(60))
        return {}

    monkeypatch.setattr(place.cluster, "topic_ids", ids_between)
    with place.running():
        rows = place.sink.rows["orders"]
        until(lambda: added and added <= rows.keys(), "the new records are applied")

    assert (["topic_recreated"], ["orders"]) == (
        place.outcomes,
        [route for route, _ in place.repairs.routes],
    )


def test_a_row_that_was_deleted_in_a_gap_goes(place):
    """
    Retention took the delete; the snapshot that was asked for ends with a sweep.

    What it read stays, also what came only by it; what is newer than it stays too.
    """
    lost = place.put(4, partition=0)
    place.tell("1", "d")
    end = place.ends()[place.topic]["0"]
    cut = TopicPartition(place.topic, 0, end)
    place.admin.delete_records([cut])[cut].result()
    place.run()
    had = set(place.sink.rows["orders"])
    fill = f"{place.topic}.backfill.cache"
    place.admin.create_topics([NewTopic(fill, 2, 1)])[fill].result()
    place.number += 1
    floor = place.number
    read = [*(str(n) for n in range(2, 21)), *lost]
    for key in read:
        place.tell(key, "r", topic=fill, number=floor)
    newer = place.put(1)
    for partition in (0, 1):
        place.sweep(fill, partition, floor)
    rows = set(place.run())

    assert (True, {"1"}, set(newer) | set(lost)) == (
        set(lost).isdisjoint(had),
        had - rows,
        rows - had,
    )


def test_a_new_sink_that_dies_before_its_first_batch_begins_where_it_was_declared(
    place,
):
    """Not at what are the ends by then; what is below its start a snapshot brings."""
    shutil.rmtree(place.plan.checkpoint.parent)
    place.sink.rows.clear()
    replace_file(place.plan.starting_offsets_file, orjson.dumps(place.ends()))
    first = place.put(3)
    place.sink.dies = "before"
    second: list[str] = []
    place.sink.between = lambda: second.extend(place.put(3))
    rows = place.run()

    assert ([*first, *second], []) == (rows, place.outcomes)
