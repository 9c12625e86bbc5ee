"""
The reference sink: a dictionary whose contents every target must match.

A real sink lets a server compare and write in one step; this one compares, then writes.
Like every sink that stores rows, it keeps tombstones: without them, a replayed older
change would restore a deleted row.
"""

from typing import NamedTuple

from towpath.sinks.change import Change, EventRow, Refusal, Row
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.key_text import key_text
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Floors, Tally


class Stored(NamedTuple):
    """The stored row of a key; ``row`` is ``None`` in a tombstone."""

    position: str
    row: Row | None


class MemorySink:
    """A sink in memory; its rows outlive ``close``, like those of a server."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Stored]] = {}
        self.events: dict[tuple[str, str], EventRow] = {}
        self._floors = Floors()
        self._tally = Tally()

    def open(self) -> None:
        """Do nothing: there is nothing to create."""

    def apply(self, batch: Batch) -> None:
        # A call that fails must count nothing, because its batch is applied again.
        tally = Tally()
        for route, floor in self._floors.due(batch.floors):
            self._floors.learn(route, floor)
            rows = self.rows.get(route, {})
            for key in [k for k, s in rows.items() if s.position < floor]:
                del rows[key]
            self._floors.mark_applied(route, floor)
        for change in self._floors.above(batch.changes, tally):
            self._put(change, tally)
        for event in batch.events:
            known = self.events.setdefault((event.route, event.id), event)
            _count(tally, applied=known is event)
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        return self._tally.take()

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _put(self, change: Change, tally: Tally) -> None:
        rows = self.rows.setdefault(change.route, {})
        key = key_text(change.key)
        stored = rows.get(key)
        if stored is not None and stored.position > change.position:
            _count(tally, applied=False)
        elif change.row is None or not change.unchanged:
            rows[key] = Stored(change.position, change.row)
            _count(tally, applied=True)
        elif stored is None or stored.row is None:
            tally.refused.append(Refusal(change, ABSENT_ROW, needs_refetch=True))
        else:
            kept = {k: v for k, v in stored.row.items() if k in change.unchanged}
            rows[key] = Stored(change.position, {**kept, **change.row})
            _count(tally, applied=True)


def _count(tally: Tally, *, applied: bool) -> None:
    tally.applied += applied
    tally.stale += not applied
