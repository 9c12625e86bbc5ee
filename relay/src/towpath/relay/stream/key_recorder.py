"""
Records the keys that a change concerns. Hot path while a snapshot reads their table.

A row change concerns its row. An event concerns its aggregate, even if the event is
parked, is a dead letter or has no payload. A key must be read again unless the event
reached its topic and carries the whole state.

An event outside a transaction says nothing about rows: the writer's changes may not be
committed yet, or ever. The event is visible to every query, so only its own position
decides whether it evicts a row: rows read in a window around the event would be
published after it, but with an older position. It never carries the whole state.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from towpath.relay.encode.aggregates import Canonical, canonical_id
from towpath.relay.encode.logical import RawJson
from towpath.relay.encode.outbox_columns import EVENT_PARTS, Picker, part_picker
from towpath.relay.encode.table import fill_unchanged
from towpath.relay.errors import MalformedMessageError, UnroutableError
from towpath.relay.snapshot.changed_keys import ChangedKeyFeed
from towpath.relay.snapshot.visibility import NO_TRANSACTION
from towpath.relay.stats import Stats
from towpath.relay.wal.messages import UNCHANGED, Relation, Row
from towpath.relay.wal.pgoutput import PAYLOAD_AT, parse_message
from towpath.relay.wal.transactions import (
    Change,
    LogicalMessageEvent,
    Sequencer,
    Truncation,
)
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import AggregateView, Outbox

WRONG_FORM: Final = "an aggregate's id does not have the form that its view declares"
OTHER_SPELLING: Final = "an aggregate's id is spelled differently than in its view"

_CREATE: Final = Operation.CREATE
_TYPE_AT: Final = EVENT_PARTS.index("aggregate_type")
_ID_AT: Final = EVENT_PARTS.index("aggregate_id")
_EVENT_TYPE_AT: Final = EVENT_PARTS.index("type")
_ALL_TYPES: Final = b"*"
_NOTHING_IS_PUBLISHED: Final = -1

# Aggregate type, aggregate id, event type.
_Event = tuple[bytes | None, bytes | None, bytes | None]


def partial_key(change: Change) -> tuple[bytes, ...] | None:
    """Return the key of a row with columns missing; None if the row is complete."""
    new, old, relation = change.new, change.old, change.relation
    if new is None:
        return None
    if old is not None:
        new = fill_unchanged(new, old, relation, is_full=change.is_full)
    return _key(new, relation.key) if UNCHANGED in new else None


def record_change(
    feed: ChangedKeyFeed, change: Change, sequence: int, *, is_published: bool = True
) -> None:
    """
    Record the keys of a change in the feed of its table.

    ``sequence`` is the change's place among watermarks. The row of a change that is not
    published reaches Kafka only through the snapshot, so it is read again.
    """
    relation, xid = change.relation, change.transaction.xid
    new, old = change.new, change.old
    if new is None:
        feed.record(_key(old or (), relation.key), xid, sequence)
        return
    if old is not None:
        new = fill_unchanged(new, old, relation, is_full=change.is_full)
    partial = UNCHANGED in new or not is_published
    new_key = _key(new, relation.key)
    old_key = new_key if old is None else _key(old, relation.key)
    if old_key == new_key:
        feed.record(new_key, xid, sequence, partial=partial)
    else:
        feed.record_move(old_key, new_key, xid, sequence, partial=partial)


def _key(row: Row, indexes: tuple[int, ...]) -> tuple[bytes, ...]:
    values = (row[index] for index in indexes)
    return tuple(value if isinstance(value, bytes) else b"" for value in values)


class _ViewEvents(NamedTuple):
    """The events of a declared view: the form of its ids, and its state types."""

    canonical: Canonical
    state_types: frozenset[bytes]

    def is_state(self, event_type: bytes | None) -> bool:
        return _ALL_TYPES in self.state_types or event_type in self.state_types


class KeyRecorder(Protocol):
    """
    The open feeds of changed keys.

    Attributes:
        table_feeds: The feeds of tables that are being read, by oid.
        aggregates: The feeds of views that are being read, by aggregate type.
    """

    table_feeds: dict[int, ChangedKeyFeed]
    aggregates: dict[str, ChangedKeyFeed]


class AggregateKeyRecorder:
    """Records the aggregates of events."""

    def __init__(self, outbox: Outbox, feeds: KeyRecorder, stats: Stats) -> None:
        """
        Create the recorder.

        Args:
            outbox: ``[relay.outbox]``, with the declared views.
            feeds: The feeds of the tables and views that are being read.
            stats: Counts dead letters, and ids that do not have the declared form.
        """
        self._table_feeds = feeds.table_feeds
        self._aggregates = feeds.aggregates
        self._stats = stats
        self._views = dict(_views(outbox.view))
        self._columns = outbox.columns
        self._prefix = outbox.message_prefix
        self._pickers: dict[int, Picker] = {}
        self._dead_letter_count = 0

    def bind(self, relation: Relation) -> None:
        """
        Bind the schema of the outbox table.

        Raises:
            NotPreparedError: The table lacks a column that the options name.
        """
        self._pickers[relation.oid] = part_picker(relation, self._columns)

    def before_publish(self) -> None:
        """Note the number of dead letters. Call order: before an event is published."""
        self._dead_letter_count = self._stats.dead_letters.total()

    def row(self, change: Change, sequence: int) -> None:
        """Record the aggregate of a change, if the change is an event of the outbox."""
        pick = self._pickers.get(change.relation.oid)
        if pick is None or change.operation is not _CREATE or change.new is None:
            return
        parts = pick(change.new)
        event = parts[_TYPE_AT], parts[_ID_AT], parts[_EVENT_TYPE_AT]
        self._record_event(event, change.transaction.xid, sequence)

    def message(self, message: LogicalMessageEvent, sequence: int) -> None:
        """Record the aggregate of a logical message, if the message is an event."""
        if message.prefix != self._prefix:
            return
        try:
            document = RawJson(message.content)
            event = (
                document.text("aggregate_type"),
                document.text("aggregate_id"),
                document.text("type"),
            )
        except UnroutableError:
            # The message names no aggregate, and is a dead letter.
            return
        transaction = message.transaction
        xid = NO_TRANSACTION if transaction is None else transaction.xid
        self._record_event(event, xid, sequence)

    def skipped(self, frame: bytes, sequencer: Sequencer, sequence: int) -> None:
        """
        Record the keys of a message of a skipped transaction.

        Its changes are in the tables but are not published, so the rows are read again.
        """
        if not self._table_feeds and not self._aggregates:
            return
        try:
            step = sequencer.peek(parse_message(frame[PAYLOAD_AT:]))
        except MalformedMessageError:
            # The transaction may have been skipped because of this message: its keys
            # are unknown.
            return
        self._dead_letter_count = _NOTHING_IS_PUBLISHED
        if isinstance(step, LogicalMessageEvent):
            self.message(step, sequence)
        elif isinstance(step, Change):
            self._record_unpublished(step, sequence)
            self.row(step, sequence)
        elif isinstance(step, Truncation):
            for relation in step.relations:
                if relation.oid in self._table_feeds:
                    self._table_feeds[relation.oid].record_truncate(
                        step.transaction.xid, sequence
                    )

    def _record_unpublished(self, change: Change, sequence: int) -> None:
        feed = self._table_feeds.get(change.relation.oid)
        if feed is None:
            return
        for row in (change.old, change.new):
            if row is not None:
                key = _key(row, change.relation.key)
                feed.record(key, change.transaction.xid, sequence, partial=True)

    def _record_event(self, event: _Event, xid: int, sequence: int) -> None:
        aggregate_type, aggregate_id, event_type = event
        name = (aggregate_type or b"").decode()
        feed, view = self._aggregates.get(name), self._views.get(name)
        if feed is None or view is None:
            return
        key = None if aggregate_id is None else view.canonical(aggregate_id)
        if key is None:
            self._stats.skip(WRONG_FORM)
            return
        is_canonical = key == aggregate_id
        if not is_canonical:
            self._stats.skip(OTHER_SPELLING)
        is_published = self._stats.dead_letters.total() == self._dead_letter_count
        is_whole = is_published and is_canonical and xid != NO_TRANSACTION
        is_state = is_whole and view.is_state(event_type)
        feed.record((key,), xid, sequence, partial=not is_state)


def _views(views: Iterable[AggregateView]) -> Iterable[tuple[str, _ViewEvents]]:
    """Return, by aggregate type, the facts that all views of the type share."""
    known: dict[str, _ViewEvents] = {}
    for view in views:
        types = frozenset(each.encode() for each in view.state_types)
        other = known.get(view.aggregate_type)
        if other is not None:
            # The whole state of one view may lack columns of another.
            types = types & other.state_types
        known[view.aggregate_type] = _ViewEvents(canonical_id(view.id_form), types)
    return known.items()
