"""
The snapshot driver: answers signals, queues snapshots and runs the queues.

The driver is pure: ``on`` takes a fact and returns effects, which the loop performs or
hands to the worker. A signal that is already stored and is streamed again after a
crash starts nothing: the unfinished tables come from ``UnfinishedRead``. The same holds
for key requests (``key_requests``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from towpath.relay.snapshot.changed_keys import ChangedKeyFeeds
from towpath.relay.snapshot.key_requests import KeyRequests
from towpath.relay.snapshot.naming import Registration
from towpath.relay.snapshot.pace import Throttle
from towpath.relay.snapshot.protocol import (
    Effect,
    Fact,
    KeysStored,
    LoadRead,
    ProbeLoad,
    ProbeVisibility,
    SignalClaimed,
    SignalSeen,
    SignalStored,
    SnapshotTablesRead,
    StoreKeys,
    TablesInspected,
    Tick,
    UnfinishedRead,
    VisibilityRead,
)
from towpath.relay.snapshot.queue import SnapshotQueue
from towpath.relay.snapshot.run import QueuePolicy, SnapshotLimits, SnapshotRun
from towpath.relay.snapshot.scan_context import ConsistentPoints, WatermarkTokens
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.signal_processor import AcceptedSignal, SignalProcessor
from towpath.relay.snapshot.stored import BLOCKING, INCREMENTAL, INITIAL, StoredTable
from towpath.relay.snapshot.table_scan import ScanServices
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.wal.messages import Relation
from towpath.schemas.position import Position

# The number of tiny tables begun in addition to those being read. Each waits for about
# ten round trips; twice as many tables gain nothing, since the workers are then busy.
TINY_AHEAD: Final = 8

# The interval of probes while a signal or scan waits for a transaction to become
# visible. A commit is rarely invisible for longer than its flush, so a shorter interval
# gains little; one ten times as long delays the start of every snapshot noticeably.
PROBE_INTERVAL_S: Final = 0.02

# The interval at which the source's load is probed.
LOAD_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SnapshotScope:
    """
    The collections that may be read, and the sinks that may receive them.

    Attributes:
        captured: The collections that can be read, updated by another thread.
        sinks: Returns the names of the current sinks, which a signal may target.
        views: The aggregate type of each collection that is a view.
        slot_snapshots: The ids of snapshots that read the slot's exported snapshot.
        start_log_lsn: The start of the stream, which is the consistent point of these
            snapshots.
        relay: This relay's registration; None if no signal names a relay.
    """

    captured: Collection[str]
    sinks: Callable[[], Collection[str]]
    views: Mapping[str, str] = field(default_factory=dict)
    slot_snapshots: Collection[str] = ()
    start_log_lsn: int = 0
    relay: Registration | None = None


class SnapshotDriver:
    """
    All snapshots of one source.

    Attributes:
        is_active: Whether anything is queued, requested, being read or being stored. If
            not, ``has_ready`` and ``blocks_stream`` are false too and no ticks are
            needed, so the loop checks nothing else on an idle driver.
        changed_keys: The feeds of changed keys while tables are read.
        requests: The key requests, until their batches have ended.
    """

    def __init__(
        self,
        invisible: InvisibleTransactions,
        *,
        scope: SnapshotScope,
        run_id: str,
        limits: SnapshotLimits,
        throttle: Throttle,
    ) -> None:
        """
        Create an idle driver.

        Args:
            invisible: The streamed transactions that may be invisible; the loop adds
                them.
            scope: The collections that may be read.
            run_id: Distinguishes this process's watermarks from those of earlier ones.
            limits: Bounds on memory and speed.
            throttle: The conditions under which the reading of whole tables yields.
        """
        self.changed_keys = ChangedKeyFeeds(scope.views)
        relay = scope.relay
        suffix = "" if relay is None else relay.suffix
        self.requests = KeyRequests(limits.batch_keys, suffix)
        self._scope = scope
        self._invisible = invisible
        self._throttle = throttle
        name = None if relay is None else relay.name
        self._signal_processor = SignalProcessor(scope.captured, scope.sinks, name)
        points = ConsistentPoints(scope.slot_snapshots, scope.start_log_lsn)
        services = ScanServices(invisible, self.requests, WatermarkTokens(run_id))

        def queue(policy: QueuePolicy) -> SnapshotQueue:
            return SnapshotQueue(services, limits, self.changed_keys, points, policy)

        self._key_requests = queue(QueuePolicy("key requests", 1))
        self._listed_keys = queue(QueuePolicy("listed keys", 1))
        self._whole_tables = queue(
            QueuePolicy("whole tables", limits.readers, throttle, TINY_AHEAD)
        )
        # Whole tables come last: their scans end only after the key requests have.
        self._queues = (self._key_requests, self._listed_keys, self._whole_tables)
        self._storing: dict[str, tuple[StoredTable, ...]] = {}
        self.is_active = False
        self._now_s = 0.0
        self._probed_at_s = float("-inf")
        self._is_probing = False
        self._load_probed_at_s = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether ticks are needed."""
        if not (self._signal_processor.is_empty and self.requests.is_empty):
            return True
        return any(queue.is_busy for queue in self._queues)

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be deduplicated and emitted."""
        return any(queue.has_ready for queue in self._queues)

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream must wait while an exported snapshot is read."""
        return any(queue.blocks_stream for queue in self._queues)

    @property
    def yield_reason(self) -> str:
        """The reason why the reading of whole tables yields; empty if it does not."""
        return self._throttle.reason if self._whole_tables.is_busy else ""

    def on(self, fact: Fact) -> list[Effect]:
        """Process a fact and return the effects."""
        effects = self._handle(fact)
        for queue in self._queues:
            effects += queue.on(fact)
            self._end_batches(queue.take_ended())
        effects += self._store_requests()
        effects += self._probe_load()
        effects += self._probe_visibility(effects)
        self.is_active = self.is_busy or bool(self._storing)
        return effects

    def request_key(
        self, relation: Relation, key: Key, position: Position
    ) -> str | None:
        """
        Request a row that the stream does not carry in full.

        Returns:
            The batch that must be stored before the open transaction is confirmed; None
            if the transaction already waits for it, or the request is already stored.
        """
        self.is_active = True
        return self.requests.add(relation, key, position)

    def _handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Tick() | LoadRead():
                self._update_throttle(fact)
            case SignalSeen():
                self._signal_processor.add(fact)
            case SignalClaimed():
                return self._signal_processor.claimed(fact, self._open_tables())
            case (
                VisibilityRead()
                | TablesInspected()
                | SnapshotTablesRead()
                | SignalStored()
            ):
                return self._answer(fact)
            case KeysStored():
                self._add(self._storing.pop(fact.snapshot_id))
            case UnfinishedRead():
                self._resume(fact)
            case _:
                pass
        return []

    def _update_throttle(self, fact: Tick | LoadRead) -> None:
        if isinstance(fact, LoadRead):
            self._throttle.active_sessions = fact.active_sessions
        else:
            self._now_s = fact.now_s
            self._throttle.lag_s = fact.lag_s

    # Signals -------------------------------------------------------------------

    def _answer(
        self, fact: VisibilityRead | TablesInspected | SnapshotTablesRead | SignalStored
    ) -> list[Effect]:
        """Advance a signal's answer, or run a signal whose answer is stored."""
        match fact:
            case VisibilityRead():
                self._is_probing = False
                self._invisible.observe(fact.snapshot)
                return self._signal_processor.begin_answer(
                    fact.snapshot, self._open_tables()
                )
            case TablesInspected():
                return self._signal_processor.inspected(fact)
            case SnapshotTablesRead():
                return self._signal_processor.tables_read(fact, self._open_tables())
            case SignalStored():
                return self._accept(fact)

    def _accept(self, fact: SignalStored) -> list[Effect]:
        accepted = self._signal_processor.stored(fact)
        if accepted is None:
            return []
        self._add(accepted.tables)
        effects: list[Effect] = [*accepted.notices]
        reason = f"stopped by signal {fact.signal_id}"
        for queue in (self._listed_keys, self._whole_tables):
            for table in accepted.stops:
                effects += queue.stop(table, reason)
            for table in accepted.pauses:
                effects += queue.pause(table)
        return effects + self._resume_tables(accepted)

    def _resume_tables(self, accepted: AcceptedSignal) -> list[Effect]:
        """Resume tables that were paused, or have ended, from their last progress."""
        resumed = map(_unloaded, accepted.resumes)
        siblings = tuple(map(_unloaded, accepted.siblings))
        effects: list[Effect] = []
        by_snapshot = sorted(resumed, key=lambda table: table.snapshot_id)
        for _, group in groupby(by_snapshot, lambda table: table.snapshot_id):
            tables = tuple(group)
            effects += self._queue_of(tables).resume(tables, siblings)
        return effects

    def _open_tables(self) -> list[StoredTable]:
        """Return the tables that can be stopped; those of key requests cannot."""
        return self._whole_tables.open_tables() + self._listed_keys.open_tables()

    # Queueing of stored tables ---------------------------------------------------

    def _add(self, tables: Iterable[StoredTable]) -> None:
        for _, group in groupby(tables, key=lambda table: table.snapshot_id):
            unloaded = tuple(map(_unloaded, group))
            self._queue_of(unloaded).add(unloaded)

    def _queue_of(self, tables: Iterable[StoredTable]) -> SnapshotQueue:
        first, *_ = tables
        if first.asked_until is not None:
            return self._key_requests
        is_whole = first.asked_keys is None
        return self._whole_tables if is_whole else self._listed_keys

    def _resume(self, fact: UnfinishedRead) -> None:
        self.requests.resume(fact.asked_until, fact.failed_requests)
        for snapshot_id, group in groupby(fact.tables, lambda table: table.snapshot_id):
            tables = tuple(
                self._without_lost_export(snapshot_id, table) for table in group
            )
            if tables[0].asked_until is not None:
                self.requests.resume_batch(tables)
            self._add(tables)

    def _without_lost_export(self, snapshot_id: str, table: StoredTable) -> StoredTable:
        """Return a table, changed to another kind if the slot's snapshot is lost."""
        has_export = snapshot_id in self._scope.slot_snapshots
        if table.kind != INITIAL or has_export:
            return table
        return table._replace(kind=BLOCKING if table.condition else INCREMENTAL)

    def _end_batches(self, ended: Iterable[SnapshotRun]) -> None:
        """Record that batches of key requests have ended."""
        for run in ended:
            if run.tables[0].asked_until is not None:
                self.requests.end_batch(run.tables)

    def _store_requests(self) -> list[StoreKeys]:
        effects: list[StoreKeys] = []
        while (batch := self.requests.next_batch(self._now_s)) is not None:
            tables = tuple(map(_unloaded, batch.tables))
            self._storing[batch.snapshot_id] = tables
            effects.append(batch)
        return effects

    # Periodic probes of the source -----------------------------------------------

    def _probe_load(self) -> list[ProbeLoad]:
        """Probe the source's load while it may throttle the reading of whole tables."""
        if not (self._throttle.max_active_sessions and self._whole_tables.is_busy):
            return []
        if self._now_s - self._load_probed_at_s < LOAD_INTERVAL_S:
            return []
        self._load_probed_at_s = self._now_s
        return [ProbeLoad()]

    def _probe_visibility(self, effects: Iterable[Effect]) -> list[Effect]:
        """Probe visibility while a scan or signal waits for it, one probe at a time."""
        if any(isinstance(effect, ProbeVisibility) for effect in effects):
            self._is_probing = True
        is_waiting = any(queue.is_waiting for queue in self._queues)
        if self._is_probing or not (
            is_waiting or self._signal_processor.waits_for_visibility
        ):
            return []
        if self._now_s - self._probed_at_s < PROBE_INTERVAL_S:
            return []
        self._probed_at_s = self._now_s
        self._is_probing = True
        return [ProbeVisibility()]


def _unloaded(table: StoredTable) -> StoredTable:
    """Return a table without its listed keys, which are loaded with its plan."""
    return table if table.asked_keys is None else table._replace(pending_keys=None)
