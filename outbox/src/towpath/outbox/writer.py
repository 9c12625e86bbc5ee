"""
Write events into the outbox, in the session's current transaction.

Everything that could make an event undeliverable is checked before the first row is
written: its schema, a topic name that Kafka accepts, and headers that do not collide
with the relay's own. The writer never commits; an event is committed by its caller.
"""

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    DateTime,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
    insert,
)
from sqlalchemy.orm import Session

from towpath.outbox.event import OutboxEvent
from towpath.outbox.plain import plain
from towpath.schemas import headers
from towpath.schemas.events import InvalidEventError, check_event
from towpath.schemas.topics import is_legal_topic

# ``towpath relay init`` creates it; a test compares that DDL with this definition.
# The two JSON columns write ``None`` as SQL NULL, not as the JSON text ``null``.
outbox_table = Table(
    "outbox",
    MetaData(schema="towpath"),
    Column("id", Uuid, primary_key=True),
    Column("aggregate_type", Text, nullable=False),
    Column("aggregate_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSON(none_as_null=True)),
    Column("headers", JSON(none_as_null=True)),
    Column("traceparent", Text),
    Column(
        "occurred_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.now(),
    ),
)

# Room for a topic template around it, within Kafka's 249 characters.
MAX_AGGREGATE_TYPE_LENGTH: Final = 200
_RELAY_HEADERS: Final = frozenset(
    {
        headers.EVENT_ID,
        headers.EVENT_TYPE,
        headers.AGGREGATE_TYPE,
        headers.EVENT_SCHEMA,
        headers.POSITION,
        headers.OCCURRED_AT,
        headers.TRACEPARENT,
        headers.SNAPSHOT,
    }
)


def record(session: Session | Connection, event: OutboxEvent) -> None:
    """
    Write one event in the caller's transaction.

    Raises:
        InvalidEventError: The event does not match its schema or cannot be delivered;
            nothing was written.
    """
    record_all(session, (event,))


def record_all(session: Session | Connection, events: Iterable[OutboxEvent]) -> None:
    """
    Write several events in the caller's transaction, in their order.

    Raises:
        InvalidEventError: An event is invalid; none was written.
    """
    rows = [checked_row(event) for event in events]
    if rows:
        session.execute(insert(outbox_table), rows)


def checked_row(event: OutboxEvent) -> dict[str, Any]:
    """
    Return the event as a row of the outbox: its columns by name.

    Raises:
        InvalidEventError: The event does not match its schema or cannot be delivered.
    """
    payload = plain(event.payload)
    schema = check_event(event.type, payload)
    _check_delivery(event)
    return {
        "id": event.id,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "type": event.type,
        "payload": payload,
        "headers": {headers.EVENT_SCHEMA: schema.reference, **event.headers},
        "traceparent": event.traceparent,
        "occurred_at": event.occurred_at,
    }


def _check_delivery(event: OutboxEvent) -> None:
    long = len(event.aggregate_type) > MAX_AGGREGATE_TYPE_LENGTH
    if long or not is_legal_topic(event.aggregate_type):
        reason = "cannot be part of a topic's name"
        raise InvalidEventError(event.type, "aggregate_type", reason)
    if not event.aggregate_id or "\0" in event.aggregate_id:
        reason = "is empty or contains a NUL character"
        raise InvalidEventError(event.type, "aggregate_id", reason)
    if event.occurred_at.utcoffset() is None:
        reason = "has no time zone"
        raise InvalidEventError(event.type, "occurred_at", reason)
    for name, value in event.headers.items():
        if name in _RELAY_HEADERS or not isinstance(value, str):
            reason = "is a header of the relay, or its value is not text"
            raise InvalidEventError(event.type, f"headers.{name}", reason)
