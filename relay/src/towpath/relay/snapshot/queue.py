"""
A queue of snapshots whose tables are read in order, some of them at the same time.

Several tracks read at the same time: whole tables, listed keys, and the keys that the
relay itself asks for, so that a few keys never wait behind a table of hours.

The tables of a run that is read in one view of the database all begin together, since
they share the mark behind which the stream stands still.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.changed_keys import ChangedKeyFeeds, ChangedKeys
from towpath.relay.snapshot.effects import Effect, ReleaseSnapshot, SaveProgress
from towpath.relay.snapshot.facts import ChunkRead, Fact, Tick
from towpath.relay.snapshot.pace import ScanPace
from towpath.relay.snapshot.range_reader import ReadPolicy
from towpath.relay.snapshot.run import (
    QueuePolicy,
    SnapshotLimits,
    SnapshotRun,
    resumed_table,
)
from towpath.relay.snapshot.scan_context import ConsistentPoint, ConsistentPoints
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.table_scan import (
    ScanOptions,
    ScanServices,
    ScanStage,
    TableScan,
)

# Beside the chunks that are read: one waits for the stream, one for Kafka.
_CHUNKS_UNDER_WAY: Final = 2

# A chunk of a tiny table. Tables are begun ahead only while chunks are no larger, so
# that what is under way stays within the bound of the readers' chunks.
_TINY_BYTES: Final = 64 * 1024
# The tables that are begun ahead may note a quarter of what one table may.
_PART_AHEAD: Final = 4

# For how long the stream may stand still for a view of which nothing comes: a reader
# that waits for a lock, or a source that is to be spared, may do so for hours.
MAX_HOLD_S: Final = 60.0

_HELD: Final = "nothing could be read for a minute, and the stream had to go on"

_Name = tuple[str, str]


class SnapshotQueue:
    """Runs in the order in which they were asked for."""

    def __init__(
        self,
        services: ScanServices,
        limits: SnapshotLimits,
        recorders: ChangedKeyFeeds,
        freezes: ConsistentPoints,
        way: QueuePolicy,
    ) -> None:
        """
        Make an empty track.

        Args:
            services: The services that all scans share.
            limits: Bounds of memory and speed.
            recorders: The feeds of changed keys; shared by all tracks.
            freezes: Each run's mark and view.
            way: How it reads.
        """
        self._services = services
        self._limits = limits
        self._recorders = recorders
        self._freezes = freezes
        self._way = way
        self._runs: deque[SnapshotRun] = deque()
        self._scans: dict[_Name, TableScan] = {}
        self._frozen_by: dict[_Name, ConsistentPoint] = {}
        self._now_s = 0.0
        self._notified: dict[_Name, int] = {}
        # How many tables more than readers may be open: as many as were tiny lately.
        self._ahead = 0
        # Of each scan that holds the stream: its chunks, and since when so many.
        self._held: dict[_Name, tuple[int, float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to run."""
        return any(run.is_waiting for run in self._runs) or bool(self._scans)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for transactions to become visible."""
        return any(scan.stage is ScanStage.WAITING for scan in self._scans.values())

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be judged and emitted."""
        return any(scan.has_ready for scan in self._scans.values())

    @property
    def holds_stream(self) -> bool:
        """Whether the stream must not be read for now."""
        return any(scan.holds_stream for scan in self._scans.values())

    def open_tables(self) -> list[StoredTable]:
        """Return the tables that have not ended, as far as they are."""
        return [
            self._scans[table[:2]].table if table[:2] in self._scans else table
            for run in self._runs
            for table in run.tables
            if not table.has_ended
        ]

    def add(self, tables: Iterable[StoredTable]) -> None:
        """Put a snapshot behind those that wait."""
        self._runs.append(SnapshotRun(tables))
        self._note_reordered()

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact and say what is to be done."""
        if isinstance(fact, Tick):
            self._now_s = fact.now_s
        if isinstance(fact, ChunkRead) and fact.chunk.size_bytes > _TINY_BYTES:
            self._ahead = 0
        effects: list[Effect] = []
        for name, scan in self._scans.items():
            effects += self._announced(name, scan.on(fact))
        if isinstance(fact, Tick):
            effects += self._release_stream()
        return effects + self._advance()

    def _release_stream(self) -> list[Effect]:
        """Give up views that hold the stream and are of no use: a lock may last."""
        effects: list[Effect] = []
        for name, scan in self._scans.items():
            chunks, since_s = self._held.get(name, (-1, self._now_s))
            if not scan.holds_stream:
                self._held.pop(name, None)
            elif scan.delivered != chunks:
                self._held[name] = (scan.delivered, self._now_s)
            elif self._now_s - since_s > MAX_HOLD_S:
                effects += scan.thaw(_HELD)
        return effects

    # Signals -------------------------------------------------------------------

    def stop(self, table: StoredTable, reason: str) -> list[Effect]:
        """End one table where it is; one that is not on this track is let pass."""
        return self._halt(table, "stopped", reason)

    def pause(self, table: StoredTable) -> list[Effect]:
        """Let one table wait where it is; one that is not on this track is let pass."""
        effects = self._halt(table, "paused", None)
        run = self._run_of(table)
        if effects and run is not None:
            collections = (table.collection,)
            effects.append(notifications.paused(run.snapshot_id, collections, run.kind))
        return effects

    def resume(
        self, tables: Iterable[StoredTable], siblings: Iterable[StoredTable] = ()
    ) -> list[Effect]:
        """
        Let tables of one snapshot go on; they are stored as queued.

        Args:
            tables: Those tables.
            siblings: The others of the snapshot. If it has ended, by now, they belong
                to what it says in the end.
        """
        effects: list[Effect] = []
        strange: list[StoredTable] = []
        for table in tables:
            run = self._run_of(table)
            if run is None:
                strange.append(table)
                continue
            run.update(resumed_table(table, run.find(table.collection)))
            # The stream may have gone on from the mark that the others have.
            self._freezes.forget(run.snapshot_id)
            collections = (table.collection,)
            told = notifications.resumed(run.snapshot_id, collections, run.kind)
            effects.append(told)
        if strange:
            begun = [resumed_table(table, None) for table in strange]
            self.add((*begun, *siblings))
        self._note_reordered()
        return effects

    def _halt(self, table: StoredTable, state: str, reason: str | None) -> list[Effect]:
        scan = self._scans.get(table[:2])
        if scan is not None:
            return scan.end(state, reason)
        run = self._run_of(table)
        known = None if run is None else run.find(table.collection)
        if run is None or known is None or known.has_ended:
            return []
        halted = known._replace(state=state, error=reason)
        run.update(halted)
        self._note_reordered()
        return [SaveProgress(self._services.tokens.next_id(), halted)]

    def _run_of(self, table: StoredTable) -> SnapshotRun | None:
        for run in self._runs:
            if run.snapshot_id == table.snapshot_id and run.find(table.collection):
                return run
        return None

    # What is next --------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        """End what has ended and begin what is next."""
        effects: list[Effect] = []
        for name, scan in list(self._scans.items()):
            if scan.stage is ScanStage.ENDED:
                effects += self._end_scan(name, scan)
        for run in list(self._runs):
            if run.has_ended:
                effects += self._end_run(run)
        for run in self._runs:
            effects += self._begin_next(run)
        return effects

    def _begin_next(self, run: SnapshotRun) -> list[Effect]:
        """Begin the tables of a run that there is room for."""
        effects: list[Effect] = []
        busy = {scan.table.table_oid for scan in self._scans.values()}
        for table in run.waiting:
            if not table.is_of_one_view:
                if len(self._scans) >= self._way.readers + self._ahead:
                    break
                if table.table_oid in busy:
                    continue
            if table[:2] not in self._scans:
                busy.add(table.table_oid)
                effects += self._begin_scan(run, table)
        return effects

    def _begin_scan(self, run: SnapshotRun, table: StoredTable) -> list[Effect]:
        effects: list[Effect] = []
        if not run.is_announced:
            run.is_announced = True
            effects += run.answer("running", {})
            told = notifications.started(run.snapshot_id, run.collections, run.kind)
            effects.append(told)
        notes = ChangedKeys(max_changed_keys=self._max_changed_keys(len(self._scans)))
        pace = ScanPace(
            self._limits.chunk, table.max_rows_per_second, self._way.throttle
        )
        freeze = self._freezes.of(run.snapshot_id) if table.is_of_one_view else None
        if freeze is not None:
            self._frozen_by[table[:2]] = freeze
        means = ScanOptions(
            notes=notes,
            asking=ReadPolicy(pace, partial(self._may_ask, table[:2])),
            parts=1 if table.ranges else self._way.readers,
            freeze=freeze,
        )
        running = table._replace(state="running")
        run.update(running)
        scan = self._scans[table[:2]] = TableScan(running, means, self._services)
        self._recorders.record(running, notes)
        return effects + scan.on(Tick(self._now_s))

    def _may_ask(self, name: _Name) -> bool:
        """
        Tell whether there is room for another chunk of a scan.

        Chunks that wait for the stream take no room from a scan that holds it: neither
        would ever go on.
        """
        holds_stream = self._scans[name].holds_stream
        under_way = sum(
            scan.in_flight
            for scan in self._scans.values()
            if scan.holds_stream or not holds_stream
        )
        return under_way < self._way.readers + _CHUNKS_UNDER_WAY + self._ahead

    def _max_changed_keys(self, place: int) -> int:
        """Return what a scan may note: those that were begun ahead share a part."""
        whole = self._limits.max_changed_keys
        if place < self._way.readers or not self._way.ahead:
            return whole
        return max(1, whole // _PART_AHEAD // self._way.ahead)

    def _end_scan(self, name: _Name, scan: TableScan) -> list[Effect]:
        table = scan.table
        del self._scans[name]
        self._notified.pop(name, None)
        self._held.pop(name, None)
        self._recorders.forget(table, scan.notes)
        is_tiny = table.state == "completed" and table.chunks <= 1
        self._ahead = min(self._way.ahead, self._ahead + 1) if is_tiny else 0
        for place, other in enumerate(self._scans.values()):
            other.notes.allow(self._max_changed_keys(place))
        run = self._run_of(table)
        if run is None:
            return [*self._release(name)]
        run.update(table)
        self._note_reordered()
        effects: list[Effect] = []
        if table.has_ended:
            effects.append(notifications.table_ended(table, run.collections))
        return effects + self._release(name)

    def _release(self, name: _Name) -> list[ReleaseSnapshot]:
        """Let go of the view of a scan that has ended, if no other reads in it."""
        freeze = self._frozen_by.pop(name, None)
        if freeze is None or any(freeze is one for one in self._frozen_by.values()):
            return []
        view = self._freezes.drop(name[0], freeze)
        return [ReleaseSnapshot(view)] if view else []

    def _end_run(self, run: SnapshotRun) -> list[Effect]:
        self._runs.remove(run)
        self._way.on_ended(run)
        status = run.status()
        told = notifications.ended(run.snapshot_id, run.collections, status, run.kind)
        detail = run.detail()
        answers = run.answer(status, detail)
        answered = [
            notifications.answered(each.signal_id, status, detail) for each in answers
        ]
        return [*answers, told, *answered]

    def _note_reordered(self) -> None:
        self._recorders.reordered.clear()
        self._recorders.reordered.update(
            table.table_oid
            for run in self._runs
            for table in run.tables
            if table.order_by and not table.has_ended
        )

    def _announced(self, name: _Name, effects: Iterable[Effect]) -> list[Effect]:
        """Add a notification for each chunk that is stored."""
        announced: list[Effect] = []
        run = next((r for r in self._runs if r.snapshot_id == name[0]), None)
        for effect in effects:
            announced.append(effect)
            if not isinstance(effect, SaveProgress) or run is None:
                continue
            table = effect.table
            if table.state == "running" and table.chunks > self._notified.get(name, 0):
                self._notified[name] = table.chunks
                announced.append(notifications.in_progress(table, run.collections))
        return announced
