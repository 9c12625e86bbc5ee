"""The relay's producer after a newer process has taken its transactional id."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import CLOCK
from towpath.relay.encode.record import Record
from towpath.relay.errors import DeliveryFailedError
from towpath.relay.kafka.producer import KafkaProducer, fence
from towpath.schemas.clock import Deadline
from towpath.schemas.failure import Disposition
from towpath.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def fenced(stack, unique):
    """Provide a producer whose transaction is open and whose id another has taken."""
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result()
    kafka = Kafka(bootstrap_servers=stack.kafka)
    producer = KafkaProducer(
        kafka,
        {unique: 1},
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
    """Produce a record; return whether the queue took it."""
    record = Record(topic, b"k", b"v", [], b"0", 0, 9, 0)
    return producer.produce([(record, lambda _error, _message: None)])


def until_it_fails(call) -> None:
    """Repeat a call until it raises; return after half a minute."""
    deadline = Deadline(CLOCK, 30)
    while not deadline.passed():
        call()


def test_a_fenced_producer_ends_its_session(fenced):
    """
    The failure is one after which a session is tried again, not one of the client's.
    """
    with pytest.raises(DeliveryFailedError, match="fenced") as raised:
        until_it_fails(lambda: fenced.poll(0.1))

    assert Disposition.RETRY is raised.value.disposition


def test_a_fenced_producer_closes(fenced):
    """
    After the loss settle, flush and close raise nothing; the next poll does.
    """
    fenced.settle(5.0)
    fenced.flush(0.1)
    fenced.close()

    with pytest.raises(DeliveryFailedError, match="fenced"):
        fenced.poll(0)


def test_a_fenced_producer_takes_no_record(fenced, unique):
    """
    A record that is produced before the client has reported is refused alike.
    """
    with pytest.raises(DeliveryFailedError) as raised:
        until_it_fails(lambda: produce(fenced, unique))

    assert Disposition.RETRY is raised.value.disposition
