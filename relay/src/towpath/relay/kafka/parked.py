"""
The parked aggregates, as the dead letters tell them: read whole at each start.

``<prefix>.dead.relay`` is read from its beginning to the end that it has by then. What
was let go is told there too: ``Parked.recall`` says how.
"""

from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import REQUEST_TIMEOUT_S, configuration, translated
from towpath.relay.routing.parked import Parked
from towpath.schemas import topics
from towpath.settings import Kafka

_PART: Final = "relay"


def read_parked(kafka: Kafka, prefix: str, max_parked_keys: int) -> Parked:
    """
    Return which aggregates are parked. Call order: the topic exists, if it ever did.

    Args:
        kafka: The brokers.
        prefix: Of the topics.
        max_parked_keys: How many may be parked at a time.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
        BrokerRefusedError: Kafka refuses the topic.
        ParkedOverflowError: More are parked than that.
    """
    topic = topics.dead_letter_topic(prefix, _PART)
    parked = Parked(max_parked_keys)
    consumer = Consumer(
        configuration(
            kafka,
            {
                "group.id": "towpath-relay-parked",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # The end is what is waited for: let the broker say so at once.
                "fetch.wait.max.ms": 10,
            },
        )
    )
    try:
        cluster = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
        partitions = list(cluster.topics[topic].partitions)
        if partitions:
            consumer.assign(
                [TopicPartition(topic, at, OFFSET_BEGINNING) for at in partitions]
            )
            _read(consumer, topic, len(partitions), parked)
            parked.check()
    except KafkaException as error:
        raise translated(error, f"reading {topic}") from error
    finally:
        consumer.close()
    return parked


def _read(consumer: Consumer, topic: str, partition_count: int, parked: Parked) -> None:
    """Take every record until each partition's end was met."""
    ended: set[int] = set()
    while len(ended) < partition_count:
        # One by one: to consume a number of them waits until there are so many.
        message = consumer.poll(REQUEST_TIMEOUT_S)
        if message is None:
            reason = f"{topic} could not be read in {REQUEST_TIMEOUT_S:g} s"
            raise BrokerUnavailableError(reason)
        error = message.error()
        if error is None:
            _take(message, parked)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            ended.add(message.partition() or 0)
        else:
            raise KafkaException(error)


def _take(message: Message, parked: Parked) -> None:
    found = message.headers() or []
    marks = found.items() if isinstance(found, dict) else found
    parked.recall(message.key(), message.value(), marks)
