"""
How far the snapshots are, seen from outside: what the driver wants stored, in numbers.

A table counts from the moment its signal, or the relay's own request, is stored; one
that has ended counts once. Numbers live as long as the process; what a connection's end
interrupts is resumed, and counts on.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from towpath.relay.snapshot.effects import Effect, SaveProgress, StoreKeys, StoreSignal
from towpath.relay.snapshot.facts import Fact, KeysStored, Resumed, SignalStored
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.tally import SnapshotView, Tally
from towpath.schemas.clock import Clock

# Rows of what is no captured table, such as events of the outbox, under one label.
OTHER: Final = "other"

_RUNNING: Final = "running"
_PAUSED: Final = "paused"

Name = tuple[str, str]


class SnapshotSight:
    """Keeps ``tally.snapshot``, and counts dropped rows; told all facts and effects."""

    def __init__(self, tally: Tally, clock: Clock) -> None:
        self._tally = tally
        self._clock = clock
        self._asked: dict[str, StoreSignal | StoreKeys] = {}
        self._open: dict[Name, str] = {}
        self._dropped: dict[Name, int] = {}
        self._began_s: dict[Name, float] = {}
        before = tally.snapshot
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
            case Resumed():
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
                known = table.collection in self._tally.tables
                self._rows[table.collection if known else OTHER] = table.rows
            self._tally.snapshot_dropped_rows += table.dropped - self._dropped[name]
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
        self._tally.snapshot = SnapshotView(
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
