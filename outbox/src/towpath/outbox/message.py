"""
Record an event without a table: as a logical message in the caller's transaction.

``pg_logical_emit_message`` writes the event into the log and nowhere else: no row to
keep, none to delete, and less for the server to decode. The relay publishes the same
record as for a row. The event exists if and only if the transaction commits. It cannot
be read back from the database, so it cannot be listed or repaired there.
"""

import json
from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, func, literal, select
from sqlalchemy.orm import Session

from towpath.outbox.event import OutboxEvent
from towpath.outbox.plain import plain
from towpath.outbox.writer import checked_row

# The relay's default of [relay.outbox] message_prefix.
MESSAGE_PREFIX: Final = "towpath.outbox"
_TRANSACTIONAL: Final = True


def emit(
    session: Session | Connection, event: OutboxEvent, *, prefix: str = MESSAGE_PREFIX
) -> None:
    """
    Write one event into the log, in the caller's transaction.

    Args:
        session: The session in whose transaction the event is written.
        event: The event to record.
        prefix: The relay's ``[relay.outbox] message_prefix``.

    Raises:
        InvalidEventError: The event does not match its schema or cannot be delivered;
            nothing was written.
    """
    emit_all(session, (event,), prefix=prefix)


def emit_all(
    session: Session | Connection,
    events: Iterable[OutboxEvent],
    *,
    prefix: str = MESSAGE_PREFIX,
) -> None:
    """
    Write several events into the log, in their order, in the caller's transaction.

    Args:
        session: The session in whose transaction the events are written.
        events: The events to record.
        prefix: The relay's ``[relay.outbox] message_prefix``.

    Raises:
        InvalidEventError: An event is invalid; none was written.
    """
    contents = [_content(event) for event in events]
    for content in contents:
        emitted = func.pg_logical_emit_message(
            literal(_TRANSACTIONAL), literal(prefix), literal(content)
        )
        session.execute(select(emitted))


def _content(event: OutboxEvent) -> str:
    return json.dumps(plain(checked_row(event)))
