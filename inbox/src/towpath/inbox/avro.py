"""Payloads in Avro, decoded with schemas from a Confluent-compatible registry."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from towpath.inbox.event import Event, json_payload
from towpath.schemas import headers
from towpath.schemas.failure import UnavailableError, UsageError

try:
    import httpx2
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.schema_registry.error import (
        OAuthTokenError,
        SchemaRegistryError,
    )
    from confluent_kafka.serialization import SerializationError
except ImportError as error:
    _MISSING = "Avro needs the registry's client: pip install 'towpath-inbox[avro]'"
    raise UsageError(_MISSING) from error

# Confluent's framing: a zero byte, the schema's id in four bytes, the Avro data. JSON
# never begins with that byte.
_FRAME: Final = b"\0"
# The consumer itself tries again, and commits nothing in the meantime.
_SETTINGS: Final[Mapping[str, Any]] = {"timeout": 5, "max.retries": 0}
# Raised, besides ``ValueError``, for bytes that are not framed or not Avro.
_UNREADABLE: Final = (SerializationError, EOFError, LookupError, ArithmeticError)
# Responses that concern the request or the server, not the schema.
_TRANSIENT: Final = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)


class AvroDecoder:
    """
    Decodes Avro payloads; reads all others as JSON.

    A payload is in Avro if the header ``content-type`` says so, or if it begins with
    the zero byte of Confluent's framing.
    """

    def __init__(self, registry: Mapping[str, Any]) -> None:
        """
        Store the registry's settings; no connection is opened.

        Args:
            registry: Settings of confluent-kafka's ``SchemaRegistryClient``: at least
                ``url``. Schemas are cached, so each is requested once.
        """
        self._client = SchemaRegistryClient({**_SETTINGS, **registry})
        self._deserialize = AvroDeserializer(self._client)

    def __call__(self, event: Event) -> Any:  # noqa: ANN401 - any Avro value
        """
        Return the payload: records as mappings, logical types as Python's own.

        A tombstone has no payload: None is returned.

        Raises:
            UnavailableError: The registry cannot be reached, fails, or refuses the
                login.
            ValueError: The payload is not framed, or does not match its schema; or the
                registry has no such schema.
        """
        value = event.value
        if value is None:
            return None
        is_avro = "avro" in event.headers.get(headers.CONTENT_TYPE, "").lower()
        if not (is_avro or value.startswith(_FRAME)):
            return json_payload(event)
        try:
            return self._deserialize(value)
        except (httpx2.HTTPError, httpx2.InvalidURL, OAuthTokenError) as error:
            # The error's text is left out: it may contain the address with a password.
            reason = f"the schema registry cannot be reached: {type(error).__name__}"
            raise UnavailableError(reason) from error
        except _UNREADABLE as error:
            reason = (
                f"the payload is not framed, or does not match its schema: {error!r}"
            )
            raise ValueError(reason) from error
        except SchemaRegistryError as error:
            reason = f"the schema registry responded: {error}"
            if _is_transient(error.http_status_code):
                raise UnavailableError(reason) from error
            raise ValueError(reason) from error

    def close(self) -> None:
        """Close the connections to the registry."""
        self._client.close()


def _is_transient(status: int) -> bool:
    """Return whether a retry may get a different response."""
    return status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR
