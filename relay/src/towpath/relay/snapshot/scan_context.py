"""
The context of one table's readers, their progress, and the consistent point of a run.

Numbers of requests, and the watermarks' contents.

A watermark is known by its content alone. Each process writes its own run into it, so
that one which a dead process left in the log, streamed again, is nobody's.
"""

import itertools
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.effects import ReadPlan
from towpath.relay.snapshot.facts import WatermarkSeen
from towpath.relay.snapshot.shape import (
    Key,
    KeyRange,
    ScanPlan,
    TableShape,
)
from towpath.relay.snapshot.stored import StoredTable

WATERMARK_PREFIX: Final = "towpath.watermark"


class WatermarkTokens:
    """The numbers of one run of the relay."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._numbers = itertools.count(1)

    def next_id(self) -> int:
        """Return a number that no request of this run has had."""
        return next(self._numbers)

    def watermark(self, request_id: int, mark: str) -> str:
        """Return the content of a request's ``start``, ``low`` or ``high`` mark."""
        content = {"run": self._run_id, "request": request_id, "mark": mark}
        return json.dumps(content, separators=(",", ":"))


@dataclass(slots=True)
class ConsistentPoint:
    """
    The one mark behind which the tables of a run are read in one view of the database.

    All of them take notes from this mark on, and the stream is not read from there
    until they are read: a mark for each would never come by.

    Attributes:
        name: The exported snapshot: one of an earlier mark must not be taken for
            it. Empty: the mark is still to be written.
        mark: Where the view stands; None: the mark was not seen yet.
    """

    name: str = ""
    mark: WatermarkSeen | None = None


class ScanContext(NamedTuple):
    """
    The context that all readers of one table share.

    Attributes:
        snapshot_id: The signal's id, or that of the relay's own request.
        target: The one sink that gets the rows; None: they are for all.
        condition: Which rows, an SQL expression.
        select: A SELECT read in place of the table.
        shape: The table as planned.
        waiting: Keys to be read, in order.
        notes: The changed keys of the table.
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
    notes: ChangedKeys
    tokens: WatermarkTokens
    freeze: ConsistentPoint | None = None


class ConsistentPoints:
    """The freezes of all runs, by the snapshot's id."""

    def __init__(self, lent: Collection[str], start_log_lsn: int) -> None:
        """
        Know those that are there from the beginning.

        Args:
            lent: Snapshots whose view was made with the slot.
            start_log_lsn: Where the stream begins, and so where those views stand.
        """
        start = WatermarkSeen("", start_log_lsn, 0)
        self._freezes = {name: ConsistentPoint(name, start) for name in lent}

    def of(self, snapshot_id: str) -> ConsistentPoint:
        """Return the mark and view that the tables of a run share."""
        return self._freezes.setdefault(snapshot_id, ConsistentPoint())

    def forget(self, snapshot_id: str) -> None:
        """Let what begins later have another; those that share this one keep it."""
        self._freezes.pop(snapshot_id, None)

    def drop(self, snapshot_id: str, freeze: ConsistentPoint) -> str:
        """Forget one that nobody has any more; return its view's name, if any."""
        if self._freezes.get(snapshot_id) is freeze:
            self.forget(snapshot_id)
        return freeze.name


def key_ranges(stored: StoredTable, plan: ScanPlan) -> tuple[KeyRange, ...]:
    """Return what of a table's keys each reader reads; none for listed keys."""
    if stored.asked_keys is not None:
        return ()
    boundaries = () if stored.last_key else plan.boundaries
    return stored.ranges or _ranges_between(
        stored.last_key, boundaries, stored.maximum_key
    )


def _ranges_between(
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


def acknowledged_key(ranges: Iterable[KeyRange]) -> Key | None:
    """Return the key up to which everything is acknowledged; None: nothing is."""
    last_key: Key | None = None
    for one in ranges:
        if not one.is_done:
            return one.after_key
        last_key = one.last_key
    return last_key


def plan_request(
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
