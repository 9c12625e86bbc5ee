"""
Readers of whole topics, in each partition's order, and a topic's record size limit.

Readers leave no consumer group behind, and do not create the topics that they read.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from support.waiting import CLOCK, TIMEOUT_S, until
from towpath.schemas.clock import Deadline
from towpath.sinks.change import Origin, Record


def read_to_end(
    kafka: str, *topics: str, isolation: str = "read_committed"
) -> list[Message]:
    """Read topics from the start to the current end; a missing topic is empty."""
    found: list[Message] = []
    with _consumer(kafka, isolation) as consumer:
        starts = [start for topic in topics for start in _starts(consumer, topic)]
        consumer.assign(starts)
        left = {(start.topic, start.partition) for start in starts}
        deadline = Deadline(CLOCK, TIMEOUT_S)
        while left and not deadline.passed():
            batch = consumer.consume(1000, 0.2)
            found += _records(batch)
            left -= _ended(batch)
    assert not left, f"partitions not read to the end: {sorted(left)}"
    return found


def read_at_least(kafka: str, topic: str, count: int) -> list[Message]:
    """
    Read a topic, which may not exist yet, until it has at least ``count`` records.

    Further records that have arrived by then are read too: they may be duplicates.
    """
    found: list[Message] = []
    with _consumer(kafka) as consumer:
        until(lambda: bool(_starts(consumer, topic)), f"there is a topic {topic}")
        consumer.assign(_starts(consumer, topic))
        deadline = Deadline(CLOCK, TIMEOUT_S)
        while len(found) < count and not deadline.passed():
            found += _records(consumer.consume(500, 0.2))
        while more := _records(consumer.consume(500, 0.5)):
            found += more
    return found


def limit_records(kafka: str, topic: str, limit_bytes: int) -> None:
    """Limit the size of the records that a topic accepts."""
    limit = ConfigEntry(
        "max.message.bytes",
        str(limit_bytes),
        incremental_operation=AlterConfigOpType.SET,
    )
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[limit])
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.incremental_alter_configs([changed])[changed].result()


def headers_of(message: Message) -> dict[str, Any]:
    """Return a record's headers as text; a header without a value is None."""
    return {name: value and value.decode() for name, value in message.headers() or ()}


def position_of(message: Message) -> str:
    """Return the position of a record."""
    position: str = headers_of(message)["position"]
    return position


@contextlib.contextmanager
def _consumer(kafka: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "test",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _starts(consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Return the first offsets of a topic's partitions; none for a missing topic."""
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return [TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions]


def _records(batch: Sequence[Message]) -> list[Message]:
    return [message for message in batch if message.error() is None]


def _ended(batch: Sequence[Message]) -> set[tuple[str, int]]:
    """Return the partitions whose end was reached."""
    return {
        (message.topic(), message.partition())
        for message in batch
        if message.error() is not None
        and message.error().code() == KafkaError._PARTITION_EOF
    }


def sink_record(message):
    """Return a record as a sink reads it."""
    origin = Origin(message.topic(), message.partition(), message.offset())
    headers = dict(message.headers() or ())
    return Record(origin, message.key(), message.value(), headers)
