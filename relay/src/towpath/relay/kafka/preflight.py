"""Checks of broker and topics; each finding has its reason and its remedy."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    ConfigResource,
    ResourceType,
)

from towpath.relay.errors import Finding, error_finding, warning_finding
from towpath.relay.kafka.client import REQUEST_TIMEOUT_S, make_client, relay_error
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import (
    captured_in,
    compacted_topics,
    streamed_topics,
)
from towpath.schemas import topics as names
from towpath.settings import Settings

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_MS_AN_HOUR: Final = 3_600_000
_UNBOUNDED: Final = -1


class TopicSettings(NamedTuple):
    """A topic's partitions, lowest replica count of a partition, and settings."""

    partition_count: int
    replica_count: int
    settings: Mapping[str, str] = _NOTHING

    def number(self, name: str) -> int | None:
        """Return a setting as a number; None if the broker does not report it."""
        text = self.settings.get(name)
        return None if text is None else int(text)


_NO_TOPICS: Final[Mapping[str, TopicSettings]] = MappingProxyType({})
_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class ClusterFacts(NamedTuple):
    """
    The brokers' facts.

    Attributes:
        broker_count: How many there are.
        broker: The settings of one of them.
        topics: The relay's topics that exist.
        marked: By topic, how many partitions it had when marks were last stored.
    """

    broker_count: int
    broker: Mapping[str, str] = _NOTHING
    topics: Mapping[str, TopicSettings] = _NO_TOPICS
    marked: Mapping[str, int] = _NO_COUNTS


def read_cluster(settings: Settings) -> ClusterFacts:
    """
    Read the facts from the brokers.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the request.
        StateLostError: The stored state cannot be parsed.
    """
    try:
        return _read(settings)
    except KafkaException as failure:
        raise relay_error(failure, "reading the brokers' settings") from failure


def kafka_findings(facts: ClusterFacts, settings: Settings) -> list[Finding]:
    """Return the dangers to delivery, order and delivered records. Pure."""
    prefix = settings.database.prefix
    tables = captured_in(facts.topics, settings)
    found = [*_cluster_findings(facts, settings)]
    for topic in compacted_topics(prefix):
        if topic in facts.topics:
            found += _compacted_findings(topic, facts.topics[topic])
    for topic in streamed_topics(prefix, tables):
        if topic in facts.topics:
            found += _streamed_findings(topic, facts.topics[topic], settings)
    found += _dead_findings(facts, prefix)
    for topic, each in sorted(facts.topics.items()):
        found += _any_findings(topic, each, facts)
    return found


def _read(settings: Settings) -> ClusterFacts:
    source, kafka = settings.database, settings.kafka
    admin = make_client(AdminClient, kafka)
    cluster = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    marked: dict[str, int] = {}
    if names.state_topic(source.prefix) in cluster.topics:
        state = StateTopic(kafka, source.prefix).read()
        marked = {topic: len(marks) for topic, marks in state.marks.items()}
    ours = {
        *compacted_topics(source.prefix),
        *streamed_topics(source.prefix, captured_in(cluster.topics, settings)),
        *marked,
    }
    known = {name: each for name, each in cluster.topics.items() if name in ours}
    broker_id = str(min(cluster.brokers))
    resources = [ConfigResource(ResourceType.BROKER, broker_id)]
    resources += [ConfigResource(ResourceType.TOPIC, name) for name in known]
    described = {
        (resource.restype, resource.name): {
            name: entry.value
            for name, entry in future.result().items()
            if entry.value is not None
        }
        for resource, future in admin.describe_configs(
            resources, request_timeout=REQUEST_TIMEOUT_S
        ).items()
    }
    return ClusterFacts(
        broker_count=len(cluster.brokers),
        broker=described[ResourceType.BROKER, broker_id],
        topics={
            name: TopicSettings(
                len(each.partitions),
                min((len(p.replicas) for p in each.partitions.values()), default=0),
                described[ResourceType.TOPIC, name],
            )
            for name, each in known.items()
        },
        marked=marked,
    )


def _cluster_findings(facts: ClusterFacts, settings: Settings) -> Iterator[Finding]:
    wanted = settings.topics.replication_factor
    if wanted > facts.broker_count:
        yield error_finding(
            f"[topics] replication_factor is {wanted} on {facts.broker_count} brokers",
            "no topic could be created",
            f"set replication_factor = {facts.broker_count}, or start more brokers",
        )
    elif wanted == 1 and facts.broker_count > 1:
        yield warning_finding(
            f"[topics] replication_factor is 1 on {facts.broker_count} brokers",
            "the loss of a broker loses acknowledged records",
            f"set replication_factor = {min(3, facts.broker_count)}",
        )
    if facts.broker.get("auto.create.topics.enable") == "true":
        yield warning_finding(
            "auto.create.topics.enable is true",
            "an early consumer creates topics with the broker's partition count",
            "set auto.create.topics.enable=false in the brokers' configuration and "
            "restart them",
        )
    if facts.broker.get("unclean.leader.election.enable") == "true":
        yield warning_finding(
            "unclean.leader.election.enable is true",
            "a leader that lacks acknowledged records may be elected",
            "kafka-configs.sh --alter --entity-type brokers --entity-default "
            "--add-config unclean.leader.election.enable=false",
        )


def _compacted_findings(topic: str, each: TopicSettings) -> Iterator[Finding]:
    if each.settings.get("cleanup.policy", "compact") != "compact":
        yield error_finding(
            f"topic {topic} has cleanup.policy {each.settings['cleanup.policy']}",
            "the relay needs its records for ever, but they would expire",
            _alter(topic, "cleanup.policy=compact"),
        )
    if each.partition_count != 1:
        yield error_finding(
            f"topic {topic} has {each.partition_count} partitions",
            "its records must have one order",
            f"delete the topic and run towpath relay state repair: {topic}",
        )


def _streamed_findings(
    topic: str, each: TopicSettings, settings: Settings
) -> Iterator[Finding]:
    wanted_ms = settings.topics.retention_hours * _MS_AN_HOUR
    retention_ms = each.number("retention.ms")
    if retention_ms is not None and _UNBOUNDED < retention_ms < wanted_ms:
        yield warning_finding(
            f"topic {topic} keeps records for {retention_ms // _MS_AN_HOUR} h, "
            f"[topics] says {settings.topics.retention_hours} h",
            "a sink that is stopped for longer misses changes",
            _alter(topic, f"retention.ms={wanted_ms}"),
        )
    bound = each.number("retention.bytes")
    if bound is not None and bound != _UNBOUNDED:
        yield warning_finding(
            f"topic {topic} keeps at most {bound} bytes of a partition",
            "a burst of traffic shortens the replay window",
            _alter(topic, "retention.bytes=-1"),
        )


def _dead_findings(facts: ClusterFacts, prefix: str) -> Iterator[Finding]:
    """Check that dead letters do not expire, and have room for whole rows."""
    dead = names.dead_letter_topic(prefix, "relay")
    retention_ms = (
        facts.topics[dead].number("retention.ms") if dead in facts.topics else None
    )
    if retention_ms is not None and retention_ms != _UNBOUNDED:
        yield error_finding(
            f"topic {dead} keeps records for {retention_ms // _MS_AN_HOUR} h",
            "after a restart, expired dead letters no longer park their aggregates",
            _alter(dead, "retention.ms=-1"),
        )
    limits = {
        topic: limit
        for topic, each in facts.topics.items()
        if (limit := each.number("max.message.bytes")) is not None
    }
    highest = max(limits.values(), default=0)
    if dead in limits and limits[dead] < highest:
        yield warning_finding(
            f"topic {dead} accepts {limits[dead]} bytes, other topics up to {highest}",
            "a large row that cannot be routed would be kept as a stub only",
            _alter(dead, f"max.message.bytes={highest}"),
        )


def _any_findings(
    topic: str, each: TopicSettings, facts: ClusterFacts
) -> Iterator[Finding]:
    needed = each.number("min.insync.replicas")
    if needed is not None and needed > each.replica_count:
        yield error_finding(
            f"topic {topic} has {each.replica_count} replicas, min.insync.replicas "
            f"is {needed}",
            "no record is ever acknowledged",
            _alter(topic, f"min.insync.replicas={each.replica_count}"),
        )
    limit = each.number("max.message.bytes")
    takes = int(facts.broker.get("message.max.bytes", 0))
    if limit is not None and limit < takes:
        yield warning_finding(
            f"topic {topic} accepts {limit} bytes, other topics of the broker {takes}",
            "larger rows become dead letters",
            _alter(topic, f"max.message.bytes={takes}"),
        )
    had = facts.marked.get(topic, each.partition_count)
    if had != each.partition_count:
        yield error_finding(
            f"topic {topic} has {each.partition_count} partitions, but had {had}",
            "records of a key could change their order, so the relay does not start",
            "stop the relay and run towpath relay state repair, which lets it use the "
            "added partitions from the next position on",
        )


def _alter(topic: str, setting: str) -> str:
    return (
        f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} "
        f"--add-config {setting}"
    )
