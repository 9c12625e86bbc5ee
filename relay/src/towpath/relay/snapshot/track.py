"""
A track: snapshots that run one after another, beside those of other tracks.

Whole tables, keys that signals list, and keys that the relay asks for have a track
each: a row that the stream left incomplete does not wait behind a table of a billion
rows, nor behind a signal that asked to be slow.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.effects import Effect, SaveProgress
from towpath.relay.snapshot.facts import Fact, Tick
from towpath.relay.snapshot.pace import Pace
from towpath.relay.snapshot.requests import MAX_BATCH_KEYS
from towpath.relay.snapshot.run import Run
from towpath.relay.snapshot.scan import Desk, Scan, Stage
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.touches import MAX_TOUCHES, Notes, Touches


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of memory: rows of a chunk, touches of a table, keys stored together."""

    chunk_rows: int
    max_touches: int = MAX_TOUCHES
    batch_keys: int = MAX_BATCH_KEYS


class Track:
    """Runs in the order in which they were asked for; one table is read at a time."""

    def __init__(
        self,
        desk: Desk,
        limits: Limits,
        recorders: dict[int, Touches],
        on_ended: Callable[[Run], None],
    ) -> None:
        """
        Make an empty track.

        Args:
            desk: What all scans share.
            limits: Bounds of memory.
            recorders: By table, whom the loop tells of changes; shared by all tracks.
            on_ended: Told of each run when it has ended.
        """
        self._desk = desk
        self._limits = limits
        self._recorders = recorders
        self._on_ended = on_ended
        self._runs: deque[Run] = deque()
        self._scan: Scan | None = None
        self._now_s = 0.0
        self._notified: StoredTable | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to run."""
        return bool(self._runs)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for transactions to become visible."""
        return self._scan is not None and self._scan.stage is Stage.WAITING

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be judged and emitted."""
        return self._scan is not None and self._scan.has_ready

    def open_tables(self) -> list[StoredTable]:
        """Return the tables that have not ended."""
        return [t for run in self._runs for t in run.tables if not t.has_ended]

    def add(self, tables: Iterable[StoredTable]) -> None:
        """Put a snapshot behind those that wait."""
        self._runs.append(Run(tables))

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact and say what is to be done."""
        if isinstance(fact, Tick):
            self._now_s = fact.now_s
        effects: list[Effect] = []
        if self._scan is not None:
            effects += self._announced(self._scan.on(fact))
        return effects + self._advance()

    def stop(self, table: StoredTable, reason: str) -> list[Effect]:
        """End one table where it is; one that is not on this track is let pass."""
        scan = self._scan
        if scan is not None and _is_same(scan.table, table):
            return scan.stop(reason)
        for run in self._runs:
            if run.snapshot_id == table.snapshot_id and table in run.tables:
                stopped = table._replace(state="stopped", error=reason)
                run.update(stopped)
                return [SaveProgress(self._desk.tokens.next_id(), stopped)]
        return []

    def _advance(self) -> list[Effect]:
        """End what has ended and begin what is next."""
        effects: list[Effect] = []
        while self._runs:
            run = self._runs[0]
            if self._scan is not None:
                if self._scan.stage is not Stage.ENDED:
                    break
                effects += self._end_scan(run, self._scan)
            table = run.next_table()
            if table is None:
                effects += self._end_run(run)
            else:
                effects += self._begin_scan(run, table)
        return effects

    def _begin_scan(self, run: Run, table: StoredTable) -> list[Effect]:
        effects: list[Effect] = []
        if not run.is_announced:
            run.is_announced = True
            effects += run.answer("running", {})
            effects.append(notifications.started(run.snapshot_id, run.collections))
        notes = Notes(max_touches=self._limits.max_touches)
        pace = Pace(self._limits.chunk_rows, table.max_rows_per_second)
        running = table._replace(state="running")
        run.update(running)
        self._scan = Scan(running, notes, pace, self._desk)
        self._recorders.setdefault(table.table_oid, Touches()).notes.append(notes)
        return effects + self._scan.on(Tick(self._now_s))

    def _end_scan(self, run: Run, scan: Scan) -> list[Effect]:
        table = scan.table
        run.update(table)
        self._scan = None
        touches = self._recorders[table.table_oid]
        touches.notes.remove(scan.notes)
        if not touches.notes:
            del self._recorders[table.table_oid]
        return [notifications.table_ended(table, run.collections)]

    def _end_run(self, run: Run) -> list[Effect]:
        self._runs.popleft()
        self._on_ended(run)
        return [
            *run.answer(run.status(), run.detail()),
            notifications.ended(run.snapshot_id, run.collections, run.status()),
        ]

    def _announced(self, effects: Iterable[Effect]) -> list[Effect]:
        """Add a notification for each chunk that is stored."""
        announced: list[Effect] = []
        for effect in effects:
            announced.append(effect)
            if isinstance(effect, SaveProgress) and self._has_moved_on(effect.table):
                self._notified = effect.table
                collections = self._runs[0].collections
                announced.append(notifications.in_progress(effect.table, collections))
        return announced

    def _has_moved_on(self, table: StoredTable) -> bool:
        is_first = self._notified is None or not _is_same(table, self._notified)
        chunks = 0 if is_first or self._notified is None else self._notified.chunks
        return table.state == "running" and table.chunks > chunks


def _is_same(one: StoredTable, other: StoredTable) -> bool:
    return one[:2] == other[:2]
