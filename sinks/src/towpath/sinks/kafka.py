"""
The one place of the sinks that speaks to Kafka beside Spark.

Reads the compacted relations topic, lists topics and end offsets, and sets records
aside in ``<prefix>.dead.<sink>``. librdkafka's errors become ours here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from towpath.schemas import headers, topics
from towpath.settings import Settings
from towpath.sinks.change import Origin, Record
from towpath.sinks.errors import BrokerUnavailableError, ShapeUnknownError
from towpath.sinks.relations import RelationShape, parse_relation

# Long enough for a broker that just elected a leader, short enough that a driver which
# is told to stop does stop while the broker is gone.
REQUEST_TIMEOUT_S: Final = 10.0

_MS_PER_HOUR: Final = 3_600_000

_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_log = structlog.get_logger("towpath.sinks.kafka")


class Topics:
    """What the cluster holds: topics, partitions, end offsets."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._admin = AdminClient(_connection(bootstrap_servers))

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
        known = self._partitions()
        ends: dict[str, dict[str, int]] = {n: {} for n in names if n in known}
        wanted = {
            TopicPartition(name, partition): _LATEST
            for name in ends
            for partition in known[name]
        }
        for place, end in self._list_offsets(wanted).items():
            ends[place.topic][str(place.partition)] = end
        return ends

    def create(self, name: str, settings: Settings) -> None:
        """
        Create a topic unless it is there.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        retention_ms = settings.topics.retention_hours * _MS_PER_HOUR
        topic = NewTopic(
            name,
            num_partitions=settings.topics.partitions,
            replication_factor=settings.topics.replication_factor,
            config={"retention.ms": str(retention_ms)},
        )
        try:
            asked = self._admin.create_topics(
                [topic], request_timeout=REQUEST_TIMEOUT_S
            )
            asked[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _unavailable(error) from error

    def _partitions(self) -> dict[str, list[int]]:
        try:
            listed = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise _unavailable(error) from error
        return {name: sorted(topic.partitions) for name, topic in listed.items()}

    def _list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        try:
            asked = self._admin.list_offsets(
                dict(wanted), request_timeout=REQUEST_TIMEOUT_S
            )
            return {place: answer.result().offset for place, answer in asked.items()}
        except KafkaException as error:
            raise _unavailable(error) from error


class KafkaRelations:
    """
    The shapes of tables, from the relations topic; reads on where it stopped.

    Belongs to one sink: its calls must not overlap.
    """

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self._prefix = prefix
        self._topic = topics.relations_topic(prefix)
        self._cluster = Topics(bootstrap_servers)
        self._consumer = Consumer(
            _connection(bootstrap_servers)
            | {
                # Never joined: partitions are assigned, offsets are kept here.
                "group.id": f"{prefix}.sinks",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        self._next_offsets: dict[int, int] = {}
        self._shapes: dict[str, RelationShape] = {}

    def shape(self, topic: str) -> RelationShape:
        if topic not in self._shapes:
            self.refresh()
        if topic not in self._shapes:
            message = f"the shape of the table behind {topic} is not announced yet"
            raise ShapeUnknownError(message)
        return self._shapes[topic]

    def refresh(self) -> None:
        ends = self._cluster.end_offsets([self._topic]).get(self._topic, {})
        behind = {
            int(partition)
            for partition, end in ends.items()
            if self._next_offsets.get(int(partition), 0) < end
        }
        if not behind:
            return
        self._consumer.assign(
            [
                TopicPartition(
                    self._topic, p, self._next_offsets.get(p, OFFSET_BEGINNING)
                )
                for p in sorted(behind)
            ]
        )
        while behind:
            message = self._consumer.poll(REQUEST_TIMEOUT_S)
            if message is None:
                text = f"{self._topic} could not be read to its end"
                raise BrokerUnavailableError(text)
            self._take(message, behind)

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def _take(self, message: Message, behind: set[int]) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        error, value = message.error(), message.value()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
            behind.discard(partition)
            self._next_offsets[partition] = offset
            return
        if error is not None:
            raise _unavailable(KafkaException(error))
        self._next_offsets[partition] = offset + 1
        if value is not None:
            shape = parse_relation(value)
            name = topics.table_topic(self._prefix, shape.schema, shape.table)
            self._shapes[name] = shape


class DeadLetters:
    """Records set aside, with their reason and where they came from."""

    def __init__(self, settings: Settings, sink: str) -> None:
        self._settings = settings
        self._topic = topics.dead_letter_topic(settings.database.prefix, sink)
        servers = settings.kafka.bootstrap_servers
        self._cluster = Topics(servers)
        self._producer = Producer(
            _connection(servers) | {"enable.idempotence": True, "acks": "all"}
        )
        self._exists = False
        self._failures: list[KafkaError] = []

    def put(self, records: Iterable[tuple[Record, str]]) -> int:
        """
        Set records aside, each with its reason; return when they are durable.

        Raises:
            BrokerUnavailableError: Not all of them are known to be durable.
        """
        count = 0
        aside: dict[tuple[str, str], list[Origin]] = defaultdict(list)
        self._failures.clear()
        for record, reason in records:
            if not self._exists:
                self._cluster.create(self._topic, self._settings)
                self._exists = True
            self._producer.produce(
                self._topic,
                key=record.key,
                value=record.value,
                headers=[*record.headers.items(), *_origin_headers(record, reason)],
                on_delivery=self._delivered,
            )
            self._producer.poll(0)
            count += 1
            aside[reason, record.origin.topic].append(record.origin)
        waiting = self._producer.flush(REQUEST_TIMEOUT_S)
        if waiting or self._failures:
            why = self._failures[0].str() if self._failures else "no answer in time"
            message = f"records could not be set aside in {self._topic}: {why}"
            raise BrokerUnavailableError(message)
        for (reason, topic), origins in aside.items():
            _log.warning(
                "records set aside",
                reason=reason,
                topic=topic,
                count=len(origins),
                first_partition=origins[0].partition,
                first_offset=origins[0].offset,
                dead_letters=self._topic,
            )
        return count

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failures.append(error)


def _origin_headers(record: Record, reason: str) -> list[tuple[str, bytes]]:
    topic, partition, offset = record.origin
    return [
        (name, str(value).encode())
        for name, value in (
            (headers.REASON, reason),
            (headers.SOURCE_TOPIC, topic),
            (headers.SOURCE_PARTITION, partition),
            (headers.SOURCE_OFFSET, offset),
            (headers.CONNECT_ERROR_TOPIC, topic),
            (headers.CONNECT_ERROR_PARTITION, partition),
            (headers.CONNECT_ERROR_OFFSET, offset),
            (headers.CONNECT_ERROR_MESSAGE, reason),
        )
    ]


def _connection(bootstrap_servers: str) -> dict[str, Any]:
    # librdkafka would write to stderr by itself; what matters is raised instead.
    return {"bootstrap.servers": bootstrap_servers, "log_level": 0}


def _unavailable(error: KafkaException) -> BrokerUnavailableError:
    return BrokerUnavailableError(f"Kafka: {error.args[0].str()}")
