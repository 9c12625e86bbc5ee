"""
Record domain events in the caller's own transaction.

``record(session, event)`` writes one event in the transaction that the session is in:
the event exists if and only if that transaction commits. The event is checked first, so
that a bad event fails the request and never the relay. Recording an event never uses
Kafka, opens a connection or commits.

Events are an application's own classes, bound to its own Avro schemas by ``Events``.
``Outbox`` defines how events are written, and ``configure`` sets the default outbox.
``towpath.outbox.sqlalchemy`` records the events that aggregates collect, and
``towpath.outbox.testing`` shows a test what was recorded.
"""

from towpath.outbox.errors import (
    EventSchemaError,
    EventTooLargeError,
    InvalidEventError,
    NoTransactionError,
    SavepointError,
    SessionTypeError,
    UnboundEventError,
)
from towpath.outbox.event import NO_SCHEMA, Events, OutboxEvent
from towpath.outbox.outbox import (
    Outbox,
    configure,
    record,
    record_all,
    record_all_async,
    record_async,
)
from towpath.outbox.plain import plain
from towpath.outbox.row import correlation_id

__all__ = [
    "NO_SCHEMA",
    "EventSchemaError",
    "EventTooLargeError",
    "Events",
    "InvalidEventError",
    "NoTransactionError",
    "Outbox",
    "OutboxEvent",
    "SavepointError",
    "SessionTypeError",
    "UnboundEventError",
    "configure",
    "correlation_id",
    "plain",
    "record",
    "record_all",
    "record_all_async",
    "record_async",
]
