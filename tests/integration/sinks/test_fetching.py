"""From a real broker, the driver reads exactly the records of each batch."""

from collections import defaultdict

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError, RecordsGoneError
from towpath.sinks.kafka import client as clients
from towpath.sinks.kafka import fetch
from towpath.sinks.kafka.fetch import KafkaBatches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


class Counting(Consumer):
    """A client that counts how often partitions are assigned and paused."""

    assigned = 0
    paused = 0
    has_produced = False

    def assign(self, partitions):
        """Count the call, and assign."""
        type(self).assigned += 1
        super().assign(partitions)

    def pause(self, partitions):
        """Count the call, and pause."""
        type(self).paused += 1
        super().pause(partitions)


@pytest.fixture
def client(monkeypatch):
    """Provide a counting client; fetches time out soon and read little at a time."""
    counting = type("Counted", (Counting,), {})
    monkeypatch.setattr(clients, "Consumer", counting)
    monkeypatch.setattr(fetch, "REQUEST_TIMEOUT_S", 2.0)
    monkeypatch.setattr(fetch, "_POLL_S", 0.1)
    monkeypatch.setattr(fetch, "_QUERY_TIMEOUT_S", 2.0)
    monkeypatch.setattr(fetch, "FETCH_SLICE_RECORDS", 100)
    # Every batch counts as part of a backlog.
    monkeypatch.setattr(fetch, "_BACKLOG_RECORDS", 0)
    return counting


@pytest.fixture
def topic(stack, unique):
    """Provide a topic of two partitions."""
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(unique, 2, 1)])[unique].result()
    return unique


@pytest.fixture
def reading(stack, client):
    """Provide a reader of a query's batches."""
    assert client.assigned == 0
    made = KafkaBatches(Kafka(bootstrap_servers=stack.kafka), "cache")
    yield made
    made.close()


def produce(stack, topic, partition, numbers):
    """Write records whose values are their offsets."""
    producer = Producer({"bootstrap.servers": stack.kafka, "linger.ms": 0})
    for number in numbers:
        text = b"%d" % number
        headers = [("position", text), ("empty", None)] if number % 2 else None
        producer.produce(topic, text, text, partition, headers=headers)
    assert producer.flush(30) == 0


def transact(stack, topic, name, *transactions):
    """Write a transaction for each record count; abort it if the count is negative."""
    producer = Producer(
        {"bootstrap.servers": stack.kafka, "transactional.id": f"{topic}-{name}"}
    )
    producer.init_transactions(30)
    for count in transactions:
        producer.begin_transaction()
        for number in range(abs(count)):
            producer.produce(topic, b"%d" % number, b"t", 0)
        if count < 0:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def span(topic, *bounds):
    """Describe a batch by its first offset and its end in each partition."""
    return {(topic, partition): bound for partition, bound in enumerate(bounds)}


def offsets(tables):
    """Return the offsets of a batch, by partition, in the order of arrival."""
    found = defaultdict(list)
    for table in tables:
        columns = (table.column(name).to_pylist() for name in ("partition", "offset"))
        for partition, offset in zip(*columns, strict=True):
            found[partition].append(offset)
    return dict(found)


def test_consecutive_batches_are_read_without_a_seek(stack, topic, reading, client):
    """
    Each batch has its own records, in order; partitions are assigned once.
    """
    produce(stack, topic, 0, range(1000))
    produce(stack, topic, 1, range(50))
    batches = (
        span(topic, (0, 350), (0, 7)),
        span(topic, (350, 350), (7, 8)),
        span(topic, (350, 999), (8, 50)),
    )
    found = [[*reading.slices(batch)] for batch in batches]

    assert [
        {0: [*range(350)], 1: [*range(7)]},
        {1: [7]},
        {0: [*range(350, 999)], 1: [*range(8, 50)]},
    ] == [offsets(tables) for tables in found]
    assert (1, True) == (client.assigned, len(found[0]) > 3)


def test_nothing_is_fetched_between_small_batches(
    stack, topic, reading, client, monkeypatch
):
    """
    The next batch has the records that arrived while the client was idle.
    """
    monkeypatch.setattr(fetch, "_BACKLOG_RECORDS", 1000)
    produce(stack, topic, 0, range(3))
    first = offsets(reading.slices(span(topic, (0, 3), (0, 0))))
    assigned = reading._consumer.assignment()
    produce(stack, topic, 0, range(3, 10))
    produce(stack, topic, 1, range(2))
    second = offsets(reading.slices(span(topic, (3, 10), (0, 2))))

    assert ({0: [0, 1, 2]}, {0: [*range(3, 10)], 1: [0, 1]}) == (first, second)
    assert ([], 2, 0) == (assigned, client.assigned, client.paused)


def test_a_backlog_is_fetched_ahead(stack, topic, reading, monkeypatch):
    """
    The records that follow are fetched while a batch is being written.
    """
    monkeypatch.setattr(fetch, "_BACKLOG_RECORDS", 1000)
    produce(stack, topic, 0, range(3000))
    first = offsets(reading.slices(span(topic, (0, 5), (0, 0))))

    assert {0: [*range(5)]} == first
    assert len(reading._consumer.assignment()) == 2


def test_the_partitions_of_a_topic_are_read_in_turn(stack, topic):
    """
    A task's process reads partitions in turn; prefetched records are kept.
    """
    for partition in (0, 1):
        produce(stack, topic, partition, range(3000))
    reading = KafkaBatches(
        Kafka(bootstrap_servers=stack.kafka), "cache", ahead_records=100
    )
    found = [
        offsets(reading.slices({(topic, partition): (begin, begin + 1000)}))
        for begin in (0, 1000, 2000)
        for partition in (0, 1)
    ]
    reading.close()

    assert [
        {partition: [*range(begin, begin + 1000)]}
        for begin in (0, 1000, 2000)
        for partition in (0, 1)
    ] == found


def test_a_record_is_read_unchanged(stack, topic, reading):
    """
    The columns and their types are the same as Spark's.
    """
    produce(stack, topic, 1, range(2))
    (table,) = reading.slices(span(topic, (0, 0), (0, 2)))

    assert {
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "key": "binary",
        "value": "binary",
        "headers": "list<item: struct<key: string, value: binary>>",
    } == {field.name: str(field.type) for field in table.schema}
    headers = [{"key": "position", "value": b"1"}, {"key": "empty", "value": None}]
    assert [
        (topic, 1, 0, b"0", b"0", []),
        (topic, 1, 1, b"1", b"1", headers),
    ] == [tuple(row.values()) for row in table.to_pylist()]


def test_a_repeated_batch_is_read_again(stack, topic, reading, client):
    """
    A batch is read again even if its reader stopped halfway, or has read further.
    """
    produce(stack, topic, 0, range(500))
    [*reading.slices(span(topic, (0, 50), (0, 0)))]
    batch = span(topic, (50, 400), (0, 0))
    first = next(reading.slices(batch))
    again = offsets(reading.slices(batch))
    third = offsets(reading.slices(batch))

    assert ([*range(50, 400)], [*range(50, 400)]) == (again[0], third[0])
    assert (50, 3) == (first.column("offset")[0].as_py(), client.assigned)


def test_transaction_markers_are_not_records(stack, topic, reading, client):
    """
    A batch may end with a transaction marker, which is not a record.

    Aborted records are not read.
    """
    transact(stack, topic, "a", 3, -2, 1)
    # 0-2, a marker, two aborted records, a marker, 7, a marker.
    first, second, third = (
        offsets(reading.slices(span(topic, bound, (0, 0))))
        for bound in ((0, 4), (4, 7), (7, 9))
    )
    transact(stack, topic, "b", 2)
    fourth = offsets(reading.slices(span(topic, (9, 12), (0, 0))))

    assert ({0: [0, 1, 2]}, {}, {0: [7]}, {0: [9, 10]}) == (
        *(first, second, third),
        fourth,
    )
    assert client.assigned == 1


def test_a_partition_end_that_was_reported_early_is_remembered(
    stack, topic, reading, client, monkeypatch
):
    """
    The client reports an end only once, even if a later batch needs the report.
    """
    transact(stack, topic, "a", 1, 1)
    arrived = fetch._consume

    def arrive(consumer, max_records):
        messages = arrived(consumer, max_records)
        if (
            any(m.error() and m.offset() == 4 for m in messages)
            and not client.has_produced
        ):
            type(consumer).has_produced = True
            produce(stack, topic, 1, [0])
        return messages

    monkeypatch.setattr(fetch, "_consume", arrive)
    # The other partition's record arrives after the end of this one has been reported.
    first = offsets(reading.slices(span(topic, (0, 2), (0, 1))))
    second = offsets(reading.slices(span(topic, (2, 4), (1, 1))))

    assert ({0: [0], 1: [0]}, {0: [2]}, 1) == (first, second, client.assigned)


def test_records_deleted_by_retention_raise_an_error(stack, topic, reading):
    """
    The fetch never skips deleted records silently.
    """
    produce(stack, topic, 0, range(10))
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    [cut] = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    cut.result()
    reading.check(span(topic, (5, 10), (0, 0)))
    with pytest.raises(RecordsGoneError, match="it begins at 5, not at 4"):
        reading.check(span(topic, (4, 10), (0, 0)))
    with pytest.raises(RecordsGoneError, match="it ends at 10, not at 11"):
        reading.check(span(topic, (5, 11), (0, 0)))
    with pytest.raises(RecordsGoneError, match=f"partition 0 of {topic}"):
        [*reading.slices(span(topic, (3, 10), (0, 0)))]

    assert {0: [5, 6, 7, 8, 9]} == offsets(reading.slices(span(topic, (5, 10), (0, 0))))


def test_a_deleted_topic_raises_an_error(stack, topic, reading):
    """
    The topic is deleted between two batches.
    """
    produce(stack, topic, 0, range(2))
    assert {0: [0, 1]} == offsets(reading.slices(span(topic, (0, 2), (0, 0))))
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.delete_topics([topic])[topic].result()
    with pytest.raises(RecordsGoneError, match=f"partition 0 of {topic}"):
        [*reading.slices(span(topic, (2, 3), (0, 0)))]


@pytest.mark.usefixtures("client")
def test_an_unavailable_broker_is_reported(unused_port):
    """
    A silent broker causes an error instead of an empty batch.
    """
    reading = KafkaBatches(Kafka(bootstrap_servers=f"127.0.0.1:{unused_port}"), "cache")
    with pytest.raises(
        BrokerUnavailableError, match=r"partition 1 of .* cannot be read"
    ):
        [*reading.slices({("towpath.shop.orders", 1): (0, 5)})]
    reading.close()


def test_a_partition_far_ahead_waits_for_the_others(
    stack, topic, reading, client, monkeypatch
):
    """
    The partition is paused before its records fill memory; none of them is lost.
    """
    monkeypatch.setattr(fetch, "_AHEAD_BYTES", 200)
    monkeypatch.setattr(fetch, "REQUEST_TIMEOUT_S", 60.0)
    produce(stack, topic, 0, range(2000))
    produce(stack, topic, 1, range(2))
    arrived = fetch._consume

    def arrive(consumer, max_records):
        if client.paused and not client.has_produced:
            type(consumer).has_produced = True
            produce(stack, topic, 1, [2])
        return arrived(consumer, max_records)

    monkeypatch.setattr(fetch, "_consume", arrive)
    first = offsets(reading.slices(span(topic, (0, 5), (0, 3))))
    second = offsets(reading.slices(span(topic, (5, 2000), (3, 3))))

    assert ({0: [*range(5)], 1: [0, 1, 2]}, [*range(5, 2000)]) == (first, second[0])
    assert (1, 1) == (client.paused, client.assigned)


def test_an_added_partition_is_read_from_its_first_record(
    stack, topic, reading, client
):
    """
    Spark includes the new partition in its next batch.
    """
    produce(stack, topic, 0, range(3))
    before = offsets(reading.slices({(topic, 0): (0, 3)}))
    produce(stack, topic, 1, range(4))
    after = offsets(reading.slices(span(topic, (3, 3), (0, 4))))

    assert ({0: [0, 1, 2]}, {1: [0, 1, 2, 3]}, 2) == (before, after, client.assigned)


def test_a_fetch_waits_for_a_record_that_arrives_later(stack, topic, reading):
    """
    Spark may learn of a record before this client does.
    """
    produce(stack, topic, 0, range(1))
    given = reading.slices(span(topic, (0, 2), (0, 0)))
    produce(stack, topic, 0, [1])

    assert {0: [0, 1]} == offsets(given)
