"""
Apply each event exactly once, in the consumer's own transaction.

``Inbox`` inserts an event's id in the transaction of its effect, so that a redelivered
event changes nothing. ``Consumer`` reads topics with it: in order per key, with
retries, and with offsets that are committed after the effect. An event that keeps
failing is parked together with its followers. ``AsyncConsumer`` does the same for an
asynchronous handler.
"""

from towpath.inbox.consumer import AsyncConsumer, Consumer
from towpath.inbox.effects import Observer
from towpath.inbox.event import Event, event_of
from towpath.inbox.inbox import Inbox, ParkedEvent
from towpath.inbox.tables import create_statements

__all__ = [
    "AsyncConsumer",
    "Consumer",
    "Event",
    "Inbox",
    "Observer",
    "ParkedEvent",
    "create_statements",
    "event_of",
]
