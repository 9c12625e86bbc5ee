"""
Kafka clients: their shared configuration, errors, log records and end offsets.

``librdkafka`` writes to stderr unless it has a logger; the relay's logger turns its
lines into structured log records.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    OffsetSpec,
)

from towpath.relay.errors import BrokerRefusedError, BrokerUnavailableError
from towpath.schemas.failure import (
    ConfigurationError,
    TooManyFilesError,
    TowpathError,
    UnavailableError,
    has_no_descriptor,
)
from towpath.settings import Kafka, client_settings

# The timeout of one request to the cluster, longer than a leader election. After a
# failure the loop retries with a backoff. The client returns a result or an error
# within this time, so callers wait without a timeout of their own: an equally long one
# could expire first and hide Kafka's error.
REQUEST_TIMEOUT_S: Final = 10.0

# A topic and a partition number.
PartitionId: TypeAlias = tuple[str, int]

_Client = TypeVar("_Client")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

# Transient errors; several of them occur briefly after a topic is created.
_TRANSIENT: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001 - the client's public names
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        # No partition of a request has a leader that the client knows.
        KafkaError._NOENT,  # noqa: SLF001
        # The client drops its handle of a bootstrap address once it has learned the
        # brokers; a request in flight on that handle fails with this.
        KafkaError._DESTROY_BROKER,  # noqa: SLF001
        # A broker that the controller has fenced lists neither brokers nor topics.
        KafkaError._PARTIAL,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.CONCURRENT_TRANSACTIONS,
        # The relay creates every topic that it uses: an unknown one is new, or not
        # known to every broker yet.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
# A controller without contact to any broker returns the same error as for a
# replication factor above the number of brokers; only the text distinguishes the two
# cases (``StripedReplicaPlacer`` in Kafka's source).
_ALL_FENCED: Final = "All brokers are currently fenced"


class _ToStructlog(logging.Handler):
    """Forwards the client library's lines to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger("towpath.relay.kafka").debug(
            "client library", line=record.getMessage()
        )


def client_logger() -> logging.Logger:
    """Return the logger that all clients share."""
    logger = logging.getLogger("towpath.relay.kafka.client")
    if not logger.handlers:
        logger.addHandler(_ToStructlog())
        logger.propagate = False
    return logger


def configuration(kafka: Kafka, more: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """
    Return a client's configuration, with the library's names for the settings.

    Args:
        kafka: The brokers.
        more: Further settings.
    """
    defaults = {
        "client.id": "towpath-relay",
        # The client reconnects to a restarted broker within two seconds.
        "reconnect.backoff.max.ms": 2000,
        # The relay creates its topics with the settings of ``[topics]``. By default, a
        # producer or an admin client has the broker create any topic that it names.
        "allow.auto.create.topics": False,
    }
    return client_settings(kafka, {"logger": client_logger(), **more}, defaults)


def make_client(
    make: Callable[[dict[str, Any]], _Client],
    kafka: Kafka,
    more: Mapping[str, Any] = _NOTHING,
) -> _Client:
    """
    Create a client.

    Args:
        make: The class of the client.
        kafka: The brokers.
        more: Further settings, which override those of ``[kafka.client]``.

    Raises:
        ConfigurationError: The library refuses ``[kafka.client]``.
    """
    try:
        return make(configuration(kafka, more))
    except KafkaException as error:
        message = f"kafka.client: {_reason(error.args[0])}"
        raise ConfigurationError([message]) from error


def end_offsets(kafka: Kafka, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
    """
    Return the end offset of each partition; -1 for one that does not exist.

    Each call creates a new client, because one that has found a topic missing remembers
    that for many seconds.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the request.
    """
    admin = make_client(AdminClient, kafka)
    requested = {
        TopicPartition(*at): OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        for at in places
    }
    futures = admin.list_offsets(requested, request_timeout=REQUEST_TIMEOUT_S)
    ends = {}
    for place, future in futures.items():
        try:
            ends[place.topic, place.partition] = future.result().offset
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise relay_error(error, f"finding the end of {place.topic}") from error
            ends[place.topic, place.partition] = -1
    return ends


def relay_error(error: KafkaException, doing: str) -> TowpathError:
    """Return the relay's error for an error of the client."""
    detail = error.args[0] if error.args else error
    message = f"{doing}: {_reason(detail)}"
    if isinstance(detail, KafkaError) and is_transient(detail):
        return unavailable(doing, message)
    return BrokerRefusedError(message)


def unavailable(doing: str, message: str) -> UnavailableError:
    """
    Return the relay's error for a broker that does not answer.

    If the process has no file descriptor left, the client reports that the broker is
    down.
    """
    error = BrokerUnavailableError(message)
    return TooManyFilesError(doing) if has_no_descriptor(error) else error


def is_transient(error: KafkaError) -> bool:
    """Return whether a retry may help."""
    if error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        return _ALL_FENCED in error.str()
    return error.code() in _TRANSIENT or bool(error.retriable())


def is_permanent(error: KafkaError) -> bool:
    """Return whether retrying an unacknowledged record cannot help."""
    is_late = error.code() == KafkaError._MSG_TIMED_OUT  # noqa: SLF001 - public
    return not is_late and not is_transient(error)


def _reason(detail: object) -> str:
    return detail.str() if isinstance(detail, KafkaError) else str(detail)
