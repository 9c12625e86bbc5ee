"""
Tells recorders which keys a change touched. Hot path while they record.

A row change touches its row, an event its aggregate. An event does so whatever becomes
of it: published, parked, set aside, with or without a payload. Only one that reaches
its topic, of a type that carries the whole state, leaves nothing to be read again.

An event outside a transaction promises nothing of rows: what its writer did may not be
committed yet, or never be. No snapshot can fail to see it, and so it touches by its own
place alone: what was read from a window that it falls into would come after it with an
older position. It is never a whole state.
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
from towpath.relay.wal.frames import PAYLOAD_AT
from towpath.relay.wal.messages import UNCHANGED, Relation, Row
from towpath.relay.wal.pgoutput import parse_message
from towpath.relay.wal.transactions import (
    Change,
    LogicalMessageEvent,
    Sequencer,
    Truncation,
)
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import AggregateView, Outbox

OTHER_FORM: Final = "an event's id is not of the form that its view declares"
OTHER_SPELLING: Final = "an event spells its id unlike its view"

_CREATE: Final = Operation.CREATE
_TYPE_AT: Final = EVENT_PARTS.index("aggregate_type")
_ID_AT: Final = EVENT_PARTS.index("aggregate_id")
_EVENT_TYPE_AT: Final = EVENT_PARTS.index("type")
_ALL_TYPES: Final = b"*"
_NOTHING_IS_PUBLISHED: Final = -1

# Aggregate type, aggregate id, event type.
_Event = tuple[bytes | None, bytes | None, bytes | None]


def partial_key(change: Change) -> tuple[bytes, ...] | None:
    """Return the key of a row that came with columns left out; None: it is whole."""
    new, old, relation = change.new, change.old, change.relation
    if new is None:
        return None
    if old is not None:
        new = fill_unchanged(new, old, relation, is_full=change.is_full)
    return _key(new, relation.key) if UNCHANGED in new else None


def record_change(
    touches: ChangedKeyFeed, change: Change, sequence: int, *, is_published: bool = True
) -> None:
    """
    Tell a table's recorder which keys a change touched.

    Args:
        touches: The table's recorder.
        change: The streamed change.
        sequence: Its place among watermarks.
        is_published: It gave a record. A row that the configuration leaves out of the
            stream is in a snapshot alone, and so is read again.
    """
    relation, xid = change.relation, change.transaction.xid
    new, old = change.new, change.old
    if new is None:
        touches.touch(_key(old or (), relation.key), xid, sequence)
        return
    if old is not None:
        new = fill_unchanged(new, old, relation, is_full=change.is_full)
    partial = UNCHANGED in new or not is_published
    new_key = _key(new, relation.key)
    old_key = new_key if old is None else _key(old, relation.key)
    if old_key == new_key:
        touches.touch(new_key, xid, sequence, partial=partial)
    else:
        touches.move(old_key, new_key, xid, sequence, partial=partial)


def _key(row: Row, indexes: tuple[int, ...]) -> tuple[bytes, ...]:
    values = (row[index] for index in indexes)
    return tuple(value if isinstance(value, bytes) else b"" for value in values)


class _ViewEvents(NamedTuple):
    """The events of a declared view: its ids, and which events say everything."""

    canonical: Canonical
    state_types: frozenset[bytes]

    def is_state(self, event_type: bytes | None) -> bool:
        return _ALL_TYPES in self.state_types or event_type in self.state_types


class KeyRecorder(Protocol):
    """
    The recorders of changed keys.

    Attributes:
        recorders: The feeds of tables that are being read, by oid.
        aggregates: The feeds of views that are being read, by aggregate type.
    """

    recorders: dict[int, ChangedKeyFeed]
    aggregates: dict[str, ChangedKeyFeed]


class AggregateKeyRecorder:
    """Tells the recorders of aggregates which events there were."""

    def __init__(self, outbox: Outbox, touched: KeyRecorder, stats: Stats) -> None:
        """
        Know the declared views.

        Args:
            outbox: ``[relay.outbox]``.
            touched: The recorders.
            stats: Told of ids that are not as the view declares them; asked whether an
                event became a dead letter.
        """
        self._recorders = touched.recorders
        self._aggregates = touched.aggregates
        self._stats = stats
        self._views = dict(_views(outbox.view))
        self._columns = outbox.columns
        self._prefix = outbox.message_prefix
        self._pickers: dict[int, Picker] = {}
        self._buried = 0

    def bind(self, relation: Relation) -> None:
        """
        Take the shape of the outbox table.

        Raises:
            NotPreparedError: It lacks a column that the options name.
        """
        self._pickers[relation.oid] = part_picker(relation, self._columns)

    def expect(self) -> None:
        """Look what is set aside from here on. Call order: before an event goes out."""
        self._buried = self._stats.dead_letters.total()

    def row(self, change: Change, sequence: int) -> None:
        """Take a change, of the outbox or of any other table, when it has gone out."""
        pick = self._pickers.get(change.relation.oid)
        if pick is None or change.operation is not _CREATE or change.new is None:
            return
        parts = pick(change.new)
        event = parts[_TYPE_AT], parts[_ID_AT], parts[_EVENT_TYPE_AT]
        self._touch(event, change.transaction.xid, sequence)

    def message(self, spoken: LogicalMessageEvent, sequence: int) -> None:
        """Take a logical message, an event or any other, when it has gone out."""
        if spoken.prefix != self._prefix:
            return
        try:
            told = RawJson(spoken.content)
            event = (
                told.text("aggregate_type"),
                told.text("aggregate_id"),
                told.text("type"),
            )
        except UnroutableError:
            # Whose it is cannot be told; it is a dead letter by now.
            return
        transaction = spoken.transaction
        xid = NO_TRANSACTION if transaction is None else transaction.xid
        self._touch(event, xid, sequence)

    def pass_over(self, frame: bytes, sequencer: Sequencer, sequence: int) -> None:
        """
        Take a message of a transaction that an operator set aside.

        What it changed is in the rows and not in the stream: it is to be read again.
        """
        if not self._recorders and not self._aggregates:
            return
        ordinal = sequencer.ordinal
        try:
            step = sequencer.feed(parse_message(frame[PAYLOAD_AT:]), 0)
        except MalformedMessageError:
            # Why it was set aside, perhaps; what it touched cannot be known.
            return
        finally:
            sequencer.ordinal = ordinal
        self._buried = _NOTHING_IS_PUBLISHED
        if isinstance(step, LogicalMessageEvent):
            self.message(step, sequence)
        elif isinstance(step, Change):
            self._lost(step, sequence)
            self.row(step, sequence)
        elif isinstance(step, Truncation):
            for relation in step.relations:
                if relation.oid in self._recorders:
                    self._recorders[relation.oid].touch_all(
                        step.transaction.xid, sequence
                    )

    def _lost(self, change: Change, sequence: int) -> None:
        touches = self._recorders.get(change.relation.oid)
        if touches is None:
            return
        for row in (change.old, change.new):
            if row is not None:
                key = _key(row, change.relation.key)
                touches.touch(key, change.transaction.xid, sequence, partial=True)

    def _touch(self, event: _Event, xid: int, sequence: int) -> None:
        aggregate_type, aggregate_id, event_type = event
        name = (aggregate_type or b"").decode()
        touches, view = self._aggregates.get(name), self._views.get(name)
        if touches is None or view is None:
            return
        key = None if aggregate_id is None else view.canonical(aggregate_id)
        if key is None:
            self._stats.skip(OTHER_FORM)
            return
        is_usual = key == aggregate_id
        if not is_usual:
            self._stats.skip(OTHER_SPELLING)
        is_published = self._stats.dead_letters.total() == self._buried
        is_whole = is_published and is_usual and xid != NO_TRANSACTION
        is_state = is_whole and view.is_state(event_type)
        touches.touch((key,), xid, sequence, partial=not is_state)


def _views(views: Iterable[AggregateView]) -> Iterable[tuple[str, _ViewEvents]]:
    """Tell of each type what holds for all of its views."""
    known: dict[str, _ViewEvents] = {}
    for view in views:
        types = frozenset(each.encode() for each in view.state_types)
        other = known.get(view.aggregate_type)
        if other is not None:
            # A whole state for one view may say nothing of what another gives.
            types = types & other.state_types
        known[view.aggregate_type] = _ViewEvents(canonical_id(view.id_form), types)
    return known.items()
