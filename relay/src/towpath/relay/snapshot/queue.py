"""
A queue of snapshots whose tables are read in order, some of them at the same time.

Whole tables, listed keys and key requests have a queue each, so that a few keys never
wait behind a table that takes hours.

All tables of a run with a consistent point begin together, since they share the mark at
which the stream is blocked.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.changed_keys import ChangedKeyFeeds, ChangedKeys
from towpath.relay.snapshot.pace import ScanPace
from towpath.relay.snapshot.protocol import (
    ChunkRead,
    Effect,
    Fact,
    Notify,
    ReleaseSnapshot,
    SaveProgress,
    Tick,
)
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

# Chunks in addition to those being read: one waits for the stream, one for Kafka.
_WAITING_CHUNKS: Final = 2

# The maximum size of a tiny table's chunk. Tables are begun ahead only while no chunk
# is larger, so that they add little to the memory of the readers' chunks.
_TINY_BYTES: Final = 64 * 1024
# Together, the tables begun ahead may record a quarter as many changes as one table.
_SHARE_AHEAD: Final = 4

# The stream may be blocked for this long while no chunk is delivered: a reader may wait
# hours for a lock or for a busy source.
MAX_BLOCKED_S: Final = 60.0

_BLOCKED: Final = "nothing could be read for a minute, so the stream continues"

_Name = tuple[str, str]


class SnapshotQueue:
    """The open snapshots, in the order of their requests."""

    def __init__(
        self,
        services: ScanServices,
        limits: SnapshotLimits,
        feeds: ChangedKeyFeeds,
        points: ConsistentPoints,
        policy: QueuePolicy,
    ) -> None:
        """
        Create an empty queue.

        Args:
            services: The services that all scans share.
            limits: Bounds on memory and speed.
            feeds: The feeds of changed keys; shared by all queues.
            points: The consistent point of each run.
            policy: How the queue reads.
        """
        self._services = services
        self._limits = limits
        self._feeds = feeds
        self._points = points
        self._policy = policy
        self._runs: deque[SnapshotRun] = deque()
        self._ended: list[SnapshotRun] = []
        self._scans: dict[_Name, TableScan] = {}
        self._points_in_use: dict[_Name, ConsistentPoint] = {}
        self._now_s = 0.0
        self._notified: dict[_Name, int] = {}
        # The number of tables that may be begun ahead: it grows with each tiny table.
        self._ahead = 0
        # For each scan that blocks the stream, the number of chunks that it has
        # delivered; and the time at which one of these numbers last changed.
        self._blocking: dict[_Name, int] = {}
        self._progressed_at_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to run."""
        return any(run.is_waiting for run in self._runs) or bool(self._scans)

    @property
    def is_waiting(self) -> bool:
        """Whether a scan waits for transactions to become visible."""
        return any(scan.stage is ScanStage.WAITING for scan in self._scans.values())

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be deduplicated and emitted."""
        return any(scan.has_ready for scan in self._scans.values())

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream must not be read for now."""
        return any(scan.blocks_stream for scan in self._scans.values())

    def open_tables(self) -> list[StoredTable]:
        """Return the tables that have not ended, with their progress."""
        return [
            self._scans[table[:2]].table if table[:2] in self._scans else table
            for run in self._runs
            for table in run.tables
            if not table.has_ended
        ]

    def take_ended(self) -> list[SnapshotRun]:
        """Return the runs that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def add(self, tables: Iterable[StoredTable]) -> None:
        """Append a snapshot."""
        self._runs.append(SnapshotRun(tables))
        self._update_reordered()

    def on(self, fact: Fact) -> list[Effect]:
        """Process a fact and return the effects."""
        if isinstance(fact, Tick):
            self._now_s = fact.now_s
        if isinstance(fact, ChunkRead) and fact.chunk.size_bytes > _TINY_BYTES:
            self._ahead = 0
        effects: list[Effect] = []
        in_flight = self._in_flight()
        for name, scan in self._scans.items():
            room = self._room_of(name, in_flight)
            effects += self._with_notifications(name, scan.on(fact, room))
            in_flight[name] = scan.in_flight
        if isinstance(fact, Tick):
            effects += self._unblock_stream()
        return effects + self._advance()

    def _unblock_stream(self) -> list[Effect]:
        """
        Leave exported snapshots if no scan that blocks the stream makes progress.

        While one scan makes progress, the others may merely be waiting for room.
        """
        scans = {name: one for name, one in self._scans.items() if one.blocks_stream}
        blocking = {name: scan.delivered for name, scan in scans.items()}
        if blocking != self._blocking:
            self._blocking, self._progressed_at_s = blocking, self._now_s
        if self._now_s - self._progressed_at_s <= MAX_BLOCKED_S:
            return []
        left = [scan.leave_exported_snapshot(_BLOCKED) for scan in scans.values()]
        return [effect for effects in left for effect in effects]

    # Signals -------------------------------------------------------------------

    def stop(self, table: StoredTable, reason: str) -> list[Effect]:
        """End one table at its current progress; ignore a table of another queue."""
        return self._halt(table, "stopped", reason)

    def pause(self, table: StoredTable) -> list[Effect]:
        """Pause one table at its current progress; ignore a table of another queue."""
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
        Resume tables of one snapshot; they are stored as queued.

        Args:
            tables: The tables to resume.
            siblings: The snapshot's other tables. If the snapshot has ended, its final
                answer includes their counts.
        """
        effects: list[Effect] = []
        others: list[StoredTable] = []
        for table in tables:
            run = self._run_of(table)
            if run is None:
                others.append(table)
                continue
            run.update(resumed_table(table, run.find(table.collection)))
            # The stream may have passed the mark that the other tables share.
            self._points.forget(run.snapshot_id)
            collections = (table.collection,)
            notice = notifications.resumed(run.snapshot_id, collections, run.kind)
            effects.append(notice)
        if others:
            resumed = [resumed_table(table, None) for table in others]
            self.add((*resumed, *siblings))
        self._update_reordered()
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
        self._update_reordered()
        return [SaveProgress(self._services.tokens.next_id(), halted)]

    def _run_of(self, table: StoredTable) -> SnapshotRun | None:
        for run in self._runs:
            if run.snapshot_id == table.snapshot_id and run.find(table.collection):
                return run
        return None

    # The next tables -----------------------------------------------------------

    def _advance(self) -> list[Effect]:
        """Remove ended scans and runs, and begin the next tables."""
        effects: list[Effect] = []
        for name, scan in list(self._scans.items()):
            if scan.stage is ScanStage.ENDED:
                effects += self._end_scan(name, scan)
        effects += self._release_exported()
        for run in list(self._runs):
            if run.has_ended:
                effects += self._end_run(run)
        for run in self._runs:
            effects += self._begin_next(run)
        return effects

    def _begin_next(self, run: SnapshotRun) -> list[Effect]:
        """Begin as many tables of a run as there is room for."""
        effects: list[Effect] = []
        busy = {scan.table.table_oid for scan in self._scans.values()}
        for table in run.waiting:
            if not table.uses_exported_snapshot:
                if len(self._scans) >= self._policy.readers + self._ahead:
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
            notice = notifications.started(run.snapshot_id, run.collections, run.kind)
            effects.append(notice)
        if self._services.requests.has_failed(table):
            table = table.from_the_first_row()
        limit = self._max_changed_keys(len(self._scans))
        changed_keys = ChangedKeys(max_changed_keys=limit)
        pace = ScanPace(
            self._limits.chunk, table.max_rows_per_second, self._policy.throttle
        )
        point = None
        if table.uses_exported_snapshot:
            point = self._points.get(run.snapshot_id)
        if point is not None:
            self._points_in_use[table[:2]] = point
        options = ScanOptions(
            changed_keys=changed_keys,
            pace=pace,
            parts=1 if table.ranges else self._policy.readers,
            consistent_point=point,
        )
        running = table._replace(state="running")
        run.update(running)
        scan = self._scans[table[:2]] = TableScan(running, options, self._services)
        self._feeds.start(running, changed_keys)
        room = self._room_of(table[:2], self._in_flight())
        return effects + scan.on(Tick(self._now_s), room)

    def _in_flight(self) -> dict[_Name, int]:
        """Return each scan's number of chunks in flight."""
        return {name: scan.in_flight for name, scan in self._scans.items()}

    def _room_of(self, name: _Name, in_flight: Mapping[_Name, int]) -> int:
        """
        Return how many chunks of a scan may be in flight.

        Chunks that wait for the stream take no room from a scan that blocks it:
        otherwise each would wait for the other.
        """
        if self._scans[name].blocks_stream:
            scans = self._scans
            counted = sum(n for at, n in in_flight.items() if scans[at].blocks_stream)
        else:
            counted = sum(in_flight.values())
        limit = self._policy.readers + _WAITING_CHUNKS + self._ahead
        return limit - (counted - in_flight[name])

    def _max_changed_keys(self, place: int) -> int:
        """Return the limit on a scan's changes; scans begun ahead share a fraction."""
        whole = self._limits.max_changed_keys
        if place < self._policy.readers or not self._policy.ahead:
            return whole
        return max(1, whole // _SHARE_AHEAD // self._policy.ahead)

    def _end_scan(self, name: _Name, scan: TableScan) -> list[Notify]:
        table = scan.table
        del self._scans[name]
        self._notified.pop(name, None)
        self._feeds.stop(table, scan.changed_keys)
        is_tiny = table.state == "completed" and table.chunks <= 1
        self._ahead = min(self._policy.ahead, self._ahead + 1) if is_tiny else 0
        for place, other in enumerate(self._scans.values()):
            other.changed_keys.set_limit(self._max_changed_keys(place))
        run = self._run_of(table)
        if run is None:
            return []
        run.update(table)
        self._update_reordered()
        if not table.has_ended:
            return []
        return [notifications.table_ended(table, run.collections)]

    def _release_exported(self) -> list[ReleaseSnapshot]:
        """Release the exported snapshots that no scan reads anymore."""
        effects: list[ReleaseSnapshot] = []
        for name, point in list(self._points_in_use.items()):
            scan = self._scans.get(name)
            if scan is not None and scan.consistent_point is point:
                continue
            del self._points_in_use[name]
            if any(point is one for one in self._points_in_use.values()):
                continue
            view = self._points.drop(name[0], point)
            effects += [ReleaseSnapshot(view)] if view else []
        return effects

    def _end_run(self, run: SnapshotRun) -> list[Effect]:
        self._runs.remove(run)
        self._ended.append(run)
        status = run.status()
        notice = notifications.ended(run.snapshot_id, run.collections, status, run.kind)
        detail = run.detail()
        answers = run.answer(status, detail)
        answered = notifications.answered
        notices = [answered(each.signal_id, status, detail) for each in answers]
        return [*answers, notice, *notices]

    def _update_reordered(self) -> None:
        oids = (
            table.table_oid
            for run in self._runs
            for table in run.tables
            if table.order_by and not table.has_ended
        )
        self._feeds.set_reordered(self._policy.name, oids)

    def _with_notifications(
        self, name: _Name, effects: Iterable[Effect]
    ) -> list[Effect]:
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
