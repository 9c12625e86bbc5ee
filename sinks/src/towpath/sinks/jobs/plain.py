"""
The plain part of a batch: changes that can be read, and that nothing has to wait for.

Whoever writes a batch in pieces, on executors or portion by portion, writes only what
is plain. Anything else, a floor, an event, a record that cannot be read, a parked key,
has the whole batch written again in the ordinary way; the guards absorb what stands
there already. So asking, dead letters, sweeps and parking stay in one place. Pure.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from towpath.sinks.change import Change, Record
from towpath.sinks.dead_letters.letter import ParkedKey, shared_topic
from towpath.sinks.decode import decode
from towpath.sinks.fold import newest_per_key
from towpath.sinks.routes import Routes


class Plain(NamedTuple):
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
    left: str


def plain_of(
    records: Sequence[Record], routes: Routes, parked: Collection[ParkedKey]
) -> Plain:
    """Read and fold records."""
    decoded = decode(records, routes)
    folded = newest_per_key(decoded.changes)
    reasons = {
        "a key is parked": _has_parked(records, parked),
        "a record cannot be read": bool(decoded.poison),
        "rows below a floor are to go": bool(decoded.floors),
        "an event log is kept": bool(decoded.events),
        "a partial change rests upon a delete": bool(folded.refused),
    }
    return Plain(
        changes=folded.changes,
        skipped=decoded.skipped,
        tombstones=sum(change.row is None for change in folded.changes),
        position=max((change.position for change in decoded.changes), default=""),
        left=next((reason for reason, holds in reasons.items() if holds), ""),
    )


def _has_parked(records: Sequence[Record], parked: Collection[ParkedKey]) -> bool:
    return bool(parked) and any(
        record.key is not None
        and ParkedKey(shared_topic(record.origin.topic), record.key) in parked
        for record in records
    )
