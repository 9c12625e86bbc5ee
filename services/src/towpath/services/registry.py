"""
Register every event schema with the schema registry, once, at startup.

Each version is registered under its record's name, oldest first, and the subject is set
to ``BACKWARD_TRANSITIVE`` before a second version is registered. A registration may be
repeated, even by two services at the same time. No client request uses the registry.
"""

from collections.abc import Sequence
from contextlib import closing
from http import HTTPStatus
from json import JSONDecodeError
from typing import ClassVar, Final

import structlog
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

# confluent-kafka's registry client parses URLs with httpx2 and raises its errors.
from httpx2 import URL, InvalidURL, TransportError

from towpath.schemas.clock import Backoff, Clock, Deadline
from towpath.schemas.compatibility import LEVEL
from towpath.schemas.events import EventSchema
from towpath.schemas.failure import (
    HaltError,
    RegistryRefusedError,
    RegistryUnavailableError,
    UsageError,
)

# A response takes milliseconds; this only bounds the wait for a hung registry.
REQUEST_TIMEOUT_S: Final = 5.0
_REFUSED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
_DENIED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

log = structlog.get_logger(__name__)


class RegistryConflictError(HaltError):
    """The registry refuses a schema, or numbers its versions differently."""

    remedy: ClassVar[str] = "Register the versions in order, or correct the subject."


def register_event_schemas(
    url: str,
    schemas: Sequence[EventSchema],
    *,
    clock: Clock,
    timeout_s: float,
) -> None:
    """
    Register every version; retry until the deadline while the registry is unavailable.

    Args:
        url: The address of a Confluent-compatible registry.
        schemas: Every version of every subject, oldest first.
        clock: Waits between attempts.
        timeout_s: The time until the deadline.

    Raises:
        UsageError: The address is not an HTTP URL.
        RegistryRefusedError: The registry refuses the login or denies access.
        RegistryUnavailableError: The registry was unavailable until the deadline.
        RegistryConflictError: The registry refuses a schema, or numbers its versions
            differently.
    """
    with closing(_client(url)) as client:
        _register_until(client, schemas, clock, timeout_s)
    log.info("schema registry has all event schemas", count=len(schemas))


def _client(url: str) -> SchemaRegistryClient:
    settings = {"url": url, "max.retries": 0, "timeout": REQUEST_TIMEOUT_S}
    try:
        # Checked now, because the client reads the port only at its first request.
        URL(url)
        return SchemaRegistryClient(settings)
    except (InvalidURL, ValueError) as error:
        # The URL may have a password: it must not reach a log.
        message = "--registry is not a URL such as http://localhost:8081"
        raise UsageError(message) from error


def _register_until(
    client: SchemaRegistryClient,
    schemas: Sequence[EventSchema],
    clock: Clock,
    timeout_s: float,
) -> None:
    deadline = Deadline(clock, timeout_s)
    backoff = Backoff(ceiling_s=2.0)
    attempt = 0
    while True:
        try:
            _register(client, schemas)
        except RegistryUnavailableError as error:
            delay_s = min(backoff.delay_s(attempt), deadline.remaining_s())
            if deadline.passed():
                raise
            log.info("schema registry unavailable: trying again", reason=str(error))
            clock.wait(delay_s)
            attempt += 1
        else:
            return


def _register(client: SchemaRegistryClient, schemas: Sequence[EventSchema]) -> None:
    try:
        for schema in schemas:
            _register_one(client, schema)
    except TransportError as error:
        message = f"the schema registry cannot be reached: {error}"
        raise RegistryUnavailableError(message) from error
    except JSONDecodeError as error:
        message = "the schema registry's response is not JSON"
        raise RegistryUnavailableError(message) from error
    except SchemaRegistryError as error:
        if error.http_status_code in _DENIED:
            response = f"{error.http_status_code} {error.error_message}"
            message = f"the schema registry denies access: {response}"
            raise RegistryRefusedError(message) from error
        message = f"the schema registry failed: {error.error_message}"
        raise RegistryUnavailableError(message) from error


def _register_one(client: SchemaRegistryClient, schema: EventSchema) -> None:
    try:
        client.register_schema(schema.subject, Schema(schema.text, "AVRO"))
    except SchemaRegistryError as error:
        if error.http_status_code not in _REFUSED:
            raise
        # Some registries refuse one of two simultaneous registrations of a schema.
        if _version(client, schema) is None:
            message = f"the schema registry refuses a schema: {error.error_message}"
            raise RegistryConflictError(message) from error
    _keep_compatible(client, schema.subject)
    version = _version(client, schema)
    if version != schema.version:
        message = f"the schema registry has {schema.reference} as version {version}"
        raise RegistryConflictError(message)


def _keep_compatible(client: SchemaRegistryClient, subject: str) -> None:
    if _level(client, subject) == LEVEL:
        return
    try:
        client.set_compatibility(subject, LEVEL)
    except SchemaRegistryError:
        # Another service may have set it first.
        if _level(client, subject) != LEVEL:
            raise


def _level(client: SchemaRegistryClient, subject: str) -> str | None:
    try:
        return str(client.get_compatibility(subject))
    except SchemaRegistryError as error:
        if error.http_status_code == HTTPStatus.NOT_FOUND:
            return None
        raise


def _version(client: SchemaRegistryClient, schema: EventSchema) -> int | None:
    """Return the version of this schema in the registry; None if it is missing."""
    try:
        known = client.lookup_schema(schema.subject, Schema(schema.text, "AVRO"))
    except SchemaRegistryError as error:
        if error.http_status_code == HTTPStatus.NOT_FOUND:
            return None
        raise
    version: int | None = known.version
    return version
