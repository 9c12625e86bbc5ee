"""The one place of the sinks where a client of Kafka is made, by ``[kafka]`` alone."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from towpath.schemas.failure import ConfigurationError
from towpath.settings import Kafka, client_settings

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_Client = TypeVar("_Client", Consumer, Producer, AdminClient)


def admin(kafka: Kafka) -> AdminClient:
    """
    Make a client that asks about topics, and makes them.

    Raises:
        ConfigurationError: ``[kafka.client]`` cannot be used.
    """
    return _made(AdminClient, kafka, _NOTHING)


def consumer(kafka: Kafka, own: Mapping[str, Any]) -> Consumer:
    """
    Make a consumer; what it needs to be what it is stands above ``[kafka.client]``.

    Raises:
        ConfigurationError: ``[kafka.client]`` cannot be used.
    """
    return _made(Consumer, kafka, own)


def producer(kafka: Kafka) -> Producer:
    """
    Make a producer whose records are not lost and do not come twice.

    Raises:
        ConfigurationError: ``[kafka.client]`` cannot be used.
    """
    return _made(Producer, kafka, {"enable.idempotence": True, "acks": "all"})


def _made(
    make: Callable[[dict[str, Any]], _Client], kafka: Kafka, own: Mapping[str, Any]
) -> _Client:
    # librdkafka would write to stderr by itself; what matters is raised instead.
    settings = client_settings(kafka, {**own, "log_level": 0})
    try:
        return make(settings)
    except KafkaException as error:
        message = f"kafka.client: {error.args[0].str()}"
        raise ConfigurationError([message]) from error
