"""
The snapshot driver: signals are queued and carried out one after another.

Decide, do not do: ``on`` takes a fact and answers with effects, which the loop performs
or hands to the worker. A signal that was stored before and is streamed again after a
crash starts nothing: ``Resumed`` brings what is left of it.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.effects import (
    AnswerSignal,
    Effect,
    ProbeVisibility,
    SaveProgress,
)
from towpath.relay.snapshot.facts import (
    Fact,
    ProgressSaved,
    Resumed,
    SignalSeen,
    SignalStored,
    StoredTable,
    TablesInspected,
    Tick,
    VisibilityRead,
)
from towpath.relay.snapshot.intake import Intake
from towpath.relay.snapshot.pace import Pace
from towpath.relay.snapshot.run import Run
from towpath.relay.snapshot.scan import Scan, Stage
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import MAX_TOUCHES, Touches
from towpath.relay.snapshot.visibility import InvisibleTransactions

# While something waits for a transaction to become visible. A commit is rarely
# invisible for longer than its flush, so more often gains little; ten times rarer is
# felt at the start of every snapshot.
PROBE_INTERVAL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a snapshot's memory: rows of a chunk, touches of a table."""

    chunk_rows: int
    max_touches: int = MAX_TOUCHES


class SnapshotDriver:
    """
    Every snapshot of one source.

    Attributes:
        recorders: For each table being read, by oid, whom to tell of its changes.
    """

    def __init__(
        self,
        invisible: InvisibleTransactions,
        *,
        captured: Collection[str],
        sinks: Callable[[], Collection[str]],
        run_id: str,
        limits: Limits,
    ) -> None:
        """
        Wire the driver.

        Args:
            invisible: The streamed transactions that may be invisible; the loop adds.
            captured: The captured tables, as ``schema.table``.
            sinks: Names the sinks as of now: what a signal's target may be.
            run_id: Tells this process's watermarks from those of dead ones.
            limits: Bounds of memory.
        """
        self.recorders: dict[int, Touches] = {}
        self._invisible = invisible
        self._intake = Intake(captured, sinks)
        self._tokens = Tokens(run_id)
        self._limits = limits
        self._runs: deque[Run] = deque()
        self._scan: Scan | None = None
        self._now_s = 0.0
        self._probed_at_s = float("-inf")
        self._is_probing = False
        self._last_save_id = 0
        self._notified: StoredTable | None = None

    @property
    def is_busy(self) -> bool:
        """Whether ticks are wanted."""
        return bool(self._runs) or not self._intake.is_empty

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact and say what is to be done."""
        effects = self._take(fact)
        if self._scan is not None:
            effects += self._announced(self._scan.on(fact))
        effects += self._advance()
        effects += self._probe(effects)
        saves = [e.request_id for e in effects if isinstance(e, SaveProgress)]
        self._last_save_id = max(saves, default=self._last_save_id)
        return effects

    def _take(self, fact: Fact) -> list[Effect]:
        match fact:
            case Tick():
                self._now_s = fact.now_s
            case VisibilityRead():
                self._is_probing = False
                self._invisible.see(fact.snapshot)
                return self._intake.answer(fact.snapshot, self._open_tables())
            case SignalSeen():
                self._intake.see(fact)
            case TablesInspected():
                return self._intake.inspected(fact)
            case SignalStored():
                return self._accept(fact)
            case Resumed():
                self._resume(fact.tables)
            case ProgressSaved():
                self._release(fact)
            case _:
                pass
        return []

    # Signals -------------------------------------------------------------------

    def _accept(self, fact: SignalStored) -> list[Effect]:
        accepted = self._intake.stored(fact)
        if accepted is None:
            return []
        if accepted.tables:
            self._runs.append(Run(accepted.tables))
        effects: list[Effect] = []
        for table in accepted.stops:
            effects += self._stop(table, f"stopped by signal {fact.signal_id}")
        return effects

    def _stop(self, table: StoredTable, reason: str) -> list[Effect]:
        scan = self._scan
        if scan is not None and _is_same(scan.table, table):
            return scan.stop(reason)
        for run in self._runs:
            if run.snapshot_id == table.snapshot_id and table in run.tables:
                stopped = table._replace(state="stopped", error=reason)
                run.update(stopped)
                return [SaveProgress(self._tokens.next_id(), stopped)]
        return []

    def _resume(self, tables: Iterable[StoredTable]) -> None:
        for _, group in groupby(tables, key=lambda table: table.snapshot_id):
            self._runs.append(Run(group))

    def _open_tables(self) -> list[StoredTable]:
        return [t for run in self._runs for t in run.tables if not t.has_ended]

    # Runs ----------------------------------------------------------------------

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
            effects.append(AnswerSignal(run.snapshot_id, "running", {}))
            effects.append(notifications.started(run.snapshot_id, run.collections))
        touches = Touches(self._invisible, max_touches=self._limits.max_touches)
        pace = Pace(self._limits.chunk_rows, table.max_rows_per_second)
        running = table._replace(state="running")
        run.update(running)
        self._scan = Scan(running, touches, self._invisible, pace, self._tokens)
        self.recorders[table.table_oid] = touches
        return effects + self._scan.on(Tick(self._now_s))

    def _end_scan(self, run: Run, scan: Scan) -> list[Effect]:
        table = scan.table
        run.update(table)
        self._scan = None
        del self.recorders[table.table_oid]
        return [notifications.table_ended(table, run.collections)]

    def _end_run(self, run: Run) -> list[Effect]:
        self._runs.popleft()
        return [
            AnswerSignal(run.snapshot_id, run.status(), run.detail()),
            notifications.ended(run.snapshot_id, run.collections, run.status()),
        ]

    # Visibility ----------------------------------------------------------------

    def _probe(self, effects: Iterable[Effect]) -> list[Effect]:
        """Ask what is visible, if something waits for that and nobody has asked."""
        if any(isinstance(effect, ProbeVisibility) for effect in effects):
            self._is_probing = True
        scan_waits = self._scan is not None and self._scan.stage is Stage.WAITING
        if self._is_probing or not (scan_waits or self._intake.waits_for_visibility):
            return []
        if self._now_s - self._probed_at_s < PROBE_INTERVAL_S:
            return []
        self._probed_at_s = self._now_s
        self._is_probing = True
        return [ProbeVisibility()]

    def _release(self, fact: ProgressSaved) -> None:
        """Let the log go on once every key that moved is on a stored list."""
        has_moved = self._scan is not None and self._scan.touches.has_moved
        if fact.request_id == self._last_save_id and not has_moved:
            self._invisible.release()

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
