"""
The broker: topics with append times, their end offsets, and their records.

``LogAppendTime`` is the broker's default while systems that write to it are compared,
because the relay creates its topics itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from towpath.loadtests.bench.figures import ArrivedEvent, digest
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Clock, Deadline

PARTITIONS: Final = 6
_TIMEOUT_S: Final = 10.0
_READ_WITHIN_S: Final = 120.0
_MESSAGES_AT_ONCE: Final = 10_000
_EVENT_ID: Final = "id"
# Errors for a topic that does not exist, or is not yet known to its broker.
_UNKNOWN_TOPIC_ERRORS: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the client's own name for it
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
)
_POLL_INTERVAL_S: Final = 0.1
# Small requests, as of a relay under a steady load: one for each partition.
_WARM_UP_TOPIC: Final = "bench_warm_up"
_WARM_UP_RECORDS: Final = 200
_WARM_UP_VALUE: Final = b"x" * 200


class Broker:
    """The broker of a benchmark."""

    def __init__(self, bootstrap: str, clock: Clock) -> None:
        self._bootstrap = bootstrap
        self._clock = clock
        # The client's errors are raised or retried here, not logged.
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def use_log_append_time(self) -> None:
        """Make the broker set append times on the records of every new topic."""
        entry = ConfigEntry(
            "log.message.timestamp.type",
            "LogAppendTime",
            incremental_operation=AlterConfigOpType.SET,
        )
        (broker,) = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
        resource = ConfigResource(
            ResourceType.BROKER, str(broker), incremental_configs=[entry]
        )
        _await(self._admin.incremental_alter_configs([resource]))

    def make_topic(self, topic: str) -> None:
        """Create a missing topic for a system that does not create topics itself."""
        if not self.ends(topic):
            wanted = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)
            _await(self._admin.create_topics([wanted]))

    def warm_up(self, duration_s: float) -> int:
        """
        Write records for a time, so that Java compiles the broker's code.

        The first system would otherwise be measured with a slower broker.

        Returns:
            The number of records that the broker acknowledged.
        """
        self.make_topic(_WARM_UP_TOPIC)
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        deadline, written = Deadline(self._clock, duration_s), 0
        while not deadline.passed():
            for number in range(_WARM_UP_RECORDS):
                producer.produce(_WARM_UP_TOPIC, _WARM_UP_VALUE, key=str(number))
            written += _WARM_UP_RECORDS - producer.flush(_TIMEOUT_S)
        self.delete_topics(_WARM_UP_TOPIC)
        return written

    def delete_topics(self, run: str) -> None:
        """Delete every topic whose name contains the run's name."""
        names = [
            t for t in self._admin.list_topics(timeout=_TIMEOUT_S).topics if run in t
        ]
        if names:
            _await(self._admin.delete_topics(names, request_timeout=_TIMEOUT_S))

    def ends(self, topic: str) -> dict[int, int]:
        """Return each partition's end offset; empty while there is no topic."""
        try:
            found = self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # client's
            requested = {TopicPartition(topic, p): newest for p in found.partitions}
            futures = self._admin.list_offsets(requested) if requested else {}
            return {
                p.partition: f.result(_TIMEOUT_S).offset for p, f in futures.items()
            }
        except KafkaException as error:
            if error.args[0].code() in _UNKNOWN_TOPIC_ERRORS:
                return {}
            message = f"the end of {topic} cannot be read: {error}"
            raise BenchError(message) from error

    def read(self, topic: str) -> list[ArrivedEvent]:
        """
        Return a topic's records up to its current end, by partition and offset.

        Raises:
            BenchError: The topic could not be read in time.
        """
        return sorted(_arrival(record) for record in self.records(topic))

    def records(self, topic: str) -> Iterator[Any]:
        """
        Yield a topic's records as the client's own objects.

        The records of each partition are in offset order; partitions are interleaved.

        Raises:
            BenchError: The topic could not be read in time.
        """
        ends = self._certain_ends(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": topic,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, p, 0) for p in ends])
            yield from self._until_ends(consumer, topic, ends)
        finally:
            consumer.close()

    def _certain_ends(self, topic: str) -> dict[int, int]:
        """Wait until a topic is known; return its non-empty partitions' end offsets."""
        deadline = Deadline(self._clock, _TIMEOUT_S)
        while not (found := self.ends(topic)):
            if deadline.passed():
                message = f"the broker does not know {topic}"
                raise BenchError(message)
            self._clock.wait(_POLL_INTERVAL_S)
        return {partition: end for partition, end in found.items() if end}

    def _until_ends(
        self, consumer: Consumer, topic: str, ends: Mapping[int, int]
    ) -> Iterator[Any]:
        left = dict(ends)
        deadline = Deadline(self._clock, _READ_WITHIN_S)
        while left:
            if deadline.passed():
                message = f"no more of {topic} was read for {_READ_WITHIN_S:.0f} s"
                raise BenchError(message)
            found: list[Any] = consumer.consume(_MESSAGES_AT_ONCE, 1.0)
            if found:
                deadline = Deadline(self._clock, _READ_WITHIN_S)
            for record in found:
                if record.error() is not None:
                    continue
                yield record
                partition = record.partition()
                if record.offset() + 1 >= left.get(partition, 0):
                    left.pop(partition, None)


def _arrival(record: Any) -> ArrivedEvent:  # noqa: ANN401 - the client's object
    headers = dict(record.headers() or ())
    event_id = headers.get(_EVENT_ID) or b""
    return ArrivedEvent(
        record.partition(),
        record.offset(),
        # With some converters, Debezium's identifiers are JSON strings.
        event_id.strip(b'"'),
        record.key() or b"",
        digest(record.value()),
        record.timestamp()[1],
        len(headers),
    )


def _await(futures: Mapping[Any, Any]) -> None:
    for what, future in futures.items():
        try:
            future.result(_TIMEOUT_S)
        except KafkaException as error:
            message = f"a request for {what} failed: {error}"
            raise BenchError(message) from error
