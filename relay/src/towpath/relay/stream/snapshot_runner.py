"""
Runs the snapshot driver inside the loop: facts in, effects out.

Rows, sweeps and notifications are produced immediately, in stream order. The worker
performs the other effects; its results are facts of a later turn.

A chunk is emitted in slices, a few milliseconds of them in each turn of the loop, so
that live changes pass in between. The window evicts rows until their slice is emitted.

``SnapshotStats`` counts a table from the moment its signal, or the relay's own request,
is stored; its end is counted once. Counters live as long as the process, even when the
end of a session interrupts a scan that is resumed later.

External signals are rows of a second signal table. ``SignalStore`` copies each into
``towpath.signal``; until then its transaction is not confirmed, so that a restart
streams it again. A refused signal is counted and published as a notification, since no
row of ``towpath.signal`` can hold its answer.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from towpath.relay.encode.notifications import notification
from towpath.relay.ports import SignalStore, SnapshotReader
from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.driver import SnapshotDriver
from towpath.relay.snapshot.protocol import (
    Delivered,
    Effect,
    EmitAllowed,
    EmitRows,
    EmitSweep,
    Fact,
    KeysStored,
    Notify,
    ProbeVisibility,
    RowsRefused,
    SaveProgress,
    SignalStored,
    StoreKeys,
    StoreSignal,
    Tick,
    UnfinishedRead,
    VisibilityRead,
)
from towpath.relay.snapshot.signals import WINDOW_TYPES, SignalRefusal
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.stats import SnapshotProgress, Stats
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.snapshot_publisher import SnapshotPublisher
from towpath.relay.wal.transactions import Change
from towpath.schemas.clock import Clock
from towpath.schemas.envelope import Operation

# The label of rows that belong to no captured table, such as events of the outbox.
OTHER: Final = "other"

_RUNNING: Final = "running"
_PAUSED: Final = "paused"

Name = tuple[str, str]


def _ignore(_table: StoredTable) -> None:
    pass


class SnapshotStats:
    """Updates ``stats.snapshot`` and counts dropped rows, from facts and effects."""

    def __init__(
        self,
        stats: Stats,
        clock: Clock,
        on_table: Callable[[StoredTable], None] = _ignore,
    ) -> None:
        """
        Continue from the counters of the process.

        Args:
            stats: The counters.
            clock: The source of the current time.
            on_table: Called with each table of a snapshot whose progress changes.
        """
        self._on_table = on_table
        self._stats = stats
        self._clock = clock
        self._storing: dict[str, StoreSignal | StoreKeys] = {}
        self._open: dict[Name, str] = {}
        self._dropped: dict[Name, int] = {}
        self._began_s: dict[Name, float] = {}
        before = stats.snapshot
        self._rows = stats.collection_rows
        self._ended = Counter[str]()
        if before is not None:
            self._ended.update(
                completed=before.completed,
                failed=before.failed,
                stopped=before.stopped,
                incomplete=before.incomplete,
            )

    def observe(self, step: Fact | Effect) -> None:
        """Count a fact or an effect that concerns the progress of tables."""
        match step:
            case SaveProgress():
                self._update((step.table,))
            case StoreSignal():
                self._storing[step.signal_id] = step
            case StoreKeys():
                self._storing[step.snapshot_id] = step
            case SignalStored():
                self._stored(step.signal_id, is_new=step.is_new)
            case KeysStored():
                self._stored(step.snapshot_id, is_new=True)
            case UnfinishedRead():
                self._add(table for table in step.tables if not table.has_ended)
            case _:
                pass

    def _stored(self, request_id: str, *, is_new: bool) -> None:
        request = self._storing.pop(request_id, None)
        if request is None or not is_new:
            return
        self._add(request.tables)
        if isinstance(request, StoreSignal):
            self._add(t for t in request.changed if _name(t) not in self._open)
            self._update(request.changed)

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
            self._on_table(table)
            if table.rows:
                self._rows[table.collection] = table.rows
            counted = self._dropped[name]
            if table.dropped < counted:
                # It is read again from its first row, and counts from zero.
                counted = 0
            self._stats.snapshot_dropped_rows += table.dropped - counted
            self._dropped[name] = table.dropped
            if table.has_ended:
                del self._open[name], self._dropped[name]
                self._began_s.pop(name, None)
                self._ended[table.state] += 1
            else:
                self._open[name] = table.state
                if table.state == _RUNNING:
                    self._began_s.setdefault(name, self._clock.monotonic_s())
        self._publish()

    def _publish(self) -> None:
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
            rows=self._labeled_rows(),
            started_at_s=min(self._began_s.values(), default=None),
        )

    def _labeled_rows(self) -> dict[str, int]:
        """Return the rows of each captured table, and the sum of all others."""
        captured, labeled = frozenset(self._stats.tables), Counter[str]()
        for collection, rows in self._rows.items():
            labeled[collection if collection in captured else OTHER] += rows
        return dict(labeled)


def _name(table: StoredTable) -> Name:
    return table.snapshot_id, table.collection


_LOG = structlog.get_logger("towpath.relay")

REFUSED: Final = "a signal from outside towpath.signal was refused"


class ExternalSignals:
    """
    Copies external signals into the signal store, and publishes refusals.

    Call order: ``handle`` for each change to the external table, ``turn`` in each turn
    of the loop.
    """

    def __init__(
        self, context: LoopContext, store: SignalStore, refusals: deque[SignalRefusal]
    ) -> None:
        """
        Create the handler.

        Args:
            context: The loop's context.
            store: Stores the signals.
            refusals: Refused signals of every channel, added from any thread.
        """
        self._context = context
        self._store = store
        self._refusals = refusals

    def handle(self, change: Change) -> None:
        """Copy an inserted signal; hold its transaction until the copy is durable."""
        if change.operation is not Operation.CREATE:
            return
        names = [column.name for column in change.relation.columns]
        row = dict(zip(names, change.new or (), strict=True))
        signal_id, kind, data = (
            _text(row.get(name)) for name in ("id", "type", "data")
        )
        if kind in WINDOW_TYPES:
            return
        name = self._store.put(signal_id, kind, data, change.relation.name)
        if name is not None:
            self._context.ledger.hold(name)

    def turn(self) -> None:
        """Release transactions whose signals are durable, and publish refusals."""
        for name in self._store.durable():
            self._context.ledger.release(name)
        while self._refusals:
            self._report_refusal(self._refusals.popleft())

    def _report_refusal(self, refusal: SignalRefusal) -> None:
        context = self._context
        _LOG.warning("signal refused", **refusal._asdict())
        context.stats.skip(REFUSED)
        detail = {"reason": refusal.reason, "source": refusal.source}
        _publish_notification(
            context, notifications.answered(refusal.signal_id, "rejected", detail)
        )


def _publish_notification(context: LoopContext, notify: Notify) -> None:
    record = notification(
        context.router.place.prefix,
        notify.snapshot_id,
        notify.type,
        notify.additional_data,
        context.now_us() // 1000,
        notify.aggregate_type,
    )
    context.publisher.publish_unordered(record)


def _text(value: object) -> str | None:
    """Return a column's text, which the stream sends in UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None


# How often visibility is read, and so how stale the confirmed LSN may be. A query costs
# a few microseconds; a longer interval would only retain more log.
PROBE_INTERVAL_S: Final = 0.1

# The driver measures time in ticks of this length.
TICK_INTERVAL_S: Final = 0.02

# A stream without a transaction for this long has no lag.
RECENTLY_US: Final = 1_000_000

# The number of rows in a slice, which takes two milliseconds: with half as many rows,
# the broker spends half as much again on each row. Long rows make a slice shorter
# (``window.SLICE_BYTES``).
SLICE_ROWS: Final = 512

# No slice begins later than this after the stream was read, so a live change waits at
# most this long plus one slice. With half this time, a snapshot is a tenth slower.
EMIT_S: Final = 0.003

# While this much is in flight, no rows are emitted: live changes wait in the same
# queue. The first limit applies while the stream carries changes: the broker can append
# one slice of 200-byte rows while the relay writes the next. With one slice at a time,
# a snapshot was a third slower, and live changes waited just as long. The second limit
# applies to a quiet stream, and is high enough to fill Kafka's batches.
MAX_AHEAD_BYTES: Final = 768 * 1024
MAX_AHEAD_ALONE_BYTES: Final = 4 * 1024 * 1024

# A stream without a change for this long is quiet. This is longer than a few requests
# take, and short enough to use the pause between two bursts.
QUIET_AFTER_S: Final = 1.0

# A slice is emitted at least this often, however much of the stream is in flight: a
# snapshot during a backlog is slow but does not stop.
MAX_PAUSE_S: Final = 0.02

# How long the loop waits for the stream while no slice may be emitted: it must not
# spin.
AHEAD_READ_TIMEOUT_S: Final = 0.0005

# While this many bytes of requested keys wait to be stored, the stream is not read: a
# mass update is streamed faster than a slow source can store its requests.
MAX_REQUESTED_BYTES: Final = 16 * 1024 * 1024


class SnapshotRunner:
    """Passes facts to the snapshot driver, and performs its effects."""

    def __init__(
        self,
        context: LoopContext,
        driver: SnapshotDriver,
        reader: SnapshotReader,
        publisher: SnapshotPublisher,
        external_signals: ExternalSignals | None = None,
    ) -> None:
        self.external_signals = external_signals
        self.table_feeds = driver.changed_keys.tables
        self.aggregates = driver.changed_keys.aggregates
        self.reordered = driver.changed_keys.reordered
        self._context = context
        self._snapshot_stats = SnapshotStats(
            context.stats, context.clock, context.on_snapshot
        )
        self._driver = driver
        self._reader = reader
        self._is_probing = False
        self._probed_at_s = float("-inf")
        self._ticked_at_s = float("-inf")
        self._emitted_at_s = float("-inf")
        self._is_quiet = False
        self._in_order_read = EmitAllowed(SLICE_ROWS)
        self._by_partition = EmitAllowed(SLICE_ROWS, publisher.partitions_of)
        self._changes = 0
        self._changed_at_s = float("-inf")
        self._publisher = publisher
        self._requested_bytes: dict[str, int] = {}
        self._refused: deque[RowsRefused] = deque()
        self._acknowledged: deque[tuple[int, int]] = deque()

    @property
    def is_active(self) -> bool:
        """Whether any snapshot is queued or running."""
        return self._driver.is_active

    @property
    def has_ready(self) -> bool:
        """Whether rows wait to be emitted; ``read_timeout_s`` then bounds the wait."""
        return self._driver.has_ready

    @property
    def read_timeout_s(self) -> float:
        """How long the loop may wait for the stream while rows wait to be emitted."""
        return AHEAD_READ_TIMEOUT_S if self._is_ahead else 0.0

    @property
    def _is_ahead(self) -> bool:
        limit_bytes = MAX_AHEAD_ALONE_BYTES if self._is_quiet else MAX_AHEAD_BYTES
        return self._context.ledger.in_flight_bytes >= limit_bytes

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream pauses while tables are read from an exported snapshot."""
        return self._driver.blocks_stream

    @property
    def is_full(self) -> bool:
        """Whether the stream should not be read until requests are stored."""
        return sum(self._requested_bytes.values()) >= MAX_REQUESTED_BYTES

    def resume(self) -> None:
        """Resume stored snapshots. Call order: before the first stream message."""
        self.handle(self._reader.read_stored())

    def handle(self, fact: Fact) -> None:
        """Pass a fact to the driver, and perform the effects that it returns."""
        self._snapshot_stats.observe(fact)
        for effect in self._driver.on(fact):
            self._snapshot_stats.observe(effect)
            self._perform(effect)
        while self._refused:
            self.handle(self._refused.popleft())

    def turn(self, now_s: float) -> None:
        """Handle the worker's facts; emit rows; read visibility if that is due."""
        context = self._context
        if self.external_signals is not None:
            self.external_signals.turn()
        for fact in self._reader.facts():
            self._apply(fact)
            self.handle(fact)
        # One turn after the last snapshot, ``yielding`` is reset.
        if self._driver.is_active or context.stats.yielding:
            self._advance(now_s)
        if now_s - self._probed_at_s >= PROBE_INTERVAL_S and context.invisible.count:
            self.probe(now_s)

    def _advance(self, now_s: float) -> None:
        """Advance the active snapshots by one turn."""
        self._report_delivered()
        if self._driver.is_busy and now_s - self._ticked_at_s >= TICK_INTERVAL_S:
            self._ticked_at_s = now_s
            self.handle(Tick(now_s, self._lag_s()))
        self._context.stats.snapshots_yield(self._driver.yield_reason)
        self._emit()

    def _lag_s(self) -> float:
        """Return the newest transaction's age when it was read; 0 if none is recent."""
        stats, now_us = self._context.stats, self._context.now_us()
        newest = stats.last_transaction
        if newest is None or now_us - stats.last_read_us > RECENTLY_US:
            return 0.0
        return stats.source_clock.since_s(newest.committed_us, stats.last_read_us)

    def _report_delivered(self) -> None:
        """Pass on the chunks whose records are acknowledged and visible in Kafka."""
        sender = self._context.sender
        for chunk_id in self._context.ledger.take_delivered():
            self._acknowledged.append((sender.commits, chunk_id))
        while self._acknowledged:
            commits, chunk_id = self._acknowledged[0]
            if sender.needs_commit and sender.commits <= commits:
                break
            self._acknowledged.popleft()
            self.handle(Delivered(chunk_id))

    def _apply(self, fact: Fact) -> None:
        """Apply a fact to the loop's own state."""
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
        """Emit rows for a few milliseconds, unless enough bytes are in flight."""
        if not self._driver.has_ready:
            return
        context = self._context
        now_s = context.clock.monotonic_s()
        self._note_changes(now_s)
        if self._is_ahead and now_s - self._emitted_at_s < MAX_PAUSE_S:
            return
        # On a quiet stream, Kafka's client fills its batches even if rows are not
        # grouped.
        allowed = self._in_order_read if self._is_quiet else self._by_partition
        while self._driver.has_ready:
            self._emitted_at_s = context.clock.monotonic_s()
            self.handle(allowed)
            if self._is_ahead or context.clock.monotonic_s() >= now_s + EMIT_S:
                break
        context.publisher.flush()
        context.sender.poll(0)

    def _note_changes(self, now_s: float) -> None:
        """Note whether the stream has carried changes lately."""
        if self._context.stats.changes != self._changes:
            self._changes = self._context.stats.changes
            self._changed_at_s = now_s
        self._is_quiet = now_s - self._changed_at_s > QUIET_AFTER_S

    def probe(self, now_s: float) -> None:
        """Read which transactions are visible, unless a read is in progress."""
        if not self._is_probing:
            self._is_probing = True
            self._probed_at_s = now_s
            self._reader.submit(ProbeVisibility())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case EmitRows():
                undelivered = self._publisher.rows(effect)
                if undelivered:
                    fact = RowsRefused(effect.chunk_id, tuple(undelivered))
                    self._refused.append(fact)
            case Notify():
                _publish_notification(self._context, effect)
            case EmitSweep():
                self._publisher.sweep(effect)
            case StoreKeys():
                self._requested_bytes[effect.snapshot_id] = effect.size_bytes
                self._reader.submit(effect)
            case _:
                self._reader.submit(effect)
