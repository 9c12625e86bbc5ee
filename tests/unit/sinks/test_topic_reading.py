"""A topic is read up to the ends that it had when the read began."""

from types import SimpleNamespace

import orjson
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from towpath.schemas.clock import SystemClock
from towpath.settings import Settings
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client, state_topic
from towpath.sinks.kafka.client import (
    REQUEST_TIMEOUT_S,
    KafkaRelations,
    end_offset,
    records_to,
)
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.kafka.state_topic import StateTopic
from towpath.sinks.state.progress import Progress
from towpath.sinks.state.published import PublishedProgress, encode_published
from towpath.sinks.wait import KafkaHistory


class FakeConsumer:
    """A consumer that returns prepared answers: records, and ends of partitions."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.assigned = []
        self.is_fetching = False

    def assign(self, partitions):
        """Record the offset from which each partition is read."""
        self.assigned = [
            (partition.partition, partition.offset) for partition in partitions
        ]
        self.is_fetching = True

    def unassign(self):
        self.is_fetching = False

    def poll(self, _timeout_s):
        return self.answers.pop(0)


def answer(partition, offset, error=None):
    """Make a record, or the end or error that a poll returns instead."""
    code = error and SimpleNamespace(code=lambda: error, str=lambda: "no brokers")
    return SimpleNamespace(
        partition=lambda: partition, offset=lambda: offset, error=lambda: code
    )


def read(ends, seen, *answers):
    """Read; return the records' partitions and offsets, and the consumer."""
    consumer = FakeConsumer(*answers)
    found = records_to(ends, consumer, "t", seen)
    return [(one.partition(), one.offset()) for one in found], consumer


def test_the_last_record_ends_the_read():
    """
    The broker would delay its next answer while it waits for more records.
    """
    seen = {1: 3}
    answers = answer(2, 0), answer(0, 0), answer(0, 1)
    found, consumer = read({0: 2, 1: 3, 2: 1}, seen, *answers)

    assert [(2, 0), (0, 0), (0, 1)] == found
    assert [(0, OFFSET_BEGINNING), (2, OFFSET_BEGINNING)] == consumer.assigned
    assert {0: 2, 1: 3, 2: 1} == seen


def test_a_partition_ends_without_its_last_record():
    """
    Compaction and transaction markers leave offsets without a record.
    """
    seen = {}
    end = answer(0, 5, KafkaError._PARTITION_EOF)
    found, consumer = read({0: 5}, seen, answer(0, 1), end)

    assert ([(0, 1)], {0: 5}, []) == (found, seen, consumer.answers)


def test_nothing_is_fetched_after_the_read():
    """
    A fetch left open would hold back the next request for as long as the fetch waits.

    That would add half a second to each batch.
    """
    answers = answer(0, 0), answer(0, 1, KafkaError._ALL_BROKERS_DOWN)
    consumer = FakeConsumer(*answers)
    with pytest.raises(BrokerUnavailableError):
        list(records_to({0: 2}, consumer, "t", {}))
    _, read_to_the_end = read({0: 1}, {}, answer(0, 0))

    assert (False, False) == (consumer.is_fetching, read_to_the_end.is_fetching)


class Clock:
    """A clock that advances only in ``wait``."""

    def __init__(self):
        self._s = 0.0

    def monotonic_s(self):
        return self._s

    def wait(self, delay_s):
        self._s += delay_s


class SettlingConsumer:
    """A consumer that fails a number of times before it knows a partition's offsets."""

    def __init__(self, code, failures):
        self.left = failures
        self._code = code

    def get_watermark_offsets(self, _partition, _timeout_s):
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(self._code))
        return 3, 8


@pytest.mark.parametrize(
    "code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._DESTROY_BROKER]
)
def test_an_end_is_requested_again_while_the_leader_changes(code):
    """
    Reading continues after a broker has been fenced for a moment.
    """
    partition = TopicPartition("t", 0)

    assert end_offset(SettlingConsumer(code, 3), partition, Clock()) == 8


@pytest.mark.parametrize(
    ("code", "passes_s"),
    [
        (KafkaError.NOT_LEADER_FOR_PARTITION, REQUEST_TIMEOUT_S),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 0),
    ],
)
def test_an_end_that_remains_unknown_raises_an_error(code, passes_s):
    """
    The error is raised after the request timeout, or immediately if it is permanent.
    """
    clock = Clock()
    consumer = SettlingConsumer(code, 1_000_000)
    with pytest.raises(BrokerUnavailableError):
        end_offset(consumer, TopicPartition("t", 0), clock)

    assert clock.monotonic_s() == pytest.approx(passes_s, abs=0.2)


class OneTopic:
    """A topic with one partition, and its only consumer."""

    def __init__(self):
        self.records = []
        self._next = 0

    def create(self, *_, is_compacted):
        assert is_compacted

    def close(self):
        """Do nothing."""

    def end_offsets(self, names):
        return {name: {"0": len(self.records)} for name in names}

    def list_topics(self, timeout):
        assert timeout
        return SimpleNamespace(topics={"p.relations", "p.relay-state", "p.progress"})

    def get_watermark_offsets(self, _partition, _timeout_s):
        return 0, len(self.records)

    def assign(self, partitions):
        self._next = max(0, partitions[0].offset)

    def unassign(self):
        """Do nothing."""

    def poll(self, _timeout_s):
        key, value = self.records[self._next]
        self._next += 1
        return SimpleNamespace(
            key=lambda: key,
            value=lambda: orjson.dumps(value),
            partition=lambda: 0,
            offset=lambda at=self._next - 1: at,
            error=lambda: None,
        )


@pytest.fixture
def topic(monkeypatch):
    """Return the topic that is read instead of Kafka's."""
    fake = OneTopic()
    monkeypatch.setattr(client, "Topics", lambda _: fake)
    monkeypatch.setattr(client, "consumer", lambda *_: fake)
    return fake


def test_announcements_in_a_recreated_topic_are_read(topic):
    """
    Otherwise a driver would miss new tables until the topic had as many records again.
    """

    def announce(table):
        shape = {"schema": "shop", "table": table, "columns": [], "key": []}
        return (b"k", shape | {"position": "0000000000000008.0000000000"})

    relations = KafkaRelations(None, "p")
    topic.records = [announce("orders"), announce("lines")]
    relations.refresh()
    topic.records = [announce("labels")]
    relations.refresh()
    tables = ("orders", "labels")

    assert all(relations.known(f"p.shop.{table}") is not None for table in tables)


def test_the_history_in_a_recreated_topic_counts(topic):
    """
    Without a record, the relay has not begun; the earlier start does not count.
    """

    def begin(*lsns):
        return (b"lineage", {"lineages": [{"start_lsn": lsn} for lsn in lsns]})

    history = KafkaHistory(None, "p")
    topic.records = [begin(1), begin(1, 5)]
    seen = [history.start_lsn()]
    topic.records = []
    seen.append(history.start_lsn())
    topic.records = [begin(9)]
    seen.append(history.start_lsn())

    assert [5, None, 9] == seen


SETTINGS = Settings.model_validate(
    {
        "version": 1,
        "source": [{"dsn": "postgresql://unused", "prefix": "p"}],
        "kafka": {"bootstrap_servers": "unused"},
    }
)
# A record that another program wrote.
FOREIGN = (b"\xff", {})


def test_a_key_of_another_program_does_not_end_the_reading_of_progress(topic):
    """
    Otherwise one such record would keep a driver from publishing for any sink.
    """
    record = PublishedProgress(
        1, 0, "2026-01-02T03:04:05+00:00", "host", 7, Progress("cache")
    )
    topic.records = [FOREIGN, (b"cache", orjson.loads(encode_published(record)))]
    received = ProgressReader(SETTINGS, SystemClock()).read("cache")

    assert received is not None
    assert record == received.record


def test_a_key_of_another_program_does_not_end_the_reading_of_copies(
    topic, monkeypatch
):
    """
    Otherwise one such record would keep every driver from running the sink.
    """
    monkeypatch.setattr(state_topic, "Topics", lambda _: topic)
    topic.records = [FOREIGN, (b"owner", {"id": "x"})]

    assert b'{"id":"x"}' == StateTopic(SETTINGS, "cache").read()["owner"]
