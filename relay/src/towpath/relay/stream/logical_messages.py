"""
Handles logical messages, each by its prefix.

=========================  =========================================================
``towpath.watermark``      a fact for the snapshot driver
``towpath.heartbeat``      the relay's own heartbeat, published to its topic
``towpath.table``          a captured table was dropped, renamed or recreated, or its
                           key changed
``outbox.message_prefix``  an event without a table
any other                  ``<prefix>.message``, if the configuration publishes them
=========================  =========================================================

The log that holds a message outside a transaction is kept until Kafka has the message's
records; then the message's own LSN may be confirmed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import orjson

from towpath.relay.encode.notifications import (
    TABLE_EVENT_PREFIX,
    emptying_records,
    parse_table_event,
    table_notification,
)
from towpath.relay.encode.record import FIRST_PARTITION, FIXED_BYTES, Record
from towpath.relay.publish.checkpoints import CheckpointWriter
from towpath.relay.publish.in_flight import Delivery
from towpath.relay.snapshot.protocol import WatermarkSeen
from towpath.relay.snapshot.scan_context import WATERMARK_PREFIX
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.snapshot_runner import SnapshotRunner
from towpath.relay.wal.transactions import LogicalMessageEvent
from towpath.schemas import topics

HEARTBEAT_PREFIX: Final = "towpath.heartbeat"


class LogicalEventRoute(Protocol):
    """Makes events from logical messages."""

    def records(self, message: LogicalMessageEvent, now_us: int) -> Sequence[Record]:
        """Return the message's records, in their order."""


class LogicalMessageRoute(Protocol):
    """Makes records that carry logical messages unchanged."""

    def record(self, message: LogicalMessageEvent, now_us: int) -> Record | None:
        """Return the message's record; None if it is not published."""


class LogicalMessageRoutes(NamedTuple):
    """
    The routes of other programs' messages.

    Attributes:
        events_prefix: The prefix of messages that are events.
        events: Makes events from these messages.
        messages: Makes records from all others; None if they are not published.
    """

    events_prefix: str
    events: LogicalEventRoute
    messages: LogicalMessageRoute | None


class LogicalMessageHandler:
    """Handles logical messages, and returns their records."""

    def __init__(
        self,
        context: LoopContext,
        snapshots: SnapshotRunner,
        checkpoints: CheckpointWriter,
        routes: LogicalMessageRoutes,
        relay_name: str = "",
    ) -> None:
        """
        Create the handler.

        Args:
            context: The loop's context.
            snapshots: Receives watermarks.
            checkpoints: Notes watermarks and heartbeats.
            routes: The routes of other programs' messages.
            relay_name: The slot's name: table events and heartbeats of other relays are
                ignored.
        """
        self._context = context
        self._relay_name = relay_name
        self._snapshots = snapshots
        self._checkpoints = checkpoints
        self._routes = routes

    def handle(
        self,
        message: LogicalMessageEvent,
        delivery: Delivery | None,
        sequence: int,
        now_us: int,
    ) -> Sequence[Record]:
        """
        Handle a message; return its records in the stream's order.

        Args:
            message: The message.
            delivery: The delivery of its transaction; None outside a transaction.
            sequence: The message's place among changes and watermarks.
            now_us: When the relay read the message.
        """
        prefix = message.prefix
        if prefix == WATERMARK_PREFIX:
            token = message.content.decode(errors="replace")
            self.on_watermark(token, message.log_lsn, sequence)
            return ()
        if prefix == HEARTBEAT_PREFIX:
            self._on_heartbeat(message, now_us)
            return ()
        if prefix == TABLE_EVENT_PREFIX:
            return self._on_table_event(message, delivery, now_us)
        events_prefix, events, messages = self._routes
        if prefix == events_prefix:
            return events.records(message, now_us)
        record = messages.record(message, now_us) if messages is not None else None
        return () if record is None else (record,)

    def on_watermark(self, token: str, log_lsn: int, sequence: int) -> None:
        """Handle a watermark, whose LSN may now be the position of READ rows."""
        self._checkpoints.note_watermark(log_lsn)
        self._snapshots.handle(WatermarkSeen(token, log_lsn, sequence))

    def _on_table_event(
        self, message: LogicalMessageEvent, delivery: Delivery | None, now_us: int
    ) -> Sequence[Record]:
        """Publish a captured table's event, and empty its topic if requested."""
        context, event = self._context, parse_table_event(message)
        if event is None or message.transaction is None:
            context.stats.skip("a table event that no relay wrote")
            return ()
        if event.relay != self._relay_name:
            return ()
        router = context.router
        notice = table_notification(router.place.prefix, event, now_us // 1000)
        context.publisher.publish_unordered(notice, delivery)
        if not (event.empties or event.is_swept):
            return ()
        name = topics.table_topic(router.place.prefix, event.full_name)
        position = message.transaction.place + b"%010d" % message.ordinal
        partitions = context.publisher.partition_count(name, position)
        return emptying_records(
            event,
            router,
            message.transaction,
            message.ordinal,
            (partitions, context.sender.facts(name).is_compacted),
            now_us,
        )

    def _on_heartbeat(self, message: LogicalMessageEvent, now_us: int) -> None:
        try:
            document = orjson.loads(message.content)
            counter, run_id = _counter(document["counter"]), str(document["run"])
            relay = document.get("relay")
        except (ValueError, KeyError, TypeError):
            self._context.stats.skip("a heartbeat that no relay wrote")
            return
        if relay != self._relay_name:
            # Another relay's heartbeat, with its own counter.
            return
        context = self._context
        self._checkpoints.note_heartbeat(counter, message.log_lsn)
        context.stats.heartbeat_seen(counter, run_id, context.clock.monotonic_s())
        context.publisher.publish_internal(
            _heartbeat(context.router.place.prefix, now_us // 1000)
        )


def publish_outside_transaction(
    context: LoopContext, records: Sequence[Record], lsn: int
) -> None:
    """
    Publish the records of a message outside a transaction.

    ``lsn`` is the end of the message.
    """
    delivery: Delivery = context.ledger.begin()
    for record in records:
        context.publisher.publish_change(record, delivery)
    context.ledger.commit(lsn)


# Higher than any relay's counter. The limit keeps a counter that another role wrote
# within the 64 bits that the state stores.
_MAX_HEARTBEATS: Final = 2**62


def _counter(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MAX_HEARTBEATS:
        message = f"{value!r} is not a relay's counter"
        raise ValueError(message)
    return value


def _heartbeat(prefix: str, now_ms: int) -> Record:
    """Return a heartbeat record, in Debezium's shape."""
    key = orjson.dumps({"serverName": prefix})
    value = orjson.dumps({"ts_ms": now_ms})
    size = len(key) + len(value) + FIXED_BYTES
    topic = topics.heartbeat_topic(prefix)
    return Record(topic, key, value, [], b"", now_ms, size, FIRST_PARTITION)
