"""
Lists the rights on topics and groups that the user of ``[kafka.client]`` lacks.

Rights on transactional ids are not checked. Nothing is written: the broker reports the
operations that it allows on a topic, and validates the creation of a topic without
creating it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
    AclOperation,
    AdminClient,
    NewTopic,
)

from towpath.schemas import topics
from towpath.settings import Kafka, Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import REQUEST_TIMEOUT_S, unavailable

_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
# Errors that do not concern rights: for example, the topic or group does not exist.
_UNRELATED_ERRORS: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_ALREADY_EXISTS,
        KafkaError.GROUP_ID_NOT_FOUND,
        # The broker checks rights before it looks for the group's coordinator.
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
    }
)
# The client looks for the coordinator of a group until the request times out: that
# broker may be down, which other checks report.
_NO_COORDINATOR: Final = frozenset({KafkaError._TIMED_OUT})  # noqa: SLF001 - public name
_NONE: Final[AbstractSet[int]] = frozenset()


class Rights(NamedTuple):
    """
    The rights that a user needs.

    Attributes:
        operations: The operations on each topic.
        created_topics: Topics that the user creates unless they exist.
        groups: Consumer groups that the user describes.
    """

    operations: Mapping[str, AbstractSet[AclOperation]]
    created_topics: Sequence[str]
    groups: Sequence[str]


def rights_of(settings: Settings, sink: Sink) -> Rights:
    """
    Return the rights that a sink needs on topics and groups.

    Topics that only a route ending in ``*`` reads are left out: they may appear later.
    """
    prefix = settings.database.prefix
    dead = topics.dead_letter_topic(prefix, sink.name)
    reads = {*Routes(sink).exact, dead, topics.relations_topic(prefix)}
    wanted = {key: {AclOperation.READ} for key in reads}
    wanted[dead] = {AclOperation.READ, AclOperation.WRITE}
    if settings.signal_topic:
        wanted[settings.signal_topic] = {AclOperation.WRITE}
    progress = topics.progress_topic(prefix)
    wanted[progress] = {AclOperation.READ, AclOperation.WRITE}
    created_topics = [dead, progress]
    if settings.sinks.state_copies:
        copies = topics.sink_state_topic(prefix, sink.name)
        wanted[copies] = {AclOperation.READ, AclOperation.WRITE}
        created_topics.append(copies)
    groups = (f"{prefix}.sinks", client.SINKS_GROUP, f"towpath-{sink.name}")
    return Rights(wanted, created_topics, groups)


def missing_rights(kafka: Kafka, wanted: Rights) -> Iterator[str]:
    """
    Yield a sentence for each operation that the user is denied.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    admin = client.admin(kafka)
    try:
        lacking = _lacking(admin, wanted.operations)
        lacking["create"] += _not_creatable(admin, wanted.created_topics)
        futures = admin.describe_consumer_groups(
            list(wanted.groups), request_timeout=REQUEST_TIMEOUT_S
        )
        unseen = [
            name for name, each in futures.items() if _refused(each, _NO_COORDINATOR)
        ]
    except KafkaException as error:
        raise unavailable(error) from error
    for operation, names in sorted(lacking.items()):
        if names:
            yield f"the user of kafka.client may not {operation} {_listed(names)}"
    if unseen:
        yield f"the user of kafka.client may not describe groups {_listed(unseen)}"


def _lacking(
    admin: AdminClient, wanted: Mapping[str, AbstractSet[AclOperation]]
) -> dict[str, list[str]]:
    """Return the topics by missing operation; those that do not exist are left out."""
    futures = admin.describe_topics(
        TopicCollection(list(wanted)),
        include_authorized_operations=True,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    lacking: dict[str, list[str]] = defaultdict(list)
    for name, future in futures.items():
        for operation in _missing(future, wanted[name]):
            lacking[operation.name.lower()].append(name)
    return lacking


def _missing(
    future: Future[Any], wanted: AbstractSet[AclOperation]
) -> Iterable[AclOperation]:
    if _refused(future):
        return wanted
    if future.exception() is not None:
        return ()
    granted = future.result().authorized_operations
    # Brokers before 2.3 do not report them.
    return () if granted is None else wanted - set(granted)


def _not_creatable(admin: AdminClient, names: Sequence[str]) -> list[str]:
    """Return the topics that the user is not allowed to create; none is created."""
    wanted = [NewTopic(name, 1) for name in names]
    futures = admin.create_topics(
        wanted, validate_only=True, request_timeout=REQUEST_TIMEOUT_S
    )
    return [name for name, future in futures.items() if _refused(future)]


def _refused(future: Future[Any], unrelated_errors: AbstractSet[int] = _NONE) -> bool:
    """
    Return whether the broker denies access.

    Args:
        future: The broker's response.
        unrelated_errors: Further errors that do not concern rights.

    Raises:
        KafkaException: The broker does not answer.
    """
    try:
        future.result()
    except KafkaException as error:
        code = error.args[0].code()
        if code not in _REFUSED | _UNRELATED_ERRORS | unrelated_errors:
            raise
        return code in _REFUSED
    return False


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
