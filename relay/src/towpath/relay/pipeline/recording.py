"""Tells a table's recorder which keys a change touched. Hot path while it records."""

from towpath.relay.routing.table import complete
from towpath.relay.snapshot.touches import Touches
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.relay.wal.sequencer import Change


def touch(touches: Touches, change: Change, sequence: int) -> None:
    """Tell a table's recorder which keys a change touched."""
    relation, xid = change.relation, change.transaction.xid
    new, old = change.new, change.old
    if new is None:
        touches.touch(_key(old or (), relation.key), xid, sequence)
        return
    if old is not None:
        new = complete(new, old, relation, is_full=change.is_full)
    partial = UNCHANGED in new
    new_key = _key(new, relation.key)
    old_key = new_key if old is None else _key(old, relation.key)
    if old_key == new_key:
        touches.touch(new_key, xid, sequence, partial=partial)
    else:
        touches.move(old_key, new_key, xid, sequence, partial=partial)


def _key(row: Row, indexes: tuple[int, ...]) -> tuple[bytes, ...]:
    values = (row[index] for index in indexes)
    return tuple(value if isinstance(value, bytes) else b"" for value in values)
