"""
The context that the readers of one table share.

It holds the keys to be read, the recorded changes, the request numbers and watermark
contents, and the consistent point of the run.
"""

import itertools
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.protocol import ReadPlan, WatermarkSeen
from towpath.relay.snapshot.shape import Key, KeyRange, ScanPlan, TableShape
from towpath.relay.snapshot.stored import StoredTable

WATERMARK_PREFIX: Final = "towpath.watermark"


class WatermarkTokens:
    """
    The request numbers and watermark contents of one run of the relay.

    The run's id is part of each watermark, so a watermark that a dead process left in
    the log matches no window when it is streamed again.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._numbers = itertools.count(1)

    def next_id(self) -> int:
        """Return an unused request number."""
        return next(self._numbers)

    def watermark(self, request_id: int, mark: str) -> str:
        """Return the content of a request's ``start``, ``low`` or ``high`` mark."""
        content = {"run": self._run_id, "request": request_id, "mark": mark}
        return json.dumps(content, separators=(",", ":"))


@dataclass(slots=True)
class ConsistentPoint:
    """
    The mark and the exported snapshot that the tables of one run share.

    All these tables record changes from this mark on. The stream stops at the mark
    until the tables are read, so it could not deliver a separate mark for each table.

    Attributes:
        view: The name of the exported snapshot, which is also the mark's content, so
            that an earlier mark does not match. Empty until a mark is requested.
        mark: The mark in the stream; None until it is seen.
    """

    view: str = ""
    mark: WatermarkSeen | None = None


class ScanContext(NamedTuple):
    """
    The context that all readers of one table share.

    Attributes:
        snapshot_id: The signal's id, or that of a batch of key requests.
        target: The one sink that receives the rows; None if all do.
        condition: The signal's filter, an SQL expression.
        select: A SELECT read in place of the table.
        shape: The table as planned.
        pending_keys: Keys to be read, in order.
        changed_keys: The recorded changes to the table.
        tokens: Request numbers and watermarks.
        consistent_point: The exported snapshot from which all chunks are read; None if
            each chunk has its own watermarks.
    """

    snapshot_id: str
    target: str | None
    condition: str | None
    select: str | None
    shape: TableShape
    pending_keys: dict[Key, None]
    changed_keys: ChangedKeys
    tokens: WatermarkTokens
    consistent_point: ConsistentPoint | None = None


class ConsistentPoints:
    """The consistent points of all runs, by the snapshot's id."""

    def __init__(self, slot_snapshots: Collection[str], start_log_lsn: int) -> None:
        """
        Start with the points that exist already.

        Args:
            slot_snapshots: The ids of snapshots that read the slot's exported snapshot.
            start_log_lsn: The start of the stream, which is the consistent point of
                these snapshots.
        """
        start = WatermarkSeen("", start_log_lsn, 0)
        self._points = {name: ConsistentPoint(name, start) for name in slot_snapshots}

    def get(self, snapshot_id: str) -> ConsistentPoint:
        """Return the point of a run; it is created if there is none."""
        return self._points.setdefault(snapshot_id, ConsistentPoint())

    def forget(self, snapshot_id: str) -> None:
        """Forget a run's point: tables that begin later share a new one."""
        self._points.pop(snapshot_id, None)

    def drop(self, snapshot_id: str, point: ConsistentPoint) -> str:
        """Drop a point that no scan uses anymore; return its snapshot, if any."""
        if self._points.get(snapshot_id) is point:
            self.forget(snapshot_id)
        return point.view


def key_ranges(stored: StoredTable, plan: ScanPlan) -> tuple[KeyRange, ...]:
    """Return the key range of each reader; none for listed keys."""
    if stored.asked_keys is not None:
        return ()
    boundaries = () if stored.last_key else plan.boundaries
    return stored.ranges or _ranges_between(
        stored.last_key, boundaries, stored.maximum_key
    )


def _ranges_between(
    after_key: Key | None, boundaries: Iterable[Key], last_key: Key | None
) -> tuple[KeyRange, ...]:
    """Return the ranges between keys, in order; none if there is nothing to read."""
    if last_key is None:
        return ()
    ranges = []
    for boundary in boundaries:
        ranges.append(KeyRange(after_key, boundary))
        after_key = boundary
    return (*ranges, KeyRange(after_key, last_key))


def acknowledged_key(ranges: Iterable[KeyRange]) -> Key | None:
    """Return the key up to which all rows are acknowledged; None if there is none."""
    last_key: Key | None = None
    for one in ranges:
        if not one.is_done:
            return one.after_key
        last_key = one.last_key
    return last_key


def plan_request(
    table: StoredTable, request_id: int, parts: int, view: str | None
) -> ReadPlan:
    """Return the request for a table's plan."""
    return ReadPlan(
        request_id,
        table.collection,
        table.table_oid,
        condition=table.filter,
        select=table.select,
        keys_of=None if table.asked_keys is None else table.snapshot_id,
        order_by=table.order_by,
        parts=parts,
        view=view,
    )
