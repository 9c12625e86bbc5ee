"""
Record domain events in the caller's own transaction.

``record(session, event)`` writes one row into ``towpath.outbox`` in the transaction
that the session is in: the event exists if and only if that transaction commits. The
payload is checked against its schema first, so that a bad event fails the request and
never the relay. Nothing in this package knows of Kafka, opens a connection or commits.

There are three ways of writing: into a kept table; insert, then delete in the same
transaction, which leaves the table empty; and ``emit(session, event)``, which writes
into the log alone. The relay makes the same event of each.

Aggregates that collect their events are served by ``Collector``: what they said is
recorded when the session flushes or commits, so that no handler can forget it.
"""

from towpath.outbox.collector import Collector, SavepointError, track
from towpath.outbox.event import OutboxEvent
from towpath.outbox.message import emit, emit_all
from towpath.outbox.plain import plain
from towpath.outbox.table import outbox_table
from towpath.outbox.writer import record, record_all
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
