"""
Reading topics from given offsets to the ends that they have by then.

Records come one by one: to consume a number of them waits until there are so many. The
end of each partition is told by the broker, which is asked to do so at once.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Self

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    made,
    translated,
)
from towpath.settings import Kafka

# A topic and the number of a partition of it.
Place = tuple[str, int]

_READING: Final = {
    "group.id": "towpath-relay",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # An offset may lie below what retention has left.
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
}


def place_of(message: Message) -> Place:
    """Return where a record stands."""
    return message.topic() or "", message.partition() or 0


def read_to_ends(
    kafka: Kafka, starts: Mapping[Place, int], what: str, *, is_committed: bool = True
) -> Iterator[Message]:
    """
    Return the records of partitions, in the order of each.

    Args:
        kafka: The brokers.
        starts: From which offset on, by partition.
        what: What is read, for messages.
        is_committed: Whether records of transactions count only once these are ended.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
        BrokerRefusedError: Kafka refuses a topic.
    """
    level = "read_committed" if is_committed else "read_uncommitted"
    consumer = made(Consumer, kafka, {**_READING, "isolation.level": level})
    try:
        # Knowing the leaders beforehand saves half a second of waiting for them.
        consumer.list_topics(timeout=REQUEST_TIMEOUT_S)
        consumer.assign([TopicPartition(*at, start) for at, start in starts.items()])
        yield from _until_ends(consumer, set(starts), what)
    except KafkaException as error:
        raise translated(error, f"reading {what}") from error
    finally:
        consumer.close()


def partition_counts(kafka: Kafka) -> dict[str, int]:
    """
    Return how many partitions each topic has.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    with TopicCounts(kafka) as topics:
        return topics.read()


class TopicCounts:
    """Tells partition counts, over one connection; for whoever looks often."""

    def __init__(self, kafka: Kafka) -> None:
        self._consumer = made(Consumer, kafka, _READING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()

    def read(self) -> dict[str, int]:
        """
        Return how many partitions each topic has.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
        """
        try:
            cluster = self._consumer.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise translated(error, "listing topics") from error
        return {name: len(topic.partitions) for name, topic in cluster.topics.items()}


def _until_ends(
    consumer: Consumer, open_places: set[Place], what: str
) -> Iterator[Message]:
    while open_places:
        message = consumer.poll(REQUEST_TIMEOUT_S)
        if message is None:
            reason = (
                f"{what}: {len(open_places)} partitions could not be read to their "
                f"ends in {REQUEST_TIMEOUT_S:g} s"
            )
            raise BrokerUnavailableError(reason)
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public
            open_places.discard(place_of(message))
        else:
            raise KafkaException(error)
