"""
Barriers: what a dead process left with a leader is seen before our topics are read.

On a replicated topic a record stands with the leader first, and is shown to readers
once every replica in sync has it. Records that a process left when it was killed may
lie between: a scan ends below them, and what they are would be published again. A
record of ours behind them, acknowledged by all, tells that they are shown by now.

It says nothing: it has neither key nor value where the topic is not compacted, and is
the tombstone of a key that never was where it is. The header ``towpath-barrier`` marks
it for readers that want to know.
"""

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    ConfigResource,
    ResourceType,
)

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    is_away,
    made,
    translated,
)
from towpath.relay.routing.record import KEY_THAT_NEVER_WAS
from towpath.schemas import headers
from towpath.settings import Kafka

_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"


def replicated(kafka: Kafka, topics: Iterable[str]) -> dict[str, int]:
    """
    Return the partition counts of those topics that have more than one replica.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    admin = made(AdminClient, kafka)
    try:
        there = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
    except KafkaException as error:
        raise translated(error, "listing topics") from error
    return {
        name: len(there[name].partitions)
        for name in topics
        if name in there
        and any(len(each.replicas) > 1 for each in there[name].partitions.values())
    }


def write_barriers(kafka: Kafka, counts: dict[str, int]) -> None:
    """
    Write a barrier to each partition; all before it is shown when this returns.

    Args:
        kafka: The brokers.
        counts: How many partitions each topic has.

    Raises:
        BrokerUnavailableError: Kafka does not answer, or lacks replicas in sync.
        BrokerRefusedError: Kafka does not take them.
    """
    compacted = _compacted(kafka, counts)
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    # The time of a replica that is away and comes back is the operator's: an attempt
    # that fails is made again.
    bounds = {"acks": "all", "linger.ms": 0, "message.timeout.ms": _timeout_ms()}
    producer = made(Producer, kafka, bounds)
    for topic, count in counts.items():
        key = KEY_THAT_NEVER_WAS if topic in compacted else None
        for partition in range(count):
            producer.produce(
                topic,
                None,
                key,
                partition,
                headers=[(headers.BARRIER, b"1")],
                on_delivery=on_delivery,
            )
    left = producer.flush(2 * REQUEST_TIMEOUT_S)
    lasting = [error for error in refused if not is_away(error) and not _late(error)]
    if lasting:
        raise translated(KafkaException(lasting[0]), "writing barriers")
    if left or refused:
        reason = "not every replica in sync has taken what is in our topics"
        raise BrokerUnavailableError(reason)


def _late(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._MSG_TIMED_OUT)  # noqa: SLF001 - public


def _timeout_ms() -> int:
    return int(REQUEST_TIMEOUT_S * 1000)


def _compacted(kafka: Kafka, topics: Iterable[str]) -> frozenset[str]:
    """Return those topics whose records need a key."""
    admin = made(AdminClient, kafka)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    found = set()
    for resource, future in futures.items():
        try:
            entry = future.result().get(_POLICY)
        except KafkaException as error:
            raise translated(error, "reading topic settings") from error
        if entry is not None and _COMPACT in str(entry.value):
            found.add(resource.name)
    return frozenset(found)
