"""
The errors of the outbox library; a call that raises one of them has recorded nothing.

::

    TowpathError
    ├── UsageError
    │   ├── EventSchemaError      a schema cannot be used
    │   ├── UnboundEventError     an object is not an event
    │   ├── SessionTypeError      a session is of an unknown kind
    │   ├── NoTransactionError    the event would be committed without its state
    │   └── SavepointError        a savepoint would separate an event from its state
    └── DataError
        └── InvalidEventError     an event does not match its schema
            └── EventTooLargeError    an event is above the size limit
"""

from typing import ClassVar

from towpath.schemas.events import EventSchemaError, InvalidEventError
from towpath.schemas.failure import UsageError
from towpath.schemas.transactions import NoTransactionError, SessionTypeError

__all__ = [
    "EventSchemaError",
    "EventTooLargeError",
    "InvalidEventError",
    "NoTransactionError",
    "SavepointError",
    "SessionTypeError",
    "UnboundEventError",
]


class UnboundEventError(UsageError):
    """An object is not an event, and its class is not bound to an event type."""

    remedy: ClassVar[str] = "Bind the class with Events.event, or use an OutboxEvent."


class SavepointError(UsageError):
    """A savepoint was begun while aggregates had unrecorded events."""

    remedy: ClassVar[str] = "Drain the session before the savepoint."


class EventTooLargeError(InvalidEventError):
    """The event's record is larger than the ``max_bytes`` of its outbox."""

    remedy = (
        "Make the event smaller, or give the outbox a claim check that stores payloads."
    )
