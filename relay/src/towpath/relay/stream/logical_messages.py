"""
Logical messages: by their prefix they are watermarks, heartbeats, events or messages.

=========================  =========================================================
``towpath.watermark``      told to the snapshot driver
``towpath.heartbeat``      our own beat came round: noted, and told to the beat's topic
``towpath.table``          a captured table was dropped, renamed or made again
``outbox.message_prefix``  an event without a table
any other                  ``<prefix>.message``, if the configuration wants them
=========================  =========================================================

A message outside a transaction is its own: what comes of it holds the log back until
Kafka has it, and is confirmed by its own LSN.
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
from towpath.relay.snapshot.facts import WatermarkSeen
from towpath.relay.snapshot.scan_context import WATERMARK_PREFIX
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.snapshot_runner import SnapshotRunner
from towpath.relay.wal.transactions import LogicalMessageEvent
from towpath.schemas import topics

HEARTBEAT_PREFIX: Final = "towpath.heartbeat"


class LogicalEventRoute(Protocol):
    """Makes events of logical messages."""

    def records(self, spoken: LogicalMessageEvent, now_us: int) -> Sequence[Record]:
        """Return the records that the message gives, in their order."""


class LogicalMessageRoute(Protocol):
    """Makes records of logical messages, as they are."""

    def record(self, spoken: LogicalMessageEvent, now_us: int) -> Record | None:
        """Return the message's record; None for one that is not published."""


class LogicalMessageRoutes(NamedTuple):
    """
    The routes of other programs' messages.

    Attributes:
        events_prefix: The prefix of those that are events.
        events: Makes events of them.
        messages: Publishes all others; None: nobody wants them.
    """

    events_prefix: str
    events: LogicalEventRoute
    messages: LogicalMessageRoute | None


class LogicalMessageHandler:
    """Takes logical messages, and returns the records that they give."""

    def __init__(
        self,
        context: LoopContext,
        snapshots: SnapshotRunner,
        checkpoints: CheckpointWriter,
        routes: LogicalMessageRoutes,
        relay_name: str = "",
    ) -> None:
        """
        Prepare.

        Args:
            context: The loop's context.
            snapshots: Told of watermarks.
            checkpoints: Stores how far the relay is.
            routes: The routes of other programs' messages.
            relay_name: The slot's name: table events of other relays are left alone.
        """
        self._context = context
        self._relay_name = relay_name
        self._snapshots = snapshots
        self._checkpoints = checkpoints
        self._routes = routes

    def take(
        self, spoken: LogicalMessageEvent, sequence: int, now_us: int
    ) -> Sequence[Record]:
        """Do what the message asks for; return the streamed records it gives."""
        prefix = spoken.prefix
        if prefix == WATERMARK_PREFIX:
            token = spoken.content.decode(errors="replace")
            self.mark(token, spoken.log_lsn, sequence)
            return ()
        if prefix == HEARTBEAT_PREFIX:
            self._beat(spoken, now_us)
            return ()
        if prefix == TABLE_EVENT_PREFIX:
            return self._take_table_event(spoken, now_us)
        events_prefix, events, messages = self._routes
        if prefix == events_prefix:
            return events.records(spoken, now_us)
        record = messages.record(spoken, now_us) if messages is not None else None
        return () if record is None else (record,)

    def mark(self, token: str, log_lsn: int, sequence: int) -> None:
        """Take a watermark, which READ rows may stand at from now on."""
        self._checkpoints.note_watermark(log_lsn)
        self._snapshots.tell(WatermarkSeen(token, log_lsn, sequence))

    def _take_table_event(
        self, spoken: LogicalMessageEvent, now_us: int
    ) -> Sequence[Record]:
        """Publish what became of a captured table; empty its topic if that is asked."""
        context, event = self._context, parse_table_event(spoken)
        if event is None or spoken.transaction is None:
            context.stats.skip("a table event that is not ours")
            return ()
        if event.relay != self._relay_name:
            return ()
        router = context.router
        notice = table_notification(router.place.prefix, event, now_us // 1000)
        context.publisher.publish_unordered(notice)
        if not (event.empties or event.is_swept):
            return ()
        name = topics.table_topic(router.place.prefix, event.full_name)
        topic = context.publisher.facts(name)
        return emptying_records(
            event,
            router,
            spoken.transaction,
            spoken.ordinal,
            (topic.partition_count, topic.is_compacted),
            now_us,
        )

    def _beat(self, spoken: LogicalMessageEvent, now_us: int) -> None:
        try:
            told = orjson.loads(spoken.content)
            counter, run_id = int(told["counter"]), str(told["run"])
            relay = told.get("relay")
        except (ValueError, KeyError, TypeError):
            self._context.stats.skip("a heartbeat that is not ours")
            return
        if relay != self._relay_name:
            # Another relay's, or one of before, whose counter is not this relay's.
            return
        context = self._context
        self._checkpoints.heartbeat = max(self._checkpoints.heartbeat, counter)
        context.stats.heartbeat_seen(counter, run_id, context.clock.monotonic_s())
        context.publisher.publish_internal(
            _heartbeat(context.router.place.prefix, now_us // 1000)
        )


def publish_outside_transaction(
    context: LoopContext, records: Sequence[Record], lsn: int
) -> None:
    """Send the records of a message outside a transaction; ``lsn`` may be confirmed."""
    delivery: Delivery = context.ledger.begin()
    for record in records:
        context.publisher.publish_change(record, delivery)
    context.ledger.commit(lsn)


def _heartbeat(prefix: str, now_ms: int) -> Record:
    """Return a heartbeat record, in Debezium's shape."""
    key = orjson.dumps({"serverName": prefix})
    value = orjson.dumps({"ts_ms": now_ms})
    size = len(key) + len(value) + FIXED_BYTES
    topic = topics.heartbeat_topic(prefix)
    return Record(topic, key, value, [], b"", now_ms, size, FIRST_PARTITION)
