"""What the readers of one table share, what they tell, and how their run is frozen."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from towpath.relay.snapshot.effects import ReadPlan
from towpath.relay.snapshot.facts import WatermarkSeen
from towpath.relay.snapshot.shape import Key, KeyRange, Plan, TableShape
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Notes


@dataclass(slots=True)
class Freeze:
    """
    The one mark behind which the tables of a run are read in one view of the database.

    All of them take notes from this mark on, and the stream is not read from there
    until they are read: a mark for each would never come by.

    Attributes:
        name: What the view is called: a view of an earlier mark must not be taken for
            it. Empty: the mark is still to be written.
        mark: Where the view stands; None: the mark was not seen yet.
    """

    name: str = ""
    mark: WatermarkSeen | None = None


class Errand(NamedTuple):
    """
    What all readers of one table are about.

    Attributes:
        snapshot_id: The signal's id, or that of the relay's own request.
        target: The one sink that gets the rows; None: they are for all.
        condition: Which rows, an SQL expression.
        select: What is read for the table, a SELECT.
        shape: The table as planned.
        waiting: Keys to be read, in order.
        notes: What the stream has done to the table.
        tokens: Numbers and watermarks.
        freeze: The one view of the database in which everything is read; None: each
            chunk has watermarks of its own.
    """

    snapshot_id: str
    target: str | None
    condition: str | None
    select: str | None
    shape: TableShape
    waiting: dict[Key, None]
    notes: Notes
    tokens: Tokens
    freeze: Freeze | None = None


class Freezes:
    """The freezes of all runs, by the snapshot's id."""

    def __init__(self, lent: Collection[str], start_log_lsn: int) -> None:
        """
        Know those that are there from the beginning.

        Args:
            lent: Snapshots whose view was made with the slot.
            start_log_lsn: Where the stream begins, and so where those views stand.
        """
        start = WatermarkSeen("", start_log_lsn, 0)
        self._freezes = {name: Freeze(name, start) for name in lent}

    def of(self, snapshot_id: str) -> Freeze:
        """Return the mark and view that the tables of a run share."""
        return self._freezes.setdefault(snapshot_id, Freeze())

    def forget(self, snapshot_id: str) -> None:
        """Let what begins later have another; those that share this one keep it."""
        self._freezes.pop(snapshot_id, None)

    def drop(self, snapshot_id: str, freeze: Freeze) -> str:
        """Forget one that nobody has any more; return its view's name, if any."""
        if self._freezes.get(snapshot_id) is freeze:
            self.forget(snapshot_id)
        return freeze.name


def ranges_of(stored: StoredTable, plan: Plan) -> tuple[KeyRange, ...]:
    """Return what of a table's keys each reader reads; none for listed keys."""
    if stored.asked_keys is not None:
        return ()
    boundaries = () if stored.last_key else plan.boundaries
    return stored.ranges or _cut(stored.last_key, boundaries, stored.maximum_key)


def _cut(
    after_key: Key | None, boundaries: Iterable[Key], last_key: Key | None
) -> tuple[KeyRange, ...]:
    """Return the ranges between keys, in order; none: there is nothing to read."""
    if last_key is None:
        return ()
    ranges = []
    for boundary in boundaries:
        ranges.append(KeyRange(after_key, boundary))
        after_key = boundary
    return (*ranges, KeyRange(after_key, last_key))


def reached(ranges: Iterable[KeyRange]) -> Key | None:
    """Return the key up to which everything is acknowledged; None: nothing is."""
    last_key: Key | None = None
    for one in ranges:
        if not one.is_done:
            return one.after_key
        last_key = one.last_key
    return last_key


def read_plan(
    table: StoredTable, request_id: int, parts: int, view: str | None
) -> ReadPlan:
    """Return what asks for the plan of a table."""
    return ReadPlan(
        request_id,
        table.collection,
        table.table_oid,
        condition=table.filter,
        select=table.select,
        keys_of=None if table.asked_keys is None else table.snapshot_id,
        order_by=table.order_by,
        parts=parts,
        frozen_by=view,
    )
