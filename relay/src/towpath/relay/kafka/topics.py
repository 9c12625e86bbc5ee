"""
Topics: made by the relay, with the settings of ``[topics]``; existing ones are kept.

Many topics are looked at, and made, in one round of requests: what ``open`` has seen is
not asked about again by ``ensure``.

``streamed`` topics lose what is older than the retention; ``compacted`` ones keep the
newest record of each key for ever, and have one partition, so that they read in order.
"""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    NewTopic,
)

from towpath.relay.errors import BrokerUnavailableError, TopicRefusedError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    made,
    translated,
)
from towpath.relay.kafka.producer import MAX_BATCH_BYTES
from towpath.relay.kafka.reading import Place
from towpath.relay.kafka.tails import end_offsets
from towpath.relay.kafka.topic_facts import (
    DEFAULT_LIMIT_BYTES,
    TOPICS_AT_ONCE,
    Spreading,
    facts_of,
    in_requests,
)
from towpath.relay.ports import TopicFacts
from towpath.schemas import topics as names
from towpath.schemas.clock import Clock
from towpath.schemas.table_name import TableName
from towpath.settings import Kafka, Settings, Topics

_LOG = structlog.get_logger(__name__)

# The relay's dead letters tell which aggregates are parked: they are let go by people.
_FOR_EVER: Final = -1
# A broker makes at most ten thousand partitions in one request.
_PARTITIONS_AT_ONCE: Final = 5_000
_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


def compacted_topics(prefix: str) -> tuple[str, ...]:
    """Name the topics that keep the newest record per key."""
    return (
        names.relations_topic(prefix),
        names.state_topic(prefix),
        names.heartbeat_topic(prefix),
    )


def streamed_topics(prefix: str, tables: Iterable[str]) -> tuple[str, ...]:
    """Name the topics that exist from the beginning and are kept for a time."""
    return (
        names.dead_letter_topic(prefix, "relay"),
        names.notifications_topic(prefix),
        *(names.table_topic(prefix, TableName.parse(table)) for table in tables),
    )


def captured_in(topics: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Name the captured tables: what is named, and what expressions take of topics."""
    prefix = settings.database.prefix
    tables = (names.table_of(prefix, topic) for topic in topics)
    return settings.capture.chosen(table for table in tables if table is not None)


class KafkaTopics:
    """Makes topics and knows their limits."""

    def __init__(self, kafka: Kafka, settings: Topics, clock: Clock) -> None:
        self._clock = clock
        self._kafka = kafka
        self._settings = settings
        self._batch_bytes = MAX_BATCH_BYTES
        self._record_bytes = DEFAULT_LIMIT_BYTES
        self._admin = made(AdminClient, kafka)
        self._opened: Mapping[str, TopicFacts] = {}
        self._counts: dict[str, int] = {}

    @property
    def opened(self) -> Mapping[str, TopicFacts]:
        """The topics that ``open`` has looked at."""
        return self._opened

    @property
    def counts(self) -> Mapping[str, int]:
        """Among how many partitions each known topic's keys are spread, as of now."""
        return self._counts

    def open(
        self,
        prefix: str,
        tables: Iterable[str],
        had: Mapping[str, int] = _NO_COUNTS,
    ) -> Mapping[str, TopicFacts]:
        """
        Make what exists from the beginning, and look at what is there.

        Args:
            prefix: Of the topics.
            tables: The captured tables.
            had: The partition count of topics that had no record before they went.

        Returns:
            The facts of these topics and of those that earlier runs made.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
            BrokerRefusedError: Kafka refuses a topic.
        """
        streamed = streamed_topics(prefix, tables)
        compacted = compacted_topics(prefix)
        existing = self._partition_counts()
        self._create(
            self._compacted(name) for name in compacted if name not in existing
        )
        dead = names.dead_letter_topic(prefix, "relay")
        self._create(
            self._streamed(name, _FOR_EVER if name == dead else None, had.get(name))
            for name in streamed
            if name not in existing
        )
        facts = self._opened = self._facts_of([*streamed, *compacted])
        limits = [each.limit_bytes for each in facts.values()]
        self._batch_bytes = min(self._batch_bytes, *limits)
        self._record_bytes = max(self._record_bytes, *limits)
        return facts

    @property
    def batch_bytes(self) -> int:
        """What every topic known so far takes as a batch."""
        return self._batch_bytes

    @property
    def record_bytes(self) -> int:
        """What some topic takes as a record."""
        return self._record_bytes

    def ensure(self, topic: str) -> TopicFacts:
        """
        Return a topic's facts; it is made first if there is none.

        Raises:
            BrokerUnavailableError: Kafka does not answer; or the topic takes less, or
                more, than the producer was told, which a new producer will heed.
            BrokerRefusedError: Kafka refuses the topic.
        """
        known = self._opened.get(topic)
        if known is not None:
            return known
        if topic not in self._partition_counts(topic):
            self._create([self._streamed(topic)])
        facts = self._facts_of([topic])[topic]
        self._heed(topic, facts.limit_bytes)
        return facts

    def ends(self, topic: str, partition_count: int) -> Mapping[int, int]:
        """
        Return the end offset of each partition.

        A topic just made may take a moment until each has a leader that knows of it.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
        """
        places = [(topic, at) for at in range(partition_count)]
        ends = self.known_ends(places)
        return {partition: end for (_, partition), end in ends.items()}

    def known_ends(self, places: Collection[Place]) -> Mapping[Place, int]:
        """
        Return the end offsets of partitions of any topics, asked for at once.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
        """
        found: dict[Place, int] = {}
        left, spreading = list(places), Spreading(self._clock)
        while True:
            try:
                ends = end_offsets(self._kafka, left)
            except BrokerUnavailableError:
                if spreading.is_over(len(left)):
                    raise
            else:
                found |= {place: end for place, end in ends.items() if end >= 0}
                left = [place for place in left if place not in found]
                if not left:
                    return found
                if spreading.is_over(len(left)):
                    reason = f"partitions of {left[0][0]} have no leader yet"
                    raise BrokerUnavailableError(reason)
            spreading.wait()

    def _heed(self, topic: str, limit_bytes: int) -> None:
        if self._batch_bytes <= limit_bytes <= self._record_bytes:
            return
        self._batch_bytes = min(self._batch_bytes, limit_bytes)
        self._record_bytes = max(self._record_bytes, limit_bytes)
        reason = f"topic {topic} takes {limit_bytes} bytes: the producer must know"
        raise BrokerUnavailableError(reason)

    def make_again(self, prefix: str, counts: Mapping[str, int]) -> None:
        """
        Make topics that are gone with the partition counts that they had.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
            BrokerRefusedError: Kafka refuses a topic.
        """
        dead = names.dead_letter_topic(prefix, "relay")
        self._create(
            self._streamed(name, _FOR_EVER if name == dead else None, count)
            for name, count in counts.items()
        )

    def _streamed(
        self,
        name: str,
        retention_ms: int | None = None,
        partition_count: int | None = None,
    ) -> NewTopic:
        settings = self._settings
        if retention_ms is None:
            retention_ms = settings.retention_hours * 3_600_000
        return NewTopic(
            name,
            num_partitions=partition_count or settings.partitions,
            replication_factor=settings.replication_factor,
            config={"retention.ms": str(retention_ms)},
        )

    def _compacted(self, name: str) -> NewTopic:
        return NewTopic(
            name,
            num_partitions=1,
            replication_factor=self._settings.replication_factor,
            config={"cleanup.policy": "compact"},
        )

    def _create(self, wanted: Iterable[NewTopic]) -> None:
        # The client ends the process when it is given a name twice.
        once = {topic.topic: topic for topic in wanted}
        at_once = max(1, _PARTITIONS_AT_ONCE // self._settings.partitions)
        for new in in_requests(once.values(), min(TOPICS_AT_ONCE, at_once)):
            futures = self._admin.create_topics(new, request_timeout=REQUEST_TIMEOUT_S)
            for name, future in futures.items():
                self._await(name, future)

    def _await(self, name: str, future: "Future[None]") -> None:
        try:
            future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_EXCEPTION:
                reason = f"making topic {name}: {error.args[0].str()}"
                raise TopicRefusedError(reason) from error
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translated(error, f"making topic {name}") from error
        else:
            _LOG.info("topic made", topic=name)

    def _partition_counts(self, topic: str | None = None) -> dict[str, int]:
        try:
            cluster = self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise translated(error, "listing topics") from error
        return {
            name: len(each.partitions)
            for name, each in cluster.topics.items()
            if each.partitions
        }

    def _facts_of(self, wanted: list[str]) -> dict[str, TopicFacts]:
        facts = facts_of(self._admin, self._clock, wanted)
        self._counts |= {name: each.partition_count for name, each in facts.items()}
        return facts
