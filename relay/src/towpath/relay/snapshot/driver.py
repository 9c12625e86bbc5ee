"""
The snapshot driver: what is asked for is queued and carried out, track by track.

Decide, do not do: ``on`` takes a fact and answers with effects, which the loop performs
or hands to the worker. A signal that was stored before and is streamed again after a
crash starts nothing: ``Resumed`` brings what is left of it. The same holds for what the
relay itself asks for (``requests``).
"""

from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from typing import Final

from towpath.relay.snapshot.effects import Effect, ProbeVisibility, StoreKeys
from towpath.relay.snapshot.facts import (
    Fact,
    KeysStored,
    Resumed,
    SignalSeen,
    SignalStored,
    TablesInspected,
    Tick,
    VisibilityRead,
)
from towpath.relay.snapshot.intake import Intake
from towpath.relay.snapshot.requests import KeyRequests
from towpath.relay.snapshot.run import Run
from towpath.relay.snapshot.scan import Desk
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Touches
from towpath.relay.snapshot.track import Limits, Track
from towpath.relay.snapshot.visibility import InvisibleTransactions

__all__ = ["PROBE_INTERVAL_S", "Limits", "SnapshotDriver"]

# While something waits for a transaction to become visible. A commit is rarely
# invisible for longer than its flush, so more often gains little; ten times rarer is
# felt at the start of every snapshot.
PROBE_INTERVAL_S: Final = 0.02


class SnapshotDriver:
    """
    Every snapshot of one source.

    Attributes:
        recorders: For each table being read, by oid, whom to tell of its changes.
        requests: Whom to ask for rows that the stream does not carry whole.
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
        self.requests = KeyRequests(limits.batch_keys)
        self._invisible = invisible
        self._intake = Intake(captured, sinks)
        desk = Desk(invisible, self.requests, Tokens(run_id))
        self._own = Track(desk, limits, self.recorders, self._end_batch)
        self._listed = Track(desk, limits, self.recorders, _let_pass)
        self._whole = Track(desk, limits, self.recorders, _let_pass)
        # Whole tables come last: they may end once the relay's own requests have.
        self._tracks = (self._own, self._listed, self._whole)
        self._storing: dict[str, tuple[StoredTable, ...]] = {}
        self._now_s = 0.0
        self._probed_at_s = float("-inf")
        self._is_probing = False

    @property
    def is_busy(self) -> bool:
        """Whether ticks are wanted."""
        is_running = any(track.is_busy for track in self._tracks)
        return is_running or not (self._intake.is_empty and self.requests.is_empty)

    @property
    def has_ready(self) -> bool:
        """Whether turns are wanted: there are rows to be judged and emitted."""
        return any(track.has_ready for track in self._tracks)

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact and say what is to be done."""
        effects = self._take(fact)
        for track in self._tracks:
            effects += track.on(fact)
        effects += self._store_requests()
        return effects + self._probe(effects)

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
            case KeysStored():
                self._add(self._storing.pop(fact.snapshot_id))
            case Resumed():
                self._resume(fact)
            case _:
                pass
        return []

    # Signals -------------------------------------------------------------------

    def _accept(self, fact: SignalStored) -> list[Effect]:
        accepted = self._intake.stored(fact)
        if accepted is None:
            return []
        self._add(accepted.tables)
        effects: list[Effect] = []
        reason = f"stopped by signal {fact.signal_id}"
        for table in accepted.stops:
            effects += self._listed.stop(table, reason)
            effects += self._whole.stop(table, reason)
        return effects

    def _open_tables(self) -> list[StoredTable]:
        """Return what can be stopped: rows that the stream left incomplete cannot."""
        return self._whole.open_tables() + self._listed.open_tables()

    # What is stored, to its track ------------------------------------------------

    def _add(self, tables: Iterable[StoredTable]) -> None:
        for _, group in groupby(tables, key=lambda table: table.snapshot_id):
            unloaded = tuple(map(_unloaded, group))
            self._track_of(unloaded).add(unloaded)

    def _track_of(self, tables: Iterable[StoredTable]) -> Track:
        first, *_ = tables
        if first.asked_until is not None:
            return self._own
        return self._whole if first.asked_keys is None else self._listed

    def _resume(self, fact: Resumed) -> None:
        self.requests.resume(fact.asked_until)
        for _, group in groupby(fact.tables, key=lambda table: table.snapshot_id):
            tables = tuple(group)
            if tables[0].asked_until is not None:
                self.requests.resume_batch(tables)
            self._add(tables)

    def _end_batch(self, run: Run) -> None:
        self.requests.end_batch(run.tables)

    def _store_requests(self) -> list[StoreKeys]:
        effects: list[StoreKeys] = []
        while (batch := self.requests.take(self._now_s)) is not None:
            tables = tuple(map(_unloaded, batch.tables))
            self._storing[batch.snapshot_id] = tables
            effects.append(batch)
        return effects

    # Visibility ----------------------------------------------------------------

    def _probe(self, effects: Iterable[Effect]) -> list[Effect]:
        """Ask what is visible, if something waits for that and nobody has asked."""
        if any(isinstance(effect, ProbeVisibility) for effect in effects):
            self._is_probing = True
        is_waiting = any(track.is_waiting for track in self._tracks)
        if self._is_probing or not (is_waiting or self._intake.waits_for_visibility):
            return []
        if self._now_s - self._probed_at_s < PROBE_INTERVAL_S:
            return []
        self._probed_at_s = self._now_s
        self._is_probing = True
        return [ProbeVisibility()]


def _unloaded(table: StoredTable) -> StoredTable:
    """Leave listed keys where they are stored until it is their turn."""
    return table if table.asked_keys is None else table._replace(pending_keys=None)


def _let_pass(_run: Run) -> None:
    pass
