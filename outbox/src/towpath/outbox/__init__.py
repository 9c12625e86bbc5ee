"""
Record domain events in the caller's own transaction.

``record(session, event)`` writes one row into ``towpath.outbox`` in the transaction
that the session is in: the event exists if and only if that transaction commits. The
payload is checked against its schema first, so that a bad event fails the request and
never the relay. Nothing in this package uses Kafka, opens a connection or commits.

An event can be written in three ways: as a row that stays in the table; as a row that
the same transaction deletes again, which leaves the table empty; or by
``emit(session, event)`` into the log alone. The relay publishes the same record for
each.

``Collector`` records the events that aggregates collect when the session flushes or
commits, so no handler can forget them.
"""

from towpath.outbox.collector import Collector, SavepointError, track
from towpath.outbox.event import OutboxEvent
from towpath.outbox.message import emit, emit_all
from towpath.outbox.plain import plain
from towpath.outbox.writer import outbox_table, record, record_all
from towpath.schemas.events import InvalidEventError

__all__ = [
    "Collector",
    "InvalidEventError",
    "OutboxEvent",
    "SavepointError",
    "emit",
    "emit_all",
    "outbox_table",
    "plain",
    "record",
    "record_all",
    "track",
]
