"""
Reads topics from given offsets to their current ends, and writes barriers.

Records are consumed one by one, because a call for several blocks until all of them
have arrived. The client reports the end of each partition immediately.

On a replicated topic a record is on the leader first, and readers get it once every
in-sync replica has it. Records of a killed process may be on the leader only: a scan
would end below them, and they would be published again. Once all in-sync replicas have
acknowledged a *barrier* that follows such records, readers get them too.

A barrier has neither key nor value; in a compacted topic it is the tombstone of an
unused key. The header ``towpath-barrier`` marks it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    ConfigResource,
    ResourceType,
    TopicMetadata,
)

from towpath.relay.encode.record import BARRIER_KEY
from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    PartitionId,
    is_permanent,
    make_client,
    relay_error,
)
from towpath.schemas import headers
from towpath.settings import Kafka

_READING: Final = {
    "group.id": "towpath-relay",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # Retention may have deleted the record at an offset.
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
}


def partition_id(message: Message) -> PartitionId:
    """Return a record's topic and partition."""
    return message.topic() or "", message.partition() or 0


class TopicReader:
    """
    Reads topics, their partition counts and their replicas, with one consumer.

    It is shared, because connecting another client takes up to 50 ms.

    Args:
        kafka: The brokers.
        is_committed: Whether records of open and aborted transactions are left out.
    """

    def __init__(self, kafka: Kafka, *, is_committed: bool = True) -> None:
        self.kafka = kafka
        level = "read_committed" if is_committed else "read_uncommitted"
        settings = {**_READING, "isolation.level": level}
        self._consumer = make_client(Consumer, kafka, settings)
        self._listed: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()

    def partition_counts(self) -> dict[str, int]:
        """
        Return how many partitions each topic has.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
        """
        topics = self._list_topics("listing topics")
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def replicated(self, topics: Iterable[str]) -> dict[str, int]:
        """
        Return the partition counts of those topics that have more than one replica.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
        """
        found = self._list_topics("listing topics")
        return {
            name: len(found[name].partitions)
            for name in topics
            if name in found
            and any(len(each.replicas) > 1 for each in found[name].partitions.values())
        }

    def read_to_ends(
        self, starts: Mapping[PartitionId, int], what: str
    ) -> Iterator[Message]:
        """
        Yield the records of partitions, in order within each partition.

        Call order: one read at a time.

        Args:
            starts: The first offset of each partition.
            what: Describes the records, for error messages.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            BrokerRefusedError: Kafka refuses a topic.
        """
        doing = f"reading {what}"
        # Knowing the leaders beforehand saves half a second of waiting for them.
        if not self._listed.issuperset(topic for topic, _ in starts):
            self._list_topics(doing)
        places = [TopicPartition(*at, start) for at, start in starts.items()]
        try:
            self._consumer.assign(places)
            yield from _until_ends(self._consumer, set(starts), what)
            self._consumer.unassign()
        except KafkaException as error:
            raise relay_error(error, doing) from error

    def _list_topics(self, doing: str) -> dict[str, TopicMetadata]:
        try:
            cluster = self._consumer.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise relay_error(error, doing) from error
        topics: dict[str, TopicMetadata] = cluster.topics
        self._listed = frozenset(topics)
        return topics


def _until_ends(
    consumer: Consumer, open_places: set[PartitionId], what: str
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
            open_places.discard(partition_id(message))
        else:
            raise KafkaException(error)


_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"


def write_barriers(kafka: Kafka, counts: dict[str, int]) -> None:
    """
    Write a barrier to each partition; readers then get every record before it.

    Args:
        kafka: The brokers.
        counts: How many partitions each topic has.

    Raises:
        BrokerUnavailableError: Kafka does not answer, or lacks in-sync replicas.
        BrokerRefusedError: Kafka refuses the barriers.
    """
    compacted = _compacted(kafka, counts)
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    # A replica may be unreachable for a long time: the attempt then fails, and the
    # caller retries.
    bounds = {"acks": "all", "linger.ms": 0, "message.timeout.ms": _timeout_ms()}
    producer = make_client(Producer, kafka, bounds)
    for topic, count in counts.items():
        key = BARRIER_KEY if topic in compacted else None
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
    permanent = list(filter(is_permanent, refused))
    if permanent:
        raise relay_error(KafkaException(permanent[0]), "writing barriers")
    if left or refused:
        reason = "not every in-sync replica has all records of the relay's topics"
        raise BrokerUnavailableError(reason)


def _timeout_ms() -> int:
    return int(REQUEST_TIMEOUT_S * 1000)


def _compacted(kafka: Kafka, topics: Iterable[str]) -> frozenset[str]:
    """Return the compacted topics, whose records need a key."""
    admin = make_client(AdminClient, kafka)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    found = set()
    for resource, future in futures.items():
        try:
            entry = future.result().get(_POLICY)
        except KafkaException as error:
            raise relay_error(error, "reading topic settings") from error
        if entry is not None and _COMPACT in str(entry.value):
            found.add(resource.name)
    return frozenset(found)
