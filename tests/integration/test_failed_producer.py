"""The relay's producer after it has failed: fenced, or with a refused record."""

import contextlib
from secrets import token_bytes

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import CLOCK
from towpath.relay.encode.record import Record
from towpath.relay.errors import DeliveryFailedError
from towpath.relay.kafka.producer import KafkaProducer, fence
from towpath.relay.kafka.state import publish_now
from towpath.schemas.clock import Deadline
from towpath.schemas.failure import Disposition
from towpath.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def fenced(stack, unique):
    """
    Provide a producer with an open transaction, fenced by a producer with the same id.
    """
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result()
    kafka = Kafka(bootstrap_servers=stack.kafka)
    producer = KafkaProducer(
        kafka,
        max_in_flight_bytes=1024 * 1024,
        batch_bytes=1_000_000,
        record_bytes=1_000_000,
        transactional_id=unique,
    )
    producer.begin()
    fence(kafka, unique)
    assert 1 == produce(producer, unique)
    return producer


def produce(producer: KafkaProducer, topic: str) -> int:
    """Produce a record; return the number of records that the queue accepted."""
    record = Record(topic, b"k", b"v", [], b"0", 0, 9, 0)
    return producer.produce([(record, 0, None)])


@pytest.fixture
def limited(stack, unique):
    """Provide an idempotent producer, and create a topic with a low size limit."""
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    new = NewTopic(unique, 1, 1, config={"max.message.bytes": "4000"})
    admin.create_topics([new])[unique].result()
    producer = KafkaProducer(
        Kafka(bootstrap_servers=stack.kafka),
        max_in_flight_bytes=1024 * 1024,
        batch_bytes=1_000_000,
        record_bytes=1_000_000,
    )
    yield producer
    producer.close()


@pytest.mark.parametrize(
    ("limit_bytes", "size_bytes", "count"), [(4_000_000, 1_500_000, 2), (4000, 2000, 9)]
)
def test_a_released_event_may_be_as_large_as_its_topic_allows(
    stack, unique, limit_bytes, size_bytes, count
):
    """
    Neither the client's default limit nor a batch of events prevents the release.
    """
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    new = NewTopic(unique, 1, 1, config={"max.message.bytes": str(limit_bytes)})
    admin.create_topics([new])[unique].result()
    value = token_bytes(size_bytes)
    record = Record(unique, b"k", value, [], b"0", 0, len(value), 0)
    publish_now(Kafka(bootstrap_servers=stack.kafka), *[record] * count)

    assert count == end_offset(stack.kafka, unique)


def end_offset(kafka: str, topic: str) -> int:
    """Return the end offset of a topic's only partition."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": topic})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1]
    finally:
        consumer.close()


def until_it_fails(call) -> None:
    """Repeat a call until it raises an error, or for half a minute."""
    deadline = Deadline(CLOCK, 30)
    while not deadline.passed():
        call()


def test_a_fenced_producer_ends_its_session(fenced):
    """
    The failure's disposition is a retry with a new session.
    """
    with pytest.raises(DeliveryFailedError, match="fenced") as raised:
        until_it_fails(lambda: fenced.poll(0.1))

    assert Disposition.RETRY is raised.value.disposition


def test_a_fenced_producer_closes(fenced):
    """
    Settle, flush and close raise nothing on a fenced producer; the next poll fails.
    """
    fenced.settle(5.0)
    fenced.flush(0.1)
    fenced.close()

    with pytest.raises(DeliveryFailedError, match="fenced"):
        fenced.poll(0)


def test_a_fenced_producer_commits_nothing(fenced, unique):
    """
    The commit may be the first call to fail, while callbacks are outstanding.
    """
    record = Record(unique, b"k", b"v", [], b"0", 0, 9, 0)
    # The client may have detected the fencing by now.
    with contextlib.suppress(DeliveryFailedError):
        fenced.produce([(record, 0, lambda _error, _message: None)] * 100)

    with pytest.raises(DeliveryFailedError, match=r"committing to Kafka: .*fenced"):
        fenced.commit()


def test_a_fenced_producer_accepts_no_record(fenced, unique):
    """
    Producing fails with the same error, even without a poll in between.
    """
    with pytest.raises(DeliveryFailedError) as raised:
        until_it_fails(lambda: produce(fenced, unique))

    assert Disposition.RETRY is raised.value.disposition


def test_no_record_is_published_after_a_refused_one(limited, stack, unique):
    """
    Otherwise a restart would resume after that record, and skip the refused one.

    Most records have no callback, so only the client's failure reports the loss.
    """
    large = Record(unique, b"k", token_bytes(9000), [], b"1", 0, 9, 0)
    assert 1 == produce(limited, unique)
    limited.flush(30)
    assert 1 == limited.produce([(large, 0, None)])

    def produce_and_count() -> None:
        produce(limited, unique)
        assert 1 == end_offset(stack.kafka, unique)

    with pytest.raises(DeliveryFailedError, match=r"too large|[Ff]atal"):
        until_it_fails(produce_and_count)
    assert 1 == end_offset(stack.kafka, unique)
