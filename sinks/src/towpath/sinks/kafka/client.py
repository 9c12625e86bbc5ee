"""
The Kafka client of the sinks.

It reads the compacted relations topic; lists, creates and deletes topics; and returns
their first and end offsets. It translates librdkafka's errors. Dead letters are written
by ``dead_letter_topic``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from towpath.schemas import topics
from towpath.schemas.clock import Clock, Deadline, SystemClock
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Kafka, Settings, client_settings
from towpath.sinks.changes.relations import RelationShape, parse_relation
from towpath.sinks.errors import BrokerUnavailableError, ShapeUnknownError

# Long enough for the election of a leader, short enough that a driver stops in time
# while the broker is unreachable.
REQUEST_TIMEOUT_S: Final = 10.0

_MS_PER_HOUR: Final = 3_600_000
# Kafka does not compact the segment being written; the smallest segment size is 1 MiB.
_COMPACTED_OFTEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "segment.bytes": str(1 << 20),
        "segment.ms": "600000",
        "min.cleanable.dirty.ratio": "0.1",
    }
)
_FOREVER: Final = -1

# Errors of partitions that were just created, or whose leader has just changed; and of
# a request that was in flight when the client dropped its handle to a broker.
_SETTLING: Final = frozenset(
    {
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - librdkafka's own name
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.FENCED_LEADER_EPOCH,
        # The client learned of a leader from one broker before another broker did.
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_SETTLED_WITHIN_S: Final = 5.0
_CHECK_EVERY_S: Final = 0.1

# Errors of a deletion for which a retry is useless.
_KEPT_BY: Final = frozenset(
    {
        KafkaError.TOPIC_DELETION_DISABLED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)

# The group of consumers that belong to no prefix; docs/rights.md names it.
SINKS_GROUP: Final = "towpath-sinks"

# The id that brokers without topic ids return.
_NO_ID: Final = str(Uuid(0, 0))

_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_Client = TypeVar("_Client", Consumer, Producer, AdminClient)
_Response = TypeVar("_Response")


def admin(kafka: Kafka) -> AdminClient:
    """
    Make a client that describes, creates and deletes topics.

    Raises:
        ConfigurationError: ``[kafka.client]`` cannot be used.
    """
    return _made(AdminClient, kafka, _NOTHING)


def consumer(kafka: Kafka, group: str, own: Mapping[str, Any] = _NOTHING) -> Consumer:
    """
    Make a consumer whose own settings override ``[kafka.client]``.

    Its partitions are assigned, and its caller tracks the offsets: the group is never
    joined, and nothing is committed.

    Args:
        kafka: The connection.
        group: The name of the group, for the broker's log and its rights.
        own: Further settings.

    Raises:
        ConfigurationError: ``[kafka.client]`` cannot be used.
    """
    usual = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    return _made(Consumer, kafka, {**usual, **own})


def producer(
    kafka: Kafka,
    *,
    transactional_id: str | None = None,
    more: Mapping[str, Any] = _NOTHING,
) -> Producer:
    """
    Make a producer whose records are neither lost nor duplicated.

    Args:
        kafka: The connection.
        transactional_id: If given, the producer writes in transactions, and fences
            earlier producers with this id.
        more: Further settings.

    Raises:
        ConfigurationError: ``[kafka.client]`` cannot be used.
    """
    own = {"enable.idempotence": True, "acks": "all", **more}
    if transactional_id is not None:
        own["transactional.id"] = transactional_id
    return _made(Producer, kafka, own)


def _made(
    make: Callable[[dict[str, Any]], _Client], kafka: Kafka, own: Mapping[str, Any]
) -> _Client:
    # librdkafka would log to stderr; errors are raised instead.
    settings = client_settings(kafka, {**own, "log_level": 0})
    try:
        return make(settings)
    except KafkaException as error:
        message = f"kafka.client: {error.args[0].str()}"
        raise ConfigurationError([message]) from error


class Topics:
    """Lists, creates and deletes topics, and returns their ids and offsets."""

    def __init__(self, kafka: Kafka, clock: Clock | None = None) -> None:
        self._admin = admin(kafka)
        self._clock = clock or SystemClock()

    def names(self) -> list[str]:
        """
        List every topic.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        return sorted(self._partitions())

    def end_offsets(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """
        Return, per topic and partition (as text), the offset of the next record.

        A topic that does not exist is left out.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        return self._offsets(names, _LATEST)

    def first_offsets(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """
        Return, per topic and partition (as text), the offset of the first record.

        That is the first record that retention has kept. A topic that does not exist is
        left out.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        return self._offsets(names, _EARLIEST)

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """
        Return the id that the broker gave to each topic when it was created.

        A topic that does not exist, or has no id, is left out.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        known = sorted(self._partitions().keys() & set(names))
        if not known:
            return {}
        try:
            futures = self._admin.describe_topics(
                TopicCollection(known), request_timeout=REQUEST_TIMEOUT_S
            )
            ids = {
                name: str(future.result().topic_id) for name, future in futures.items()
            }
        except KafkaException as error:
            raise unavailable(error) from error
        return {name: one for name, one in ids.items() if one != _NO_ID}

    def create(
        self,
        name: str,
        settings: Settings,
        *,
        is_kept_whole: bool = False,
        is_compacted: bool = False,
        is_compacted_often: bool = False,
    ) -> bool:
        """
        Create a topic unless it exists.

        Args:
            name: Its name.
            settings: The configuration, with the settings of new topics.
            is_kept_whole: Whether to keep all records of any size forever, in one
                partition.
            is_compacted: Whether to keep the newest record of each key, in one
                partition.
            is_compacted_often: Whether to compact the topic within minutes, because
                readers begin with the first record.

        Returns:
            Whether it was created.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        is_single = is_kept_whole or is_compacted or is_compacted_often
        retention_ms = settings.topics.retention_hours * _MS_PER_HOUR
        config = {"retention.ms": str(_FOREVER if is_single else retention_ms)}
        if is_kept_whole:
            # A dead letter has more headers than its record, whose size may be at the
            # limit of its topic.
            config["max.message.bytes"] = str(topics.LARGEST_RECORD_BYTES)
        if is_compacted or is_compacted_often:
            config["cleanup.policy"] = "compact"
        if is_compacted_often:
            config |= _COMPACTED_OFTEN
        topic = NewTopic(
            name,
            num_partitions=1 if is_single else settings.topics.partitions,
            replication_factor=settings.topics.replication_factor,
            config=config,
        )
        try:
            made = self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
            made[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise unavailable(error) from error
            return False
        return True

    def delete(self, names: Iterable[str]) -> dict[str, str]:
        """
        Delete topics, and wait until they no longer exist; safe to repeat.

        Returns:
            The topics that the broker does not delete, each with the reason.

        Raises:
            BrokerUnavailableError: The broker does not answer, or takes too long.
        """
        known = sorted(self._partitions().keys() & set(names))
        if not known:
            return {}
        futures = self._admin.delete_topics(known, request_timeout=REQUEST_TIMEOUT_S)
        kept: dict[str, str] = {}
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() in _KEPT_BY:
                    kept[name] = error.args[0].str()
                elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise unavailable(error) from error
        self._wait_deleted(set(known) - kept.keys())
        return kept

    def _wait_deleted(self, names: set[str]) -> None:
        deadline = Deadline(self._clock, REQUEST_TIMEOUT_S)
        while left := names & self._partitions().keys():
            if deadline.passed():
                message = f"Kafka: the topic {min(left)} still exists"
                raise BrokerUnavailableError(message)
            self._clock.wait(_CHECK_EVERY_S)

    def _partitions(self) -> dict[str, list[int]]:
        try:
            listed = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise unavailable(error) from error
        return {name: sorted(topic.partitions) for name, topic in listed.items()}

    def _offsets(
        self, names: Iterable[str], which: OffsetSpec
    ) -> dict[str, dict[str, int]]:
        present = partial(self._present_offsets, list(names), which)
        return _settled(present, self._clock, _SETTLED_WITHIN_S)

    def _present_offsets(
        self, names: list[str], which: OffsetSpec
    ) -> dict[str, dict[str, int]]:
        known = self._partitions()
        found: dict[str, dict[str, int]] = {n: {} for n in names if n in known}
        wanted = {
            TopicPartition(name, partition): which
            for name in found
            for partition in known[name]
        }
        if wanted:
            futures = self._admin.list_offsets(
                wanted, request_timeout=REQUEST_TIMEOUT_S
            )
            for at, future in futures.items():
                found[at.topic][str(at.partition)] = future.result().offset
        return found


class KafkaRelations:
    """
    The shapes of tables, read from the relations topic, each record once.

    Its calls must not overlap.
    """

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._prefix = prefix
        self._topic = topics.relations_topic(prefix)
        self._cluster = Topics(kafka)
        self._consumer = consumer(kafka, f"{prefix}.sinks")
        self._next_offsets: dict[int, int] = {}
        self._shapes: dict[str, RelationShape] = {}

    def known(self, topic: str) -> RelationShape | None:
        return self._shapes.get(topic)

    def shape(self, topic: str) -> RelationShape:
        if topic not in self._shapes:
            self.refresh()
        if topic not in self._shapes:
            message = f"the shape of the table behind {topic} is not announced yet"
            raise ShapeUnknownError(message)
        return self._shapes[topic]

    def refresh(self) -> None:
        ends = self._ends()
        if any(end < self._next_offsets.get(p, 0) for p, end in ends.items()):
            # The topic was recreated.
            self._next_offsets.clear()
        for message in records_to(
            ends, self._consumer, self._topic, self._next_offsets
        ):
            if (value := message.value()) is not None:
                self._take(value)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _ends(self) -> dict[int, int]:
        """Return the end offset of each partition."""
        if not self._next_offsets:
            ends = self._cluster.end_offsets([self._topic]).get(self._topic, {})
            return {int(partition): end for partition, end in ends.items()}
        partitions = [TopicPartition(self._topic, p) for p in self._next_offsets]
        return {p.partition: end_offset(self._consumer, p) for p in partitions}

    def _take(self, value: bytes) -> None:
        shape = parse_relation(value)
        name = topics.table_topic(self._prefix, shape.full_name)
        before = self._shapes.get(name)
        # A restarted relay repeats older announcements.
        if before is None or shape.position >= before.position:
            self._shapes[name] = shape


def end_offset(
    consumer: Consumer, partition: TopicPartition, clock: Clock | None = None
) -> int:
    """
    Return the offset of a partition's next record; retry while its leader changes.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    bounds = partial(consumer.get_watermark_offsets, partition, REQUEST_TIMEOUT_S)
    _, end = _settled(bounds, clock or SystemClock(), REQUEST_TIMEOUT_S)
    return end


def _settled(
    request: Callable[[], _Response], clock: Clock, within_s: float
) -> _Response:
    """
    Return the response to a request, which is repeated while a partition settles.

    Raises:
        BrokerUnavailableError: The broker does not answer, or no leader is elected in
            time.
    """
    deadline = Deadline(clock, within_s)
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _SETTLING or deadline.passed():
                raise unavailable(error) from error
        clock.wait(_CHECK_EVERY_S)


def records_to(
    ends: Mapping[int, int],
    consumer: Consumer,
    topic: str,
    next_offsets: dict[int, int],
) -> Iterator[Message]:
    """
    Yield a topic's records up to the end offsets, and advance the next offsets.

    Raises:
        BrokerUnavailableError: The topic could not be read to its end.
    """
    behind = {p for p, end in ends.items() if next_offsets.get(p, 0) < end}
    begins = ((p, next_offsets.get(p, OFFSET_BEGINNING)) for p in sorted(behind))
    if not behind:
        return
    consumer.assign([TopicPartition(topic, *begin) for begin in begins])
    try:
        while behind:
            message = consumer.poll(REQUEST_TIMEOUT_S)
            if message is None:
                text = f"{topic} could not be read to its end"
                raise BrokerUnavailableError(text)
            partition, offset = message.partition() or 0, message.offset() or 0
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
                behind.discard(partition)
                next_offsets[partition] = offset
                continue
            if error is not None:
                raise unavailable(KafkaException(error))
            next_offsets[partition] = offset + 1
            # The broker reports the end only after it has waited for further records.
            if offset + 1 >= ends[partition]:
                behind.discard(partition)
            yield message
    finally:
        # Otherwise the client would keep fetching. The broker answers a fetch without
        # records only after half a second, and the next request would wait for that.
        consumer.unassign()


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    """Return a record's headers; a header without a value has an empty one."""
    given = message.headers() or []
    pairs = given.items() if isinstance(given, dict) else given
    return [
        (name, value.encode() if isinstance(value, str) else value or b"")
        for name, value in pairs
    ]


def unavailable(error: KafkaException) -> BrokerUnavailableError:
    """Translate an error of the client."""
    return BrokerUnavailableError(f"Kafka: {error.args[0].str()}")
