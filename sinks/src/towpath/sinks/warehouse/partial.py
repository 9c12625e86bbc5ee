"""
Partial changes: those that rest upon a row which only the warehouse still has.

A partial change whose row is absent or deleted is refused, and its row asked for.
Looking first and writing
then is safe, because there is one writer.
"""

from typing import Any, Final

import pyarrow as pa

from towpath.sinks.change import Change, Refusal
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import SqlSession
from towpath.sinks.warehouse.merge import stored_positions
from towpath.sinks.warehouse.rows import Laid, lay_out_keys
from towpath.sinks.warehouse.tables import IS_DELETED, POSITION, ROW_NUMBER, LakeTable

_KEYS: Final = "towpath_keys"


def without_absent(session: SqlSession, table: LakeTable, laid: Laid) -> Laid:
    """Refuse the partial changes of a batch whose row the table does not have."""
    partial = [n for n, change in enumerate(laid.changes) if change.unchanged]
    if not partial:
        return laid
    keys = lay_out_keys(table, [laid.changes[n] for n in partial])
    session.register(_KEYS, keys)
    found = session.sql(stored_positions(table, _KEYS)).to_pylist()
    stored = {partial[row[ROW_NUMBER]]: row for row in found}
    absent = {n for n in partial if _is_absent(stored.get(n), laid.changes[n])}
    if not absent:
        return laid
    places = range(len(laid.changes))
    return laid._replace(
        rows=laid.rows.filter(pa.array([n not in absent for n in places], pa.bool_())),
        changes=tuple(laid.changes[n] for n in places if n not in absent),
        refused=(
            *laid.refused,
            *(Refusal(laid.changes[n], ABSENT_ROW, asks=True) for n in sorted(absent)),
        ),
    )


def _is_absent(stored: dict[str, Any] | None, change: Change) -> bool:
    """Tell whether there is nothing to merge with; an older change is merely stale."""
    if stored is None:
        return True
    is_deleted: bool = stored[IS_DELETED]
    position: str = stored[POSITION]
    return is_deleted and position <= change.position
