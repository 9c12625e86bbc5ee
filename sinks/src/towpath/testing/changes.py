"""Makes changes of the two tables of the contract, and tells what they come to."""

from collections.abc import Iterable
from itertools import count
from typing import Final

from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin, Row, Value
from towpath.sinks.fold import newest_per_key
from towpath.sinks.key_text import text_of
from towpath.sinks.ports import Batch, Checkpoint, Sink, StoredRow
from towpath.testing.target import SinkTarget

READ: Final = -1

# A batch that comes again as another batch is a repetition that a sink must bear.
_batch_ids = count()


def at(log_lsn: int, ordinal: int = 0) -> str:
    """Write a position; the log's steps are of eight bytes."""
    place = "-" if ordinal == READ else f"{ordinal:010d}"
    return f"{log_lsn * 8:016x}.{place}"


def order(
    target: SinkTarget,
    position: str,
    row: Row | None,
    *,
    key: int = 7,
    unchanged: Iterable[str] = (),
) -> Change:
    """Make a change of an order; ``None`` deletes it."""
    full = None if row is None else {"order_id": key, **row}
    return Change(
        target.orders,
        (key,),
        ("order_id",),
        position,
        full,
        frozenset(unchanged) or ALL_PRESENT,
        position.endswith("-"),
        Origin(target.orders_topic, 0, 0),
    )


def label(target: SinkTarget, position: str, name: str, note: str) -> Change:
    """Make a change of a label, whose key is text."""
    row = {"name": name, "note": note}
    origin = Origin("labels", 0, 0)
    return Change(
        target.labels,
        (name,),
        ("name",),
        position,
        row,
        ALL_PRESENT,
        is_read=False,
        origin=origin,
    )


def apply(sink: Sink, *changes: Change) -> Checkpoint:
    """Fold changes into one batch, apply it, and return what became of it."""
    folded = newest_per_key(changes)
    sink.apply(Batch(next(_batch_ids), folded.changes))
    return sink.flush()


def floor(target: SinkTarget, position: str) -> Floor:
    """Make a floor of the orders."""
    origin = Origin(target.orders_topic, 0, 0)
    return Floor(target.orders, position, needs_all=False, origin=origin)


def sweep(sink: Sink, floor: Floor, *changes: Change) -> Checkpoint:
    """Apply changes in one batch with a floor, and return what became of it."""
    folded = newest_per_key(changes)
    sink.apply(Batch(next(_batch_ids), folded.changes, (), (floor,)))
    return sink.flush()


def live(key: int, position: str, **fields: Value) -> StoredRow:
    """Describe an order as a target should hold it."""
    told = {"order_id": key, **fields}
    texts = {name: text_of(v) for name, v in told.items() if v is not None}
    return StoredRow(str(key), texts, position, is_deleted=False)


def gone(key: int, position: str) -> StoredRow:
    """Describe a tombstone of an order."""
    return StoredRow(str(key), {}, position, is_deleted=True)
