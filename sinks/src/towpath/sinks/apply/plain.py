"""
Plain slices of a batch: readable changes that depend on nothing outside the slice.

Executors and pipelined writers write only plain slices. A batch with anything else (a
floor, an event, an unreadable record, a parked key, a pending refetch) is written again
as a whole by ``BatchWriter``; the guard absorbs the changes already written. So
refetches, dead letters, sweeps and parking are handled in one place. Pure.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from towpath.sinks.change import Change, Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import ParkedKey, shared_topic
from towpath.sinks.fold import newest_per_key

# The reason to write a plain batch again: the target may have lost its rows.
ROWS_LOST: Final = "the target was found to lack rows"


class PlainSlice(NamedTuple):
    """
    The decoded records of a slice.

    Attributes:
        changes: At most one per route and key.
        skipped: Records without a change for any route.
        tombstones: Deletes among the changes.
        position: The highest position of the changes; empty if there was none.
        fallback_reason: Why the slice is not plain; empty if it is.
    """

    changes: tuple[Change, ...]
    skipped: int
    tombstones: int
    position: str
    fallback_reason: str


def decode_plain(
    records: Sequence[Record],
    routes: Routes,
    blocked_keys: Collection[ParkedKey],
    incomplete_routes: Collection[str] = (),
) -> PlainSlice:
    """
    Decode and fold the records of a slice.

    Args:
        records: The records.
        routes: The routes of the sink.
        blocked_keys: Keys that are parked or have a refetch pending.
        incomplete_routes: Routes that lack rows.
    """
    decoded = decode(records, routes)
    folded = newest_per_key(decoded.changes)
    reasons = {
        "a key is parked or has a refetch pending": _has_any(records, blocked_keys),
        "a record cannot be read": bool(decoded.unreadable),
        "rows below a floor are to be deleted": bool(decoded.floors),
        "a route is an event log": bool(decoded.events),
        "a partial change has no row to be merged with": bool(folded.refused),
        "a partial change follows a row read by a snapshot": bool(folded.after),
        "a partial change follows a row that may be stale": any(
            change.unchanged and change.route in incomplete_routes
            for change in folded.changes
        ),
    }
    return PlainSlice(
        changes=folded.changes,
        skipped=decoded.skipped,
        tombstones=sum(change.row is None for change in folded.changes),
        position=max((change.position for change in decoded.changes), default=""),
        fallback_reason=next(
            (reason for reason, holds in reasons.items() if holds), ""
        ),
    )


def _has_any(records: Sequence[Record], keys: Collection[ParkedKey]) -> bool:
    return bool(keys) and any(
        record.key is not None
        and ParkedKey(shared_topic(record.origin.topic), record.key) in keys
        for record in records
    )
