"""
Creates topics with the settings of ``[topics]``; existing topics keep theirs.

One request describes or creates many topics; ``ensure`` sends none for a topic that
``open`` has read. A new topic is unknown to some brokers for a moment: only unknown
ones are requested again, with growing delays.

``streamed`` topics lose records that are older than the retention, except the relay's
dead letters. ``compacted`` topics keep the newest record of each key, and have one
partition, which gives them a total order.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from types import MappingProxyType
from typing import Final, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from towpath.relay.errors import BrokerUnavailableError, TopicRefusedError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    PartitionId,
    end_offsets,
    make_client,
    relay_error,
)
from towpath.relay.kafka.producer import MAX_BATCH_BYTES
from towpath.relay.ports import TopicFacts
from towpath.schemas import topics as names
from towpath.schemas.clock import Backoff, Clock, StallTimeout
from towpath.schemas.findings import TopicFix
from towpath.schemas.table_name import TableName
from towpath.settings import Kafka, Settings, Topics

_LIMIT: Final = "max.message.bytes"
_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
# The limit of a topic for which the broker reports none: Kafka's default.
DEFAULT_LIMIT_BYTES: Final = 1_048_588
# Topics per request: the response is then a few hundred kilobytes.
TOPICS_AT_ONCE: Final = 500
# A new topic is known to every broker within tens of milliseconds.
_FIRST_DELAY_S: Final = 0.02
# Thousands of topics take seconds: more frequent requests would only add load.
_MAX_DELAY_S: Final = 0.5
_Item = TypeVar("_Item")


class MetadataPropagation:
    """Waits until requests find all new topics; gives up once no more are found."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stall = StallTimeout(clock, REQUEST_TIMEOUT_S)
        self._backoff = Backoff(first_s=_FIRST_DELAY_S, ceiling_s=_MAX_DELAY_S)
        self._attempt = 0

    def is_over(self, left: int) -> bool:
        """Return whether too long has passed since the count of unknown topics fell."""
        return self._stall.is_over(left)

    def wait(self) -> None:
        """Wait before the next request."""
        self._clock.wait(self._backoff.delay_s(self._attempt))
        self._attempt += 1


def facts_of(
    admin: AdminClient, clock: Clock, wanted: list[str]
) -> dict[str, TopicFacts]:
    """
    Return facts about topics; repeat the request until it finds the new ones too.

    Raises:
        BrokerUnavailableError: Kafka does not answer, or does not know a topic.
        BrokerRefusedError: Kafka refuses the request.
    """
    facts: dict[str, TopicFacts] = {}
    left, propagation = wanted, MetadataPropagation(clock)
    while True:
        facts |= _described(admin, left)
        left = [name for name in wanted if name not in facts]
        if not left:
            return facts
        if propagation.is_over(len(left)):
            reason = f"reading topic settings: {left[0]} is not known yet"
            raise BrokerUnavailableError(reason)
        propagation.wait()


def _described(admin: AdminClient, wanted: list[str]) -> dict[str, TopicFacts]:
    """Return facts about those topics that the brokers already know."""
    facts = {}
    for some in in_requests(wanted):
        counts = _counts_of(admin, some)
        if not counts:
            continue
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in counts]
        futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        for resource, future in futures.items():
            found = _known_facts(future)
            if found is None:
                continue
            limit, policy = found.get(_LIMIT), found.get(_POLICY)
            facts[resource.name] = TopicFacts(
                int(limit.value) if limit else DEFAULT_LIMIT_BYTES,
                counts[resource.name],
                policy is not None and _COMPACT in policy.value,
            )
    return facts


def _counts_of(admin: AdminClient, wanted: list[str]) -> dict[str, int]:
    """Return the partition counts of those topics that the brokers know."""
    futures = admin.describe_topics(
        TopicCollection(wanted), request_timeout=REQUEST_TIMEOUT_S
    )
    described = {name: _known_facts(future) for name, future in futures.items()}
    return {
        name: len(each.partitions)
        for name, each in described.items()
        if each is not None and each.partitions
    }


def _known_facts(future: "Future[_Item]") -> _Item | None:
    """
    Return the result for a topic; None if the broker does not know it yet.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the request.
    """
    try:
        return future.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise relay_error(error, "reading topic settings") from error
        return None


def in_requests(
    items: Iterable[_Item], at_once: int = TOPICS_AT_ONCE
) -> Iterator[list[_Item]]:
    """Divide items into lists, one for each request."""
    left = iter(items)
    while some := list(islice(left, at_once)):
        yield some


_LOG = structlog.get_logger(__name__)

# The dead letters record which aggregates are parked, until an operator releases them.
_UNLIMITED: Final = -1
# A broker creates at most ten thousand partitions in one request.
_PARTITIONS_AT_ONCE: Final = 5_000
_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


def compacted_topics(prefix: str) -> tuple[str, ...]:
    """Return the topics that keep the newest record per key."""
    return (
        names.relations_topic(prefix),
        names.state_topic(prefix),
        names.heartbeat_topic(prefix),
    )


def streamed_topics(prefix: str, tables: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that are needed from the start and are not compacted."""
    return (
        names.dead_letter_topic(prefix, "relay"),
        names.notifications_topic(prefix),
        *(names.table_topic(prefix, TableName.parse(table)) for table in tables),
    )


def captured_in(topics: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Return the tables named in the settings, then captured ones that have a topic."""
    prefix = settings.database.prefix
    tables = (names.table_of(prefix, topic) for topic in topics)
    return settings.capture.chosen(table for table in tables if table is not None)


class KafkaTopics:
    """Creates topics and remembers their size limits."""

    def __init__(self, kafka: Kafka, settings: Topics, clock: Clock) -> None:
        self._clock = clock
        self._kafka = kafka
        self._settings = settings
        self._batch_bytes = MAX_BATCH_BYTES
        self._record_bytes = DEFAULT_LIMIT_BYTES
        self._admin = make_client(AdminClient, kafka)
        self._opened: Mapping[str, TopicFacts] = {}
        self._counts: dict[str, int] = {}

    @property
    def opened(self) -> Mapping[str, TopicFacts]:
        """The facts that ``open`` has read, by topic."""
        return self._opened

    @property
    def counts(self) -> Mapping[str, int]:
        """The partition counts of known topics; later topics are added in place."""
        return self._counts

    def open(
        self,
        prefix: str,
        tables: Iterable[str],
        had: Mapping[str, int] = _NO_COUNTS,
    ) -> Mapping[str, TopicFacts]:
        """
        Create the topics that are needed from the start, and read facts about them.

        Args:
            prefix: The topics' prefix.
            tables: The captured tables.
            had: The partition counts that deleted topics without records had.

        Returns:
            Facts about these topics, whether new or created by earlier runs.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
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
            self._streamed(name, _UNLIMITED if name == dead else None, had.get(name))
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
        """The largest batch that every known topic accepts."""
        return self._batch_bytes

    @property
    def record_bytes(self) -> int:
        """The largest record that any known topic accepts."""
        return self._record_bytes

    def ensure(self, topic: str) -> TopicFacts:
        """
        Return a topic's facts; create a missing topic.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached; or the topic's limit needs
                a different producer configuration, which the next session will use.
            BrokerRefusedError: Kafka refuses the topic.
        """
        known = self._opened.get(topic)
        if known is not None:
            return known
        if topic not in self._partition_counts(topic):
            self._create([self._streamed(topic)])
        facts = self._facts_of([topic])[topic]
        self._check_limit(topic, facts.limit_bytes)
        return facts

    def ends(self, topic: str, partition_count: int) -> Mapping[int, int]:
        """
        Return the end offset of each partition.

        It may take a moment until each partition of a new topic has a leader.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            BrokerRefusedError: Kafka refuses the request.
        """
        places = [(topic, at) for at in range(partition_count)]
        ends = self.known_ends(places)
        return {partition: end for (_, partition), end in ends.items()}

    def known_ends(self, places: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        """
        Return the end offsets of partitions of any topics, requested together.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            BrokerRefusedError: Kafka refuses the request.
        """
        found: dict[PartitionId, int] = {}
        left, propagation = list(places), MetadataPropagation(self._clock)
        while True:
            try:
                ends = end_offsets(self._kafka, left)
            except BrokerUnavailableError:
                if propagation.is_over(len(left)):
                    raise
            else:
                found |= {place: end for place, end in ends.items() if end >= 0}
                left = [place for place in left if place not in found]
                if not left:
                    return found
                if propagation.is_over(len(left)):
                    reason = f"partitions of {left[0][0]} are not known to Kafka yet"
                    raise BrokerUnavailableError(reason)
            propagation.wait()

    def _check_limit(self, topic: str, limit_bytes: int) -> None:
        if self._batch_bytes <= limit_bytes <= self._record_bytes:
            return
        self._batch_bytes = min(self._batch_bytes, limit_bytes)
        self._record_bytes = max(self._record_bytes, limit_bytes)
        reason = (
            f"topic {topic} accepts records of at most {limit_bytes} bytes: the "
            "producer must be recreated"
        )
        raise BrokerUnavailableError(reason)

    def recreate(self, prefix: str, counts: Mapping[str, int]) -> None:
        """
        Recreate deleted topics with their former partition counts.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            BrokerRefusedError: Kafka refuses a topic.
        """
        dead = names.dead_letter_topic(prefix, "relay")
        self._create(
            self._streamed(name, _UNLIMITED if name == dead else None, count)
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
        # The client aborts the process if a request names a topic twice.
        once = {topic.topic: topic for topic in wanted}
        # A recreated topic has as many partitions as before.
        widest = max((topic.num_partitions for topic in once.values()), default=1)
        at_once = max(1, _PARTITIONS_AT_ONCE // widest)
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
                reason = f"creating topic {name}: {error.args[0].str()}"
                raise TopicRefusedError(reason) from error
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise relay_error(error, f"creating topic {name}") from error
        else:
            _LOG.info("topic created", topic=name)

    def _partition_counts(self, topic: str | None = None) -> dict[str, int]:
        try:
            cluster = self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise relay_error(error, "listing topics") from error
        return {
            name: len(each.partitions)
            for name, each in cluster.topics.items()
            if each.partitions
        }

    def _facts_of(self, wanted: list[str]) -> dict[str, TopicFacts]:
        facts = facts_of(self._admin, self._clock, wanted)
        self._counts |= {name: each.partition_count for name, each in facts.items()}
        return facts


def alter_topic(kafka: Kafka, change: TopicFix) -> None:
    """
    Change one setting of a topic; its other settings remain.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the change.
    """
    entry = ConfigEntry(
        change.name,
        change.value,
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(
        ResourceType.TOPIC, change.topic, incremental_configs=[entry]
    )
    admin = make_client(AdminClient, kafka)
    try:
        requested = admin.incremental_alter_configs(
            [resource], request_timeout=REQUEST_TIMEOUT_S
        )
        for future in requested.values():
            future.result()
    except KafkaException as failure:
        raise relay_error(failure, f"altering the topic {change.topic}") from failure
