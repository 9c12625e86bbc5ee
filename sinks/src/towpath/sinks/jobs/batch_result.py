"""What became of a batch, and of its parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class BatchResult:
    """
    What became of a batch's records.

    Attributes:
        skipped: Records that say nothing.
        asked: Rows that were asked for.
        nulled: Values that were made null because the target has no room for them.
        parked: Keys that are parked by now.
        owed: Rows that are owed by now; ``None``: as many as before.
        behind: Records that wait only because an older one of their key does.
        tombstones: Deletes among the changes.
        position: The highest of the changes' positions; empty if there was none.
    """

    records: int
    rows: int
    stale: int
    dead_letters: int
    skipped: int = 0
    asked: int = 0
    nulled: int = 0
    parked: int = 0
    behind: int = 0
    owed: int | None = field(default=None, compare=False)
    tombstones: int = field(default=0, compare=False)
    position: str = field(default="", compare=False)
    decode_ms: int = field(default=0, compare=False)
    apply_ms: int = field(default=0, compare=False)
    flush_ms: int = field(default=0, compare=False)


def total(parts: Sequence[BatchResult]) -> BatchResult:
    """Add up the parts of a batch, at least one; what is by now is so by the last."""
    *before, added = parts
    for part in before:
        added = replace(
            added,
            records=added.records + part.records,
            rows=added.rows + part.rows,
            stale=added.stale + part.stale,
            dead_letters=added.dead_letters + part.dead_letters,
            skipped=added.skipped + part.skipped,
            asked=added.asked + part.asked,
            nulled=added.nulled + part.nulled,
            behind=added.behind + part.behind,
            tombstones=added.tombstones + part.tombstones,
            position=max(added.position, part.position),
            decode_ms=added.decode_ms + part.decode_ms,
            apply_ms=added.apply_ms + part.apply_ms,
            flush_ms=added.flush_ms + part.flush_ms,
        )
    return added
