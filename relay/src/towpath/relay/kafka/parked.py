"""
The parked aggregates, as the dead letters tell them: read whole at each start.

``<prefix>.dead.relay`` is read from its beginning to the end that it has by then. What
was let go is told there too: ``Parked.recall`` says how.
"""

from typing import Final

from confluent_kafka import Message

from towpath.relay.kafka.reading import partition_counts, read_to_ends
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
    starts = dict.fromkeys(
        ((topic, at) for at in range(partition_counts(kafka).get(topic, 0))), 0
    )
    if starts:
        for message in read_to_ends(kafka, starts, topic):
            _take(message, parked)
        parked.check()
    return parked


def _take(message: Message, parked: Parked) -> None:
    found = message.headers() or []
    marks = found.items() if isinstance(found, dict) else found
    parked.recall(message.key(), message.value(), marks)
