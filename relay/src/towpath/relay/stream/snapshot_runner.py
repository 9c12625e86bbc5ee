"""
Runs the snapshot driver inside the loop: facts in, effects out.

Rows and notifications are produced at once, in stream order; the worker performs the
other effects, and its answers come back as facts in the loop's own time.

A chunk is emitted in slices, a few milliseconds of them in each turn of the loop, so
that live changes pass in between; each row is judged at the moment of its emission.

``SnapshotStats`` counts tables: one counts from the moment its signal, or the relay's
own request, is stored; one that has ended counts once. Counters live as long as the
process, also when a connection's end interrupts a scan that is resumed later.

External signals are rows of a bare signal table. The inbox copies each into the signal
table, and its transaction is held until it is there: a restart streams it again
otherwise. A refused one is counted and published as a notification, since it has no row
in which it could be answered.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import structlog

from towpath.relay.encode.notifications import notification
from towpath.relay.ports import Inbox, SnapshotReader
from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.driver import SnapshotDriver
from towpath.relay.snapshot.effects import (
    Effect,
    EmitRows,
    EmitSweep,
    Notify,
    ProbeVisibility,
    SaveProgress,
    StoreKeys,
    StoreSignal,
)
from towpath.relay.snapshot.facts import (
    Delivered,
    EmitAllowed,
    Fact,
    KeysStored,
    RowsRefused,
    SignalStored,
    Tick,
    UnfinishedRead,
    VisibilityRead,
)
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.signals import WINDOW_TYPES, SignalRefusal
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.stats import SnapshotProgress, Stats
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.snapshot_publisher import SnapshotPublisher
from towpath.relay.wal.messages import Relation
from towpath.relay.wal.transactions import Change
from towpath.schemas.clock import Clock
from towpath.schemas.envelope import Operation
from towpath.schemas.position import Position

# Rows of what is no captured table, such as events of the outbox, under one label.
OTHER: Final = "other"

_RUNNING: Final = "running"
_PAUSED: Final = "paused"

Name = tuple[str, str]


class SnapshotStats:
    """Keeps ``stats.snapshot``, and counts dropped rows; told all facts and effects."""

    def __init__(self, stats: Stats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._asked: dict[str, StoreSignal | StoreKeys] = {}
        self._open: dict[Name, str] = {}
        self._dropped: dict[Name, int] = {}
        self._began_s: dict[Name, float] = {}
        before = stats.snapshot
        self._rows = dict(before.rows) if before is not None else {}
        self._ended = Counter[str]()
        if before is not None:
            self._ended.update(
                completed=before.completed, failed=before.failed, stopped=before.stopped
            )

    def see(self, told: Fact | Effect) -> None:
        """Take in what was told, if it is about how far a table is."""
        match told:
            case SaveProgress():
                self._update((told.table,))
            case StoreSignal():
                self._asked[told.signal_id] = told
            case StoreKeys():
                self._asked[told.snapshot_id] = told
            case SignalStored():
                self._stored(told.signal_id, is_new=told.is_new)
            case KeysStored():
                self._stored(told.snapshot_id, is_new=True)
            case UnfinishedRead():
                self._add(table for table in told.tables if not table.has_ended)
            case _:
                pass

    def _stored(self, asked: str, *, is_new: bool) -> None:
        order = self._asked.pop(asked, None)
        if order is None or not is_new:
            return
        self._add(order.tables)
        if isinstance(order, StoreSignal):
            self._add(t for t in order.changed if _name(t) not in self._open)
            self._update(order.changed)

    def _add(self, tables: Iterable[StoredTable]) -> None:
        added = tuple(tables)
        for table in added:
            self._open[_name(table)] = table.state
            self._dropped[_name(table)] = table.dropped
        self._update(added)

    def _update(self, tables: Iterable[StoredTable]) -> None:
        for table in tables:
            name = _name(table)
            if name not in self._open:
                continue
            if table.rows:
                known = table.collection in self._stats.tables
                self._rows[table.collection if known else OTHER] = table.rows
            self._stats.snapshot_dropped_rows += table.dropped - self._dropped[name]
            self._dropped[name] = table.dropped
            if table.has_ended:
                del self._open[name], self._dropped[name]
                self._began_s.pop(name, None)
                self._ended[table.state] += 1
            else:
                self._open[name] = table.state
                if table.state == _RUNNING:
                    self._began_s.setdefault(name, self._clock.monotonic_s())
        self._show()

    def _show(self) -> None:
        states = Counter(self._open.values())
        running, paused = states[_RUNNING], states[_PAUSED]
        self._stats.snapshot = SnapshotProgress(
            waiting=len(self._open) - running - paused,
            running=running,
            completed=self._ended["completed"],
            failed=self._ended["failed"],
            stopped=self._ended["stopped"],
            incomplete=self._ended["incomplete"],
            paused=paused,
            rows=dict(self._rows),
            started_at_s=min(self._began_s.values(), default=None),
        )


def _name(table: StoredTable) -> Name:
    return table.snapshot_id, table.collection


_LOG = structlog.get_logger("towpath.relay")

REFUSED: Final = "a signal that was left outside towpath.signal was refused"


class ExternalSignals:
    """
    Between the stream, the inbox and the notifications topic.

    Call order: ``see`` for each change of the bare table, ``turn`` in each turn of the
    loop.
    """

    def __init__(
        self, context: LoopContext, inbox: Inbox, refusals: deque[SignalRefusal]
    ) -> None:
        """
        Prepare.

        Args:
            context: The loop's context.
            inbox: Takes the signals.
            refusals: Refused signals of every channel, added from any thread.
        """
        self._context = context
        self._inbox = inbox
        self._refusals = refusals

    def see(self, change: Change) -> None:
        """Hand a new row over; its open transaction waits until that is durable."""
        if change.operation is not Operation.CREATE:
            return
        names = [column.name for column in change.relation.columns]
        row = dict(zip(names, change.new or (), strict=True))
        signal_id, kind, data = (
            _text(row.get(name)) for name in ("id", "type", "data")
        )
        if kind in WINDOW_TYPES:
            return
        name = self._inbox.put(signal_id, kind, data, change.relation.name)
        if name is not None:
            self._context.ledger.hold(name)

    def turn(self) -> None:
        """Let go of what is durable, and tell of what was refused."""
        for name in self._inbox.durable():
            self._context.ledger.release(name)
        while self._refusals:
            self._report_refusal(self._refusals.popleft())

    def _report_refusal(self, refusal: SignalRefusal) -> None:
        context = self._context
        _LOG.warning("signal refused", **refusal._asdict())
        context.stats.skip(REFUSED)
        detail = {"reason": refusal.reason, "source": refusal.source}
        told = notifications.answered(refusal.signal_id, "rejected", detail)
        context.publisher.publish_unordered(
            notification(
                context.router.place.prefix,
                told.snapshot_id,
                told.type,
                told.additional_data,
                context.now_us() // 1000,
                told.aggregate_type,
            )
        )


def _text(value: object) -> str | None:
    """Return a column's text; the stream is in UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None


# How stale the confirmed position may be for want of knowing what is visible. One
# query of a few microseconds each; ten times rarer only keeps log for longer.
PROBE_INTERVAL_S: Final = 0.1

# The driver counts time by ticks; its own pace is no finer.
TICK_INTERVAL_S: Final = 0.02

# A stream that has brought nothing for so long is not behind: all of it was read.
RECENTLY_US: Final = 1_000_000

# A slice is the least that goes out at once: about a millisecond. A quarter of it costs
# a fourth of a snapshot's speed; long rows make it shorter (``window.PART_BYTES``).
SLICE_ROWS: Final = 256

# How long slices go out before the stream is looked at again: what a live change waits
# for a snapshot. Half of it costs a tenth of a snapshot's speed.
EMIT_S: Final = 0.003

# While more than this is on its way to Kafka no rows go out: live changes stand in the
# same queue. The first is for a stream that carries changes; on a quiet one the second
# lets Kafka work while we do, which is a third more rows a second.
MAX_AHEAD_BYTES: Final = 512 * 1024
MAX_AHEAD_ALONE_BYTES: Final = 4 * 1024 * 1024

# A stream without a change for so long is quiet: some requests' time, and short enough
# that no pause between two bursts is missed.
QUIET_AFTER_S: Final = 1.0

# But a slice goes out so often, however much of the stream is on its way: a snapshot
# beside a backlog is slow and does not stand still.
MAX_PAUSE_S: Final = 0.02

# How long the loop waits for the stream meanwhile, instead of turning for nothing.
AHEAD_PATIENCE_S: Final = 0.0005

# While more than this of requested keys waits to be stored the stream is not read: a
# mass update is streamed faster than a slow source may store what it asks for.
MAX_REQUESTED_BYTES: Final = 16 * 1024 * 1024


class SnapshotRunner:
    """Tells the driver what happens, and does what it answers."""

    def __init__(
        self,
        context: LoopContext,
        driver: SnapshotDriver,
        reader: SnapshotReader,
        emission: SnapshotPublisher,
        left: ExternalSignals | None = None,
    ) -> None:
        self.left = left
        self.recorders = driver.recorders.tables
        self.aggregates = driver.recorders.aggregates
        self.reordered = driver.recorders.reordered
        self._context = context
        self._snapshot_stats = SnapshotStats(context.stats, context.clock)
        self._driver = driver
        self._reader = reader
        self._is_probing = False
        self._probed_at_s = float("-inf")
        self._ticked_at_s = float("-inf")
        self._let_out_at_s = float("-inf")
        self._max_ahead_bytes = MAX_AHEAD_BYTES
        self._changes = 0
        self._changed_at_s = float("-inf")
        self._emission = emission
        self._requested_bytes: dict[str, int] = {}
        self._refused: deque[RowsRefused] = deque()
        self._acknowledged: deque[tuple[int, int]] = deque()

    @property
    def is_active(self) -> bool:
        """Whether any snapshot is queued or running: the loop's one question."""
        return self._driver.is_active

    @property
    def has_ready(self) -> bool:
        """Whether rows wait to go out: the loop should not sleep at all."""
        return self._driver.has_ready

    @property
    def patience_s(self) -> float:
        """How long the loop may wait for the stream while rows wait to go out."""
        return AHEAD_PATIENCE_S if self._is_ahead else 0.0

    @property
    def _is_ahead(self) -> bool:
        return self._context.ledger.in_flight_bytes >= self._max_ahead_bytes

    @property
    def holds_stream(self) -> bool:
        """Whether the stream must not be read: tables are read in one view."""
        return self._driver.holds_stream

    @property
    def is_full(self) -> bool:
        """Whether the stream should not be read until requests are stored."""
        return sum(self._requested_bytes.values()) >= MAX_REQUESTED_BYTES

    def complete_key(self, relation: Relation, key: Key, position: Position) -> None:
        """
        Ask for a row that came to a new key with columns left out.

        The open transaction is held until that is stored. Call order: for each such
        change, also when Kafka has its records already.

        Args:
            relation: The row's table.
            key: The raw text of its new key, in key order.
            position: The change's own.
        """
        request = self._driver.request_key(relation, key, position)
        if request is not None:
            self._context.ledger.hold(request)

    def resume(self) -> None:
        """Take up what is stored. Call order: before the first stream message."""
        self.tell(self._reader.read_stored())

    def tell(self, fact: Fact) -> None:
        """Tell the driver, and do what it wants done."""
        self._snapshot_stats.see(fact)
        for effect in self._driver.on(fact):
            self._snapshot_stats.see(effect)
            self._perform(effect)
        while self._refused:
            self.tell(self._refused.popleft())

    def turn(self, now_s: float) -> None:
        """Bring facts that came in the meantime; ask for some; let rows out."""
        context = self._context
        if self.left is not None:
            self.left.turn()
        for fact in self._reader.facts():
            self._note(fact)
            self.tell(fact)
        # The turn after the last one says that nothing yields any more.
        if self._driver.is_active or context.stats.yielding:
            self._advance(now_s)
        if context.invisible.count and now_s - self._probed_at_s >= PROBE_INTERVAL_S:
            self.probe(now_s)

    def _advance(self, now_s: float) -> None:
        """Take the active snapshots a step further."""
        self._report_delivered()
        if self._driver.is_busy and now_s - self._ticked_at_s >= TICK_INTERVAL_S:
            self._ticked_at_s = now_s
            self.tell(Tick(now_s, self._lag_s()))
        self._context.stats.snapshots_yield(self._driver.yields_because)
        self._emit()

    def _lag_s(self) -> float:
        """Return how old the newest transaction was when it was read, just now."""
        stats, now_us = self._context.stats, self._context.now_us()
        newest = stats.last_transaction
        if newest is None or now_us - stats.last_read_us > RECENTLY_US:
            return 0.0
        return stats.source_clock.since_s(newest.committed_us, stats.last_read_us)

    def _report_delivered(self) -> None:
        """Tell of chunks that Kafka has, acknowledged and visible."""
        publisher = self._context.publisher
        for chunk_id in self._context.ledger.take_delivered():
            self._acknowledged.append((publisher.commits, chunk_id))
        while self._acknowledged:
            commits, chunk_id = self._acknowledged[0]
            if publisher.needs_commit and publisher.commits <= commits:
                break
            self._acknowledged.popleft()
            self.tell(Delivered(chunk_id))

    def _note(self, fact: Fact) -> None:
        """Take from a fact what concerns the loop itself."""
        match fact:
            case SignalStored():
                self._context.ledger.release(fact.signal_id)
            case KeysStored():
                self._context.ledger.release(fact.snapshot_id)
                del self._requested_bytes[fact.snapshot_id]
            case VisibilityRead():
                self._is_probing = False
            case _:
                pass

    def _emit(self) -> None:
        """Emit rows for a few milliseconds, unless enough of them is on its way."""
        if not self._driver.has_ready:
            return
        context = self._context
        now_s = context.clock.monotonic_s()
        self._note_changes(now_s)
        if self._is_ahead and now_s - self._let_out_at_s < MAX_PAUSE_S:
            return
        while self._driver.has_ready:
            self._let_out_at_s = context.clock.monotonic_s()
            self.tell(EmitAllowed(SLICE_ROWS))
            if self._is_ahead or context.clock.monotonic_s() >= now_s + EMIT_S:
                break
        context.publisher.flush()
        context.publisher.poll(0)

    def _note_changes(self, now_s: float) -> None:
        """Bound what is on its way by whether changes wait behind it."""
        if self._context.stats.changes != self._changes:
            self._changes = self._context.stats.changes
            self._changed_at_s = now_s
        is_quiet = now_s - self._changed_at_s > QUIET_AFTER_S
        self._max_ahead_bytes = MAX_AHEAD_ALONE_BYTES if is_quiet else MAX_AHEAD_BYTES

    def probe(self, now_s: float) -> None:
        """Ask which transactions are visible, unless an answer is on its way."""
        if not self._is_probing:
            self._is_probing = True
            self._probed_at_s = now_s
            self._reader.submit(ProbeVisibility())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case EmitRows():
                undelivered = self._emission.rows(effect)
                if undelivered:
                    fact = RowsRefused(effect.chunk_id, tuple(undelivered))
                    self._refused.append(fact)
            case Notify():
                self._notify(effect)
            case EmitSweep():
                self._emission.sweep(effect)
            case StoreKeys():
                self._requested_bytes[effect.snapshot_id] = effect.size_bytes
                self._reader.submit(effect)
            case _:
                self._reader.submit(effect)

    def _notify(self, effect: Notify) -> None:
        context = self._context
        record = notification(
            context.router.place.prefix,
            effect.snapshot_id,
            effect.type,
            effect.additional_data,
            context.now_us() // 1000,
            effect.aggregate_type,
        )
        context.publisher.publish_unordered(record)
