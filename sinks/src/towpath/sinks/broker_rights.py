"""
What the user of ``[kafka.client]`` may not do for a sink, all of it at once.

Nothing is written: the broker says itself what a user may do with a topic, and whether
he might make one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
    AclOperation,
    AdminClient,
    NewTopic,
)

from towpath.schemas import topics
from towpath.settings import Settings, Sink
from towpath.sinks import clients
from towpath.sinks.kafka import REQUEST_TIMEOUT_S, unavailable
from towpath.sinks.routes import Routes

_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
# There is no such topic or group, or there is one already: nothing is refused.
_NO_REFUSAL: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_ALREADY_EXISTS,
        KafkaError.GROUP_ID_NOT_FOUND,
        # A group's coordinator, not known yet, looks at rights first.
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
    }
)


def missing_rights(settings: Settings, sink: Sink) -> Iterator[str]:
    """
    List what the user may not do with the topics and the groups of a sink.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    prefix = settings.database.prefix
    dead = topics.dead_letter_topic(prefix, sink.name)
    reads = {*Routes(sink).exact, dead, topics.relations_topic(prefix)}
    wanted = {key: {AclOperation.READ} for key in reads}
    wanted[dead] = {AclOperation.READ, AclOperation.WRITE}
    if settings.signal_topic:
        wanted[settings.signal_topic] = {AclOperation.WRITE}
    groups = (f"{prefix}.sinks", "towpath-sinks", f"towpath-{sink.name}")
    admin = clients.admin(settings.kafka)
    try:
        lacking = _lacking(admin, wanted)
        if _refused(_asked_to_make(admin, dead)):
            lacking["create"].append(dead)
        asked = admin.describe_consumer_groups(
            list(groups), request_timeout=REQUEST_TIMEOUT_S
        )
        unseen = [name for name, answer in asked.items() if _refused(answer)]
    except KafkaException as error:
        raise unavailable(error) from error
    for operation, names in sorted(lacking.items()):
        yield f"the user of kafka.client may not {operation} {_listed(names)}"
    if unseen:
        yield f"the user of kafka.client may not describe groups {_listed(unseen)}"


def _lacking(
    admin: AdminClient, wanted: dict[str, set[AclOperation]]
) -> dict[str, list[str]]:
    """Return the topics by the operation that is missing; unknown ones are left out."""
    asked = admin.describe_topics(
        TopicCollection(list(wanted)),
        include_authorized_operations=True,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    lacking: dict[str, list[str]] = defaultdict(list)
    for name, answer in asked.items():
        for operation in _missing(answer, wanted[name]):
            lacking[operation.name.lower()].append(name)
    return lacking


def _missing(answer: Future[Any], wanted: set[AclOperation]) -> Iterable[AclOperation]:
    if _refused(answer):
        return wanted
    if answer.exception() is not None:
        return ()
    granted = answer.result().authorized_operations
    # Brokers before 2.3 do not say.
    return () if granted is None else wanted - set(granted)


def _asked_to_make(admin: AdminClient, name: str) -> Future[Any]:
    """Ask whether a topic might be made, without making it."""
    asked: dict[str, Future[Any]] = admin.create_topics(
        [NewTopic(name, 1)], validate_only=True, request_timeout=REQUEST_TIMEOUT_S
    )
    return asked[name]


def _refused(answer: Future[Any]) -> bool:
    """
    Tell whether the broker refuses a right.

    Raises:
        KafkaException: It does not answer.
    """
    try:
        answer.result()
    except KafkaException as error:
        code = error.args[0].code()
        if code not in _REFUSED | _NO_REFUSAL:
            raise
        return code in _REFUSED
    return False


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
