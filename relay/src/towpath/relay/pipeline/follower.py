"""
Follows the stream: each step of it becomes records, touches and facts. Hot path.

Rows are produced as they arrive; nothing is collected until the commit. Every step
that a snapshot's watermarks must be ordered against raises ``sequence`` by one.

A transaction that an operator wants set aside (``skip``) goes to the dead letters raw,
message by message; shapes in it still count, because what follows needs them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from towpath.relay.delivery import Delivery
from towpath.relay.pipeline.aside import SetAside
from towpath.relay.pipeline.core import Core
from towpath.relay.pipeline.snapshots import Snapshots
from towpath.relay.pipeline.spoken import Listener, deliver
from towpath.relay.routing.record import Record
from towpath.relay.routing.refused import RefusedRoute
from towpath.relay.routing.router import Route
from towpath.relay.routing.table import TableRoute, complete
from towpath.relay.routing.transactions import TransactionMetadata
from towpath.relay.snapshot.facts import SignalSeen
from towpath.relay.snapshot.touches import Touches
from towpath.relay.wal.frames import PAYLOAD_AT, UNPACK_START
from towpath.relay.wal.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    RelationShape,
    Row,
    Truncate,
    Update,
)
from towpath.relay.wal.pgoutput import KINDS, PARSER_ERRORS, PARSERS, malformed
from towpath.relay.wal.sequencer import (
    Change,
    Committed,
    Sequencer,
    Spoken,
    Transaction,
    Truncation,
)
from towpath.schemas.envelope import Operation
from towpath.schemas.position import Position

TRUNCATED_OUTBOX: Final = "the outbox table was truncated"


# How a kind of message is read, placed in the order, and what is done then.
_Path = tuple[
    Callable[[bytes, int], Any], Callable[[Any, int], Any], Callable[[Any], None]
]


def _do_nothing(_step: None) -> None:
    pass


class Follower:
    """Takes frames with stream messages, one by one."""

    def __init__(
        self,
        core: Core,
        sequencer: Sequencer,
        snapshots: Snapshots,
        listener: Listener,
        metadata: TransactionMetadata | None,
        aside: SetAside,
    ) -> None:
        self.snapshots = snapshots
        self._core = core
        self._sequencer = sequencer
        self._listener = listener
        self._metadata = metadata
        self._aside = aside
        self._send = core.outlet.send
        self._recorders = snapshots.recorders
        self._routes: dict[int, Route | None] = {}
        self._delivery: Delivery | None = None
        self._sequence = 0
        self._now_us = 0
        self._is_aside = False
        ledger = core.ledger
        self._open, self._close = ledger.begin, ledger.commit
        self._stream_commit = core.invisible.add
        self._tally = core.tally
        self._paths = self._make_paths()

    @property
    def is_inside(self) -> bool:
        """Whether a transaction is open."""
        return self._sequencer.is_inside

    def follow(self, frame: bytes, now_us: int) -> None:
        """
        Take the stream's next message.

        Raises:
            MalformedMessageError: It is not what we know.
            UnavailableError: A part that it needs is away.
        """
        self._now_us = now_us
        if self._is_aside and self._aside.takes(frame):
            self._aside.bury(frame, self._delivery)
            return
        try:
            parse, place, do = self._paths[frame[PAYLOAD_AT]]
            message = parse(frame, PAYLOAD_AT + 1)
        except PARSER_ERRORS as error:
            raise malformed(frame, PAYLOAD_AT) from error
        do(place(message, UNPACK_START(frame)[0]))

    def _make_paths(self) -> dict[int, _Path]:
        """Say by tag how a message is read, placed, and what is done then."""
        doings: dict[type, Callable[[Any], None]] = {
            Begin: self._begun,
            Insert: self._changed,
            Update: self._changed,
            Delete: self._changed,
            Commit: self._committed,
            RelationShape: self._shaped,
            Truncate: self._truncated,
            LogicalMessage: self._spoken,
        }
        steps = self._sequencer.steps
        return {
            tag: (PARSERS[tag], steps[kind], doings.get(kind, _do_nothing))
            for tag, kind in KINDS.items()
        }

    def _begun(self, transaction: Transaction) -> None:
        self._delivery = self._open(transaction.committed_us)
        if self._metadata is not None:
            self._metadata.begin(transaction)
        if transaction.commit_lsn in self._aside.commit_lsns:
            self._aside.open(transaction)
            self._is_aside = True

    def _committed(self, step: Committed) -> None:
        transaction, end_lsn = step
        count = self._sequencer.ordinal
        if self._metadata is not None and self._delivery is not None:
            end = self._metadata.end(transaction, count)
            if end is not None:
                self._send(end, self._delivery)
        if self._is_aside:
            self._aside.close(transaction, self._delivery)
            self._is_aside = False
        self._delivery = None
        self._close(end_lsn)
        self._stream_commit(transaction.xid, end_lsn)
        self._tally.committed(transaction, end_lsn, count, self._now_us)

    def _changed(self, change: Change) -> None:
        self._sequence += 1
        oid = change.relation.oid
        route = self._routes[oid]
        if self._recorders and oid in self._recorders:
            _touch(self._recorders[oid], change, self._sequence)
        if route is None:
            self._signalled(change)
            return
        records = route.records(change, self._now_us)
        delivery = self._delivery
        if delivery is None or not records:
            return
        if self._metadata is not None:
            self._announce(delivery)
        for record in records:
            self._send(record, delivery)

    def _truncated(self, step: Truncation) -> None:
        self._sequence += 1
        xid = step.transaction.xid
        for relation in step.relations:
            if relation.oid in self._recorders:
                self._recorders[relation.oid].touch_all(xid, self._sequence)
            route = self._routes[relation.oid]
            if not isinstance(route, TableRoute | RefusedRoute):
                self._core.tally.skip(TRUNCATED_OUTBOX)
                continue
            partitions = self._core.outlet.facts(route.topic).partition_count
            records = route.truncation(
                step.transaction, step.ordinal, partitions, self._now_us
            )
            self._deliver(records)

    def _shaped(self, shape: RelationShape) -> None:
        transaction = self._sequencer.transaction
        since = Position(0, 0)
        timestamp_ms = self._now_us // 1000
        if transaction is not None:
            since = Position(transaction.log_lsn, self._sequencer.ordinal)
            timestamp_ms = transaction.committed_us // 1000
        shapes = self._core.shapes
        relation = shapes.bind(shape, since, timestamp_ms, self._delivery)
        self._sequencer.bind(relation)
        facts = shapes.facts_of(relation)
        self._routes[relation.oid] = self._core.router.route(relation, facts)

    def _spoken(self, step: Spoken) -> None:
        self._sequence += 1
        records = self._listener.take(step, self._sequence, self._now_us)
        if step.transaction is not None:
            self._deliver(records)
        elif records:
            deliver(self._core, records, step.lsn)

    def _deliver(self, records: Sequence[Record]) -> None:
        """Send records of the open transaction."""
        delivery = self._delivery
        if delivery is None or not records:
            return
        if self._metadata is not None:
            self._announce(delivery)
        for record in records:
            self._send(record, delivery)

    def _announce(self, delivery: Delivery) -> None:
        """Tell that the transaction begins, before its first event."""
        begin = self._metadata.due() if self._metadata is not None else None
        if begin is not None:
            self._send(begin, delivery)

    def _signalled(self, change: Change) -> None:
        """Hand a new signal over; its transaction waits until the answer is stored."""
        if change.operation is not Operation.CREATE:
            return
        names = [column.name for column in change.relation.columns]
        row = dict(zip(names, change.new or (), strict=True))
        texts = {
            name: value.decode() if isinstance(value, bytes) else None
            for name, value in row.items()
        }
        signal_id = texts.get("id") or ""
        self._core.ledger.hold(signal_id)
        kind, data = texts.get("type") or "", texts.get("data")
        fact = SignalSeen(signal_id, kind, data, change.transaction.xid)
        self.snapshots.tell(fact)


def _touch(touches: Touches, change: Change, sequence: int) -> None:
    """Tell a table's recorder which keys a change touched."""
    relation, xid = change.relation, change.transaction.xid
    new, old = change.new, change.old
    if new is None:
        touches.touch(_key(old or (), relation.key), xid, sequence)
        return
    if old is not None:
        new = complete(new, old, relation, is_full=change.is_full)
    partial = UNCHANGED in new
    new_key = _key(new, relation.key)
    old_key = new_key if old is None else _key(old, relation.key)
    if old_key == new_key:
        touches.touch(new_key, xid, sequence, partial=partial)
    else:
        touches.move(old_key, new_key, xid, sequence, partial=partial)


def _key(row: Row, indexes: tuple[int, ...]) -> tuple[bytes, ...]:
    values = (row[index] for index in indexes)
    return tuple(value if isinstance(value, bytes) else b"" for value in values)
