"""Checks of brokers and topics; each finding states its effect and its remedy."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    ConfigResource,
    ResourceType,
    TopicMetadata,
)

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import REQUEST_TIMEOUT_S, make_client, relay_error
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import (
    captured_in,
    compacted_topics,
    streamed_topics,
)
from towpath.schemas import topics as names
from towpath.schemas.findings import (
    CheckFinding,
    TopicFix,
    error_finding,
    warning_finding,
)
from towpath.settings import RouteKind, Settings

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_MS_PER_HOUR: Final = 3_600_000
_UNBOUNDED: Final = -1
# With two replicas, a minimum of two blocks writes while a broker restarts.
_PAIR: Final = 2
# Older brokers lack the idempotent producer's guarantees across restarts.
_OLDEST_PROTOCOL: Final = (2, 5)


class TopicSettings(NamedTuple):
    """
    A topic's partitions, and its settings.

    Attributes:
        partition_count: The number of partitions.
        replica_count: The lowest number of replicas of any partition.
        settings: The topic's settings.
        lagging: The number of partitions with an out-of-sync replica.
        leaderless: The number of partitions without a leader.
    """

    partition_count: int
    replica_count: int
    settings: Mapping[str, str] = _NOTHING
    lagging: int = 0
    leaderless: int = 0

    def number(self, name: str) -> int | None:
        """Return a setting as a number; None if the broker does not report it."""
        text = self.settings.get(name)
        return None if text is None else int(text)


_NO_TOPICS: Final[Mapping[str, TopicSettings]] = MappingProxyType({})
_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class ClusterFacts(NamedTuple):
    """
    The facts about the brokers and their topics.

    Attributes:
        broker_count: The number of brokers.
        broker: The settings of one broker.
        topics: The existing topics of the relay and of the sinks' routes.
        marked: How many partitions each topic had when its marks were last stored.
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


def kafka_findings(facts: ClusterFacts, settings: Settings) -> list[CheckFinding]:
    """Return the risks to delivery, ordering and delivered records. Does no I/O."""
    prefix = settings.database.prefix
    tables = captured_in(facts.topics, settings)
    found = [*_cluster_findings(facts, settings)]
    for topic in compacted_topics(prefix):
        if topic in facts.topics:
            found += _compacted_findings(topic, facts.topics[topic], prefix)
    for topic in streamed_topics(prefix, tables):
        if topic in facts.topics:
            found += _streamed_findings(topic, facts.topics[topic], settings)
    found += _dead_letter_findings(facts, prefix)
    found += _event_log_findings(facts, settings)
    for topic, each in sorted(facts.topics.items()):
        found += _any_findings(topic, each, facts)
    return found


def _sink_topics(settings: Settings) -> list[str]:
    """Return the topics that the sinks' routes read."""
    return [route.topic for sink in settings.sink for route in sink.route]


def _event_log_findings(
    facts: ClusterFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Check that the topics of event-log routes are not compacted."""
    routes = (route for sink in settings.sink for route in sink.route)
    logs = {route.topic for route in routes if route.kind is RouteKind.EVENT_LOG}
    for topic in sorted(logs & facts.topics.keys()):
        policy = facts.topics[topic].settings.get("cleanup.policy", "delete")
        if "compact" in policy:
            yield warning_finding(
                "topic-events-compacted",
                f"event topic {topic} has cleanup.policy {policy}",
                "older events of a key can be deleted before they are read",
                str(TopicFix(topic, "cleanup.policy", "delete")),
            )


def _read(settings: Settings) -> ClusterFacts:
    source, kafka = settings.database, settings.kafka
    admin = make_client(AdminClient, kafka)
    cluster = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    if not cluster.brokers:
        # A broker that is late with its heartbeats is fenced, but still answers.
        message = "reading the brokers' settings: Kafka lists no broker"
        raise BrokerUnavailableError(message)
    marked: dict[str, int] = {}
    if names.state_topic(source.prefix) in cluster.topics:
        with TopicReader(kafka) as reader:
            state = StateTopic(kafka, source.prefix).read(reader)
        marked = {topic: len(marks) for topic, marks in state.marks.items()}
    ours = {
        *compacted_topics(source.prefix),
        *streamed_topics(source.prefix, captured_in(cluster.topics, settings)),
        *marked,
    }
    wanted = ours.union(_sink_topics(settings))
    known = {name: each for name, each in cluster.topics.items() if name in wanted}
    broker_id = str(min(cluster.brokers))
    resources = [ConfigResource(ResourceType.BROKER, broker_id)]
    resources += [ConfigResource(ResourceType.TOPIC, name) for name in known]
    described = _described(admin, resources, known.keys() - ours)
    return ClusterFacts(
        broker_count=len(cluster.brokers),
        broker=described[ResourceType.BROKER, broker_id],
        topics={
            name: _topic_settings(each, described[ResourceType.TOPIC, name])
            for name, each in known.items()
            if (ResourceType.TOPIC, name) in described
        },
        marked=marked,
    )


def _described(
    admin: AdminClient, resources: list[ConfigResource], foreign: AbstractSet[str]
) -> dict[tuple[ResourceType, str], dict[str, str]]:
    """Return resources' settings, except those of foreign topics that Kafka hides."""
    found = {}
    requested = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    for resource, future in requested.items():
        try:
            entries = future.result()
        except KafkaException as refused:
            code = refused.args[0].code()
            is_hidden = code == KafkaError.TOPIC_AUTHORIZATION_FAILED
            if is_hidden and resource.name in foreign:
                continue
            raise
        found[resource.restype, resource.name] = {
            name: entry.value
            for name, entry in entries.items()
            if entry.value is not None
        }
    return found


def _topic_settings(topic: TopicMetadata, settings: Mapping[str, str]) -> TopicSettings:
    partitions = topic.partitions.values()
    return TopicSettings(
        partition_count=len(partitions),
        replica_count=min((len(each.replicas) for each in partitions), default=0),
        settings=settings,
        lagging=sum(len(each.isrs) < len(each.replicas) for each in partitions),
        leaderless=sum(each.leader < 0 for each in partitions),
    )


def _version_findings(facts: ClusterFacts) -> Iterator[CheckFinding]:
    text = facts.broker.get("inter.broker.protocol.version", "")
    parts = text.partition("-")[0].split(".")[:2]
    if all(part.isdigit() for part in parts) and len(parts) == len(_OLDEST_PROTOCOL):
        version = tuple(map(int, parts))
        if version < _OLDEST_PROTOCOL:
            yield error_finding(
                "kafka-version",
                f"inter.broker.protocol.version is {text}",
                "a restarted producer can lose the order of records",
                "upgrade the brokers, then set inter.broker.protocol.version to 2.5 or "
                "later",
            )


def _cluster_findings(
    facts: ClusterFacts, settings: Settings
) -> Iterator[CheckFinding]:
    yield from _version_findings(facts)
    wanted = settings.topics.replication_factor
    if wanted > facts.broker_count:
        yield error_finding(
            "kafka-replication-impossible",
            f"[topics] replication_factor is {wanted} on {facts.broker_count} brokers",
            "no topic can be created",
            f"set replication_factor = {facts.broker_count}, or start more brokers",
        )
    elif wanted == 1 and facts.broker_count > 1:
        yield warning_finding(
            "kafka-replication-single",
            f"[topics] replication_factor is 1 on {facts.broker_count} brokers",
            "losing one broker loses acknowledged records",
            f"set replication_factor = {min(3, facts.broker_count)}",
        )
    if facts.broker.get("auto.create.topics.enable") == "true":
        yield warning_finding(
            "kafka-auto-create",
            "auto.create.topics.enable is true",
            "a consumer that starts first creates topics with the brokers' default "
            "partition count",
            "set auto.create.topics.enable=false in the brokers' configuration and "
            "restart them",
        )
    if facts.broker.get("unclean.leader.election.enable") == "true":
        yield warning_finding(
            "kafka-unclean-election",
            "unclean.leader.election.enable is true",
            "a leader that lacks acknowledged records may be elected",
            "kafka-configs.sh --bootstrap-server HOST:PORT --alter "
            "--entity-type brokers --entity-default "
            "--add-config unclean.leader.election.enable=false",
        )


def _compacted_findings(
    topic: str, each: TopicSettings, prefix: str
) -> Iterator[CheckFinding]:
    if each.settings.get("cleanup.policy", "compact") != "compact":
        yield error_finding(
            "topic-not-compacted",
            f"topic {topic} has cleanup.policy {each.settings['cleanup.policy']}",
            "the relay needs its records forever, but they would expire",
            TopicFix(topic, "cleanup.policy", "compact"),
        )
    if each.partition_count != 1:
        yield error_finding(
            "topic-state-partitions",
            f"topic {topic} has {each.partition_count} partitions",
            "its records need a total order, which only a single partition keeps",
            f"stop the relay, delete the topic {topic}{_after_deletion(topic, prefix)}",
        )


def _after_deletion(topic: str, prefix: str) -> str:
    """Return the end of the remedy that recreates a compacted topic."""
    if topic == names.state_topic(prefix):
        return " and run towpath relay state repair"
    # A repair finds nothing wrong with a state that does not contain the topic.
    if topic == names.relations_topic(prefix):
        return (
            ", start the relay again and run towpath snapshot start: a table is "
            "announced with its next change, or with its rows in a snapshot"
        )
    return " and start the relay again"


def _streamed_findings(
    topic: str, each: TopicSettings, settings: Settings
) -> Iterator[CheckFinding]:
    wanted_ms = settings.topics.retention_hours * _MS_PER_HOUR
    retention_ms = each.number("retention.ms")
    if retention_ms is not None and _UNBOUNDED < retention_ms < wanted_ms:
        yield warning_finding(
            "topic-retention-time",
            f"topic {topic} keeps records for {_hours(retention_ms)} h, "
            f"but [topics] requires {settings.topics.retention_hours} h",
            "a sink that is stopped for longer misses changes",
            TopicFix(topic, "retention.ms", str(wanted_ms)),
        )
    bound = each.number("retention.bytes")
    if bound is not None and bound != _UNBOUNDED:
        yield warning_finding(
            "topic-retention-bytes",
            f"topic {topic} keeps at most {bound} bytes per partition",
            "a burst of traffic shortens the replay window",
            TopicFix(topic, "retention.bytes", "-1"),
        )


def _hours(duration_ms: int) -> str:
    return f"{duration_ms / _MS_PER_HOUR:g}"


def _dead_letter_findings(facts: ClusterFacts, prefix: str) -> Iterator[CheckFinding]:
    """Check that dead letters do not expire, and that whole rows fit into them."""
    dead = names.dead_letter_topic(prefix, "relay")
    retention_ms = (
        facts.topics[dead].number("retention.ms") if dead in facts.topics else None
    )
    if retention_ms is not None and retention_ms != _UNBOUNDED:
        yield error_finding(
            "topic-dead-letters-expire",
            f"topic {dead} keeps records for {_hours(retention_ms)} h",
            "after a restart, expired dead letters no longer park their aggregates",
            TopicFix(dead, "retention.ms", "-1"),
        )
    limits = {
        topic: limit
        for topic, each in facts.topics.items()
        if (limit := each.number("max.message.bytes")) is not None
    }
    highest = max(limits.values(), default=0)
    if dead in limits and limits[dead] < highest:
        yield warning_finding(
            "topic-dead-letters-size",
            f"topic {dead} accepts {limits[dead]} bytes, but other topics up to "
            f"{highest}",
            "a large row that cannot be routed would be kept only as a stub",
            TopicFix(dead, "max.message.bytes", str(highest)),
        )


def _replica_findings(topic: str, each: TopicSettings) -> Iterator[CheckFinding]:
    """Check that a topic's records survive the loss of a broker."""
    if each.leaderless:
        yield error_finding(
            "topic-leaderless",
            f"topic {topic} has {each.leaderless} partitions without a leader",
            "their records can be neither written nor read",
            "start the brokers that this command lists: kafka-topics.sh "
            "--bootstrap-server HOST:PORT --describe --unavailable-partitions "
            f"--topic {topic}",
        )
    if each.lagging:
        yield warning_finding(
            "topic-under-replicated",
            f"topic {topic} has {each.lagging} partitions with an out-of-sync replica",
            "losing one more broker loses records or blocks writes",
            "start the brokers that this command lists under Replicas but not under "
            "Isr: kafka-topics.sh --bootstrap-server HOST:PORT --describe "
            f"--under-replicated-partitions --topic {topic}",
        )
    needed = each.number("min.insync.replicas")
    if needed == 1 and each.replica_count > _PAIR:
        yield warning_finding(
            "topic-min-insync-low",
            f"topic {topic} has {each.replica_count} replicas, but min.insync.replicas "
            "is 1",
            "a record that only one broker holds is confirmed to the source",
            TopicFix(topic, "min.insync.replicas", str(each.replica_count - 1)),
        )


def _any_findings(
    topic: str, each: TopicSettings, facts: ClusterFacts
) -> Iterator[CheckFinding]:
    yield from _replica_findings(topic, each)
    needed = each.number("min.insync.replicas")
    if needed is not None and needed > each.replica_count:
        # One replica may be missing while its broker restarts.
        spared = max(1, each.replica_count - 1)
        yield error_finding(
            "topic-min-insync",
            f"topic {topic} has {each.replica_count} replicas, but min.insync.replicas "
            f"is {needed}",
            "no record is ever acknowledged",
            str(TopicFix(topic, "min.insync.replicas", str(spared))),
        )
    limit = each.number("max.message.bytes")
    default = int(facts.broker.get("message.max.bytes", 0))
    if limit is not None and limit < default:
        yield warning_finding(
            "topic-message-bytes",
            f"topic {topic} accepts {limit} bytes, but the broker's default is "
            f"{default}",
            "larger rows become dead letters",
            TopicFix(topic, "max.message.bytes", str(default)),
        )
    had = facts.marked.get(topic, each.partition_count)
    if had != each.partition_count:
        yield error_finding(
            "topic-partitions-changed",
            f"topic {topic} has {each.partition_count} partitions, but had {had}",
            "records of a key could change their order, so the relay does not start",
            "stop the relay and run towpath relay state repair, which lets the relay "
            "use the current partitions from the next position on",
        )
