"""The age of records, read repeatedly from a real broker."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka.offsets import KafkaRecordAges

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def topic(stack, unique):
    """Provide a topic of two partitions with five records each, a second apart."""
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    config = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(unique, 2, 1, config=config)])[unique].result()
    producer = Producer({"bootstrap.servers": stack.kafka, "linger.ms": 0})
    for number in range(10):
        at_ms = FIRST_MS + number * 1000
        producer.produce(unique, b"x" * 9000, partition=number % 2, timestamp=at_ms)
        producer.flush()
    return unique


def test_each_query_finds_the_oldest_unread_record(stack, topic):
    """
    No query leaves behind a response that a later query would mistake for its own.
    """
    oldest = KafkaRecordAges(Kafka(bootstrap_servers=stack.kafka), topic)
    queries = (
        {(topic, 0): 0, (topic, 1): 0},
        {(topic, 0): 3, (topic, 1): 1},
        {(topic, 0): 4},
        {(topic, 0): 4, (topic, 1): 4},
        {(topic, 0): 5, (topic, 1): 5},
        {(topic, 0): 5, (topic, 1): 2},
        {},
    )
    found = [oldest.oldest_ms(offsets) for offsets in queries]
    oldest.close()

    assert [0, 3, 8, 8, None, 5, None] == [
        None if at_ms is None else (at_ms - FIRST_MS) // 1000 for at_ms in found
    ]


def test_an_unavailable_broker_is_reported(unused_port, monkeypatch):
    """
    A silent broker causes an error; no age is returned.
    """
    monkeypatch.setattr("towpath.sinks.kafka.offsets._TIMEOUT_S", 0.2)
    oldest = KafkaRecordAges(
        Kafka(bootstrap_servers=f"127.0.0.1:{unused_port}"), "towpath"
    )
    with pytest.raises(BrokerUnavailableError):
        oldest.oldest_ms({("towpath.shop.orders", 0): 0})
    oldest.close()
