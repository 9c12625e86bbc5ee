"""
What brokers tell of topics, many in a request; a new topic is known after a while.

Only what is not known yet is asked about again, and ever less often.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    ConfigResource,
    ResourceType,
)

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import REQUEST_TIMEOUT_S, translated
from towpath.relay.ports import TopicFacts
from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock, Patience

_LIMIT: Final = "max.message.bytes"
_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
# What a broker takes if it does not say: Kafka's own default.
DEFAULT_LIMIT_BYTES: Final = 1_048_588
# How many topics one request names: an answer of some hundred kilobytes.
TOPICS_AT_ONCE: Final = 500
# A new topic is known to every broker within tens of milliseconds.
_SPREADING_S: Final = 0.02
# Of thousands of topics it takes seconds: asking more often only adds to the load.
_MAX_SPREADING_S: Final = 0.5
_Asked = TypeVar("_Asked")


class Spreading:
    """Waits, ever longer, until brokers know topics; for ever while more are known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patience = Patience(clock, REQUEST_TIMEOUT_S)
        self._backoff = Backoff(first_s=_SPREADING_S, ceiling_s=_MAX_SPREADING_S)
        self._attempt = 0

    def is_over(self, left: int) -> bool:
        """Take how much is not known; tell whether it has been no less for too long."""
        return self._patience.is_over(left)

    def wait(self) -> None:
        """Let time pass before the next look."""
        self._clock.wait(self._backoff.delay_s(self._attempt))
        self._attempt += 1


def facts_of(
    admin: AdminClient, clock: Clock, wanted: list[str]
) -> dict[str, TopicFacts]:
    """
    Return the facts of topics; those just made may take a while to be known everywhere.

    Raises:
        BrokerUnavailableError: Kafka does not answer, or does not know a topic.
        BrokerRefusedError: Kafka refuses to tell.
    """
    facts: dict[str, TopicFacts] = {}
    left, spreading = wanted, Spreading(clock)
    while True:
        facts |= _described(admin, left)
        left = [name for name in wanted if name not in facts]
        if not left:
            return facts
        if spreading.is_over(len(left)):
            reason = f"reading topic settings: {left[0]} is not known yet"
            raise BrokerUnavailableError(reason)
        spreading.wait()


def _described(admin: AdminClient, wanted: list[str]) -> dict[str, TopicFacts]:
    """Return the facts of those topics that the brokers know."""
    facts = {}
    for some in in_requests(wanted):
        counts = _counts_of(admin, some)
        if not counts:
            continue
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in counts]
        futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        for resource, future in futures.items():
            told = _known(future)
            if told is None:
                continue
            limit, policy = told.get(_LIMIT), told.get(_POLICY)
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
    described = {name: _known(future) for name, future in futures.items()}
    return {
        name: len(each.partitions)
        for name, each in described.items()
        if each is not None and each.partitions
    }


def _known(future: "Future[_Asked]") -> _Asked | None:
    """
    Return what is told of a topic; None: it is not known yet.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
        BrokerRefusedError: Kafka refuses to tell.
    """
    try:
        return future.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise translated(error, "reading topic settings") from error
        return None


def in_requests(
    each: Iterable[_Asked], at_once: int = TOPICS_AT_ONCE
) -> Iterator[list[_Asked]]:
    """Divide what is asked for into lists of what one request takes."""
    left = iter(each)
    while some := list(islice(left, at_once)):
        yield some
