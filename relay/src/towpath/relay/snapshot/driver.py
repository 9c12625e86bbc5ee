"""
The snapshot driver: what is asked for is queued and carried out, track by track.

Decide, do not do: ``on`` takes a fact and answers with effects, which the loop performs
or hands to the worker. A signal that was stored before and is streamed again after a
crash starts nothing: ``UnfinishedRead`` brings the unfinished tables. The same holds
for the rows that the relay itself requests (``key_requests``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from towpath.relay.snapshot.changed_keys import ChangedKeyFeeds
from towpath.relay.snapshot.effects import (
    Effect,
    ProbeLoad,
    ProbeVisibility,
    StoreKeys,
)
from towpath.relay.snapshot.facts import (
    EndedRead,
    Fact,
    KeysStored,
    LoadRead,
    SignalClaimed,
    SignalSeen,
    SignalStored,
    TablesInspected,
    Tick,
    UnfinishedRead,
    VisibilityRead,
)
from towpath.relay.snapshot.key_requests import KeyRequests
from towpath.relay.snapshot.naming import Registration
from towpath.relay.snapshot.pace import Throttle
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

# While something waits for a transaction to become visible. A commit is rarely
# invisible for longer than its flush, so more often gains little; ten times rarer is
# felt at the start of every snapshot.
# How many tiny tables are begun beside those that are read. Each waits for about ten
# round trips: twice as many gained nothing, since readers and clerk are busy by then.
TINY_AHEAD: Final = 8

PROBE_INTERVAL_S: Final = 0.02

# How often the source is asked how busy it is: sooner than its load changes for long.
LOOK_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SnapshotScope:
    """
    The collections that may be read, and their sinks.

    Attributes:
        captured: The collections that can be read, as of each look at it.
        sinks: Names the sinks as of now: what a signal's target may be.
        views: The aggregate type of each collection that is a view.
        lent: Snapshots whose one view of the database was made with the slot.
        start_log_lsn: Where the stream begins, and so where those views stand.
        relay: How this relay is registered; None: no signal names one.
    """

    captured: Collection[str]
    sinks: Callable[[], Collection[str]]
    views: Mapping[str, str] = field(default_factory=dict)
    lent: Collection[str] = ()
    start_log_lsn: int = 0
    relay: Registration | None = None


class SnapshotDriver:
    """
    Every snapshot of one source.

    Attributes:
        is_active: Whether anything is queued, read, asked for or being stored. False
            means that ``has_ready`` and ``holds_stream`` are false too, and that no
            ticks are wanted: the loop asks nothing else of an idle driver.
        recorders: The feeds of changed keys while tables are read.
        requests: Rows that the stream does not carry whole, until they are stored.
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
        Wire the driver.

        Args:
            invisible: The streamed transactions that may be invisible; the loop adds.
            scope: The collections that may be read.
            run_id: Tells this process's watermarks from those of dead ones.
            limits: Bounds of memory and speed.
            throttle: When reading yields.
        """
        self.recorders = ChangedKeyFeeds(scope.views)
        relay = scope.relay
        suffix = "" if relay is None else relay.suffix
        self.requests = KeyRequests(limits.batch_keys, suffix)
        self._scope = scope
        self._invisible = invisible
        self._throttle = throttle
        name = None if relay is None else relay.name
        self._signal_processor = SignalProcessor(scope.captured, scope.sinks, name)
        self._freezes = ConsistentPoints(scope.lent, scope.start_log_lsn)
        services = ScanServices(invisible, self.requests, WatermarkTokens(run_id))

        def track(way: QueuePolicy) -> SnapshotQueue:
            return SnapshotQueue(services, limits, self.recorders, self._freezes, way)

        self._own = track(QueuePolicy(1, None, self._end_batch))
        self._listed = track(QueuePolicy(1, None, _ignored))
        self._whole = track(QueuePolicy(limits.readers, throttle, _ignored, TINY_AHEAD))
        # Whole tables come last: they may end once the relay's own requests have.
        self._tracks = (self._own, self._listed, self._whole)
        self._storing: dict[str, tuple[StoredTable, ...]] = {}
        self.is_active = False
        self._now_s = 0.0
        self._probed_at_s = float("-inf")
        self._is_probing = False
        self._looked_at_s = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether ticks are wanted."""
        is_running = any(track.is_busy for track in self._tracks)
        return is_running or not (
            self._signal_processor.is_empty and self.requests.is_empty
        )

    @property
    def has_ready(self) -> bool:
        """Whether turns are wanted: there are rows to be judged and emitted."""
        return any(track.has_ready for track in self._tracks)

    @property
    def holds_stream(self) -> bool:
        """Whether the stream must not be read: tables are read in one view."""
        return any(track.holds_stream for track in self._tracks)

    @property
    def yields_because(self) -> str:
        """Why whole tables are not read on just now; empty: they are, or none is."""
        return self._throttle.reason if self._whole.is_busy else ""

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact and say what is to be done."""
        effects = self._take(fact)
        for track in self._tracks:
            effects += track.on(fact)
        effects += self._store_requests()
        effects += self._look()
        effects += self._probe(effects)
        self.is_active = self.is_busy or bool(self._storing)
        return effects

    def request_key(
        self, relation: Relation, key: Key, position: Position
    ) -> str | None:
        """
        Request a row that the stream does not carry whole.

        Returns:
            The batch that the open transaction must be held for until it is stored;
            None if it is held for it already, or the request is stored.
        """
        self.is_active = True
        return self.requests.ask(relation, key, position)

    def _take(self, fact: Fact) -> list[Effect]:
        match fact:
            case Tick() | LoadRead():
                self._take_load(fact)
            case SignalSeen():
                self._signal_processor.see(fact)
            case SignalClaimed():
                return self._signal_processor.claimed(fact, self._open_tables())
            case VisibilityRead() | TablesInspected() | EndedRead() | SignalStored():
                return self._answer(fact)
            case KeysStored():
                self._add(self._storing.pop(fact.snapshot_id))
            case UnfinishedRead():
                self._resume(fact)
            case _:
                pass
        return []

    def _take_load(self, fact: Tick | LoadRead) -> None:
        if isinstance(fact, LoadRead):
            self._throttle.active_sessions = fact.active_sessions
        else:
            self._now_s = fact.now_s
            self._throttle.lag_s = fact.lag_s

    # Signals -------------------------------------------------------------------

    def _answer(
        self, fact: VisibilityRead | TablesInspected | EndedRead | SignalStored
    ) -> list[Effect]:
        """Bring a signal a step nearer to its answer, or carry out what it asks."""
        match fact:
            case VisibilityRead():
                self._is_probing = False
                self._invisible.see(fact.snapshot)
                return self._signal_processor.answer(fact.snapshot, self._open_tables())
            case TablesInspected():
                return self._signal_processor.inspected(fact)
            case EndedRead():
                return self._signal_processor.ended(fact, self._open_tables())
            case SignalStored():
                return self._accept(fact)

    def _accept(self, fact: SignalStored) -> list[Effect]:
        accepted = self._signal_processor.stored(fact)
        if accepted is None:
            return []
        self._add(accepted.tables)
        effects: list[Effect] = [*accepted.notices]
        reason = f"stopped by signal {fact.signal_id}"
        for track in (self._listed, self._whole):
            for table in accepted.stops:
                effects += track.stop(table, reason)
            for table in accepted.pauses:
                effects += track.pause(table)
        return effects + self._go_on(accepted)

    def _go_on(self, accepted: AcceptedSignal) -> list[Effect]:
        """Let what was paused, or has ended, go on from where it was."""
        resumed = map(_unloaded, accepted.resumes)
        siblings = tuple(map(_unloaded, accepted.siblings))
        effects: list[Effect] = []
        by_snapshot = sorted(resumed, key=lambda table: table.snapshot_id)
        for _, group in groupby(by_snapshot, lambda table: table.snapshot_id):
            tables = tuple(group)
            effects += self._track_of(tables).resume(tables, siblings)
        return effects

    def _open_tables(self) -> list[StoredTable]:
        """Return what can be stopped: rows that the stream left incomplete cannot."""
        return self._whole.open_tables() + self._listed.open_tables()

    # What is stored, to its track ------------------------------------------------

    def _add(self, tables: Iterable[StoredTable]) -> None:
        for _, group in groupby(tables, key=lambda table: table.snapshot_id):
            unloaded = tuple(map(_unloaded, group))
            self._track_of(unloaded).add(unloaded)

    def _track_of(self, tables: Iterable[StoredTable]) -> SnapshotQueue:
        first, *_ = tables
        if first.asked_until is not None:
            return self._own
        return self._whole if first.asked_keys is None else self._listed

    def _resume(self, fact: UnfinishedRead) -> None:
        self.requests.resume(fact.asked_until)
        for snapshot_id, group in groupby(fact.tables, lambda table: table.snapshot_id):
            tables = tuple(self._released(snapshot_id, table) for table in group)
            if tables[0].asked_until is not None:
                self.requests.resume_batch(tables)
            self._add(tables)

    def _released(self, snapshot_id: str, table: StoredTable) -> StoredTable:
        """Read in chunks what the slot's own view was lost for."""
        if table.kind != INITIAL or snapshot_id in self._scope.lent:
            return table
        return table._replace(kind=BLOCKING if table.condition else INCREMENTAL)

    def _end_batch(self, run: SnapshotRun) -> None:
        self.requests.end_batch(run.tables)

    def _store_requests(self) -> list[StoreKeys]:
        effects: list[StoreKeys] = []
        while (batch := self.requests.take(self._now_s)) is not None:
            tables = tuple(map(_unloaded, batch.tables))
            self._storing[batch.snapshot_id] = tables
            effects.append(batch)
        return effects

    # What the source is asked now and then ---------------------------------------

    def _look(self) -> list[ProbeLoad]:
        """Ask how busy the source is, if that makes a difference."""
        if not (self._throttle.max_active_sessions and self._whole.is_busy):
            return []
        if self._now_s - self._looked_at_s < LOOK_INTERVAL_S:
            return []
        self._looked_at_s = self._now_s
        return [ProbeLoad()]

    def _probe(self, effects: Iterable[Effect]) -> list[Effect]:
        """Ask what is visible, if something waits for that and nobody has asked."""
        if any(isinstance(effect, ProbeVisibility) for effect in effects):
            self._is_probing = True
        is_waiting = any(track.is_waiting for track in self._tracks)
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
    """Leave listed keys where they are stored until it is their turn."""
    return table if table.asked_keys is None else table._replace(pending_keys=None)


def _ignored(_run: SnapshotRun) -> None:
    pass
