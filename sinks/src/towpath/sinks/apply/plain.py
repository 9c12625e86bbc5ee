"""
The plain part of a batch: changes that can be read, and that nothing has to wait for.

Whoever writes a batch in pieces, on executors or portion by portion, writes only what
is plain. Anything else, a floor, an event, a record that cannot be read, a parked key,
a row that is owed, has the whole batch written again in the ordinary way; the guards
absorb what stands there already. So asking, dead letters, sweeps and parking stay in
one place. Pure.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from towpath.sinks.change import Change, Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import ParkedKey, shared_topic
from towpath.sinks.fold import newest_per_key

# Also why a batch is written again that was plain: what it rests upon may be gone.
ROWS_LOST: Final = "the target was found to lack rows"


class PlainSlice(NamedTuple):
    """
    What some records of a batch say.

    Attributes:
        changes: At most one per route and key.
        skipped: Records that say nothing.
        tombstones: Deletes among the changes.
        position: The highest of the changes' positions; empty if there was none.
        left: Why the batch is to be written in the ordinary way; empty if it is plain.
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
    Read and fold records.

    Args:
        records: A slice of a batch.
        routes: The routes of the sink.
        blocked_keys: Keys that are parked or have a refetch pending.
        incomplete_routes: Routes that lack rows.
    """
    decoded = decode(records, routes)
    folded = newest_per_key(decoded.changes)
    reasons = {
        "a key is parked, or its row is owed": _has_any(records, blocked_keys),
        "a record cannot be read": bool(decoded.poison),
        "rows below a floor are to go": bool(decoded.floors),
        "an event log is kept": bool(decoded.events),
        "a partial change has no row to rest upon": bool(folded.refused),
        "a partial change rests upon a row that was read": bool(folded.after),
        "a partial change rests upon a row that may be stale": any(
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
