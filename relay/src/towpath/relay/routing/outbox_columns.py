"""
Which column of an outbox table is what: the mapping of ``[relay.outbox.columns]``.

A picker takes the eight parts of an event from a row, in one order whatever the table
looks like, ``bytea`` as the bytes that it stands for. With text columns it is one
``itemgetter``: it runs for every row. Hot path.
"""

import binascii
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from towpath.relay.errors import NotPreparedError
from towpath.relay.routing.trace import TRACING_COLUMN, from_properties
from towpath.relay.wal.messages import Row, Value
from towpath.relay.wal.relation import Relation
from towpath.settings.outbox import OutboxColumns

BYTEA: Final = 17
JSON_TYPES: Final = frozenset({114, 3802})

# The parts, by their names in the table of our own, in the order of a picker.
PARTS: Final = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "traceparent",
    "occurred_at",
)
_KEY_AT: Final = PARTS.index("aggregate_id")
_PAYLOAD_AT: Final = PARTS.index("payload")
_TRACE_AT: Final = PARTS.index("traceparent")
_ABSENT: Final = -1

# An inserted row is whole: its parts are bytes, or None.
Parts = tuple[bytes | None, ...]
Picker = Callable[[Row], Parts]


def names(columns: OutboxColumns) -> tuple[str, ...]:
    """Return the table's name of each part; empty for one that it does not have."""
    return tuple(getattr(columns, part) for part in PARTS)


def places(relation: Relation) -> dict[str, int]:
    """Return where each column of a table stands in its rows."""
    return {column.name: at for at, column in enumerate(relation.columns)}


def place(relation: Relation, column: str) -> int:
    """
    Return where a column that is needed stands.

    Raises:
        NotPreparedError: The table lacks it.
    """
    at = places(relation).get(column)
    if at is None:
        reason = f"{relation.name} lacks the column {column}"
        raise NotPreparedError(reason)
    return at


def type_oid(relation: Relation, column: str) -> int:
    """Return a column's type; 0 without such a column."""
    types = {each.name: each.type_oid for each in relation.columns}
    return types.get(column, 0)


def picker(relation: Relation, columns: OutboxColumns) -> Picker:
    """
    Return what takes the parts of an event from a row of the table.

    Raises:
        NotPreparedError: The table lacks columns that the mapping names.
    """
    known = places(relation)
    wanted = names(columns)
    missing = [name for name in wanted if name and name not in known]
    if missing:
        reason = f"{relation.name} lacks the columns {', '.join(missing)}"
        raise NotPreparedError(reason)
    pick: Picker = itemgetter(*(known.get(name, _ABSENT) for name in wanted))
    if "" in wanted:
        # The last place of the longer row is empty.
        inner = pick
        pick = lambda row: inner((*row, None))  # noqa: E731 - a closure, not a name
    steps: dict[int, Callable[[bytes], bytes | None]] = {
        at: _unhex
        for at in (_KEY_AT, _PAYLOAD_AT)
        if type_oid(relation, wanted[at]) == BYTEA
    }
    if columns.traceparent == TRACING_COLUMN:
        steps[_TRACE_AT] = from_properties
    return _with_steps(pick, steps) if steps else pick


def as_bytes(value: Value, oid: int) -> bytes | None:
    """Return a column's value as bytes: its text, or what a ``bytea`` stands for."""
    if not isinstance(value, bytes):
        return None
    return _unhex(value) if oid == BYTEA else value


def _with_steps(
    pick: Picker, steps: dict[int, Callable[[bytes], bytes | None]]
) -> Picker:
    listed = tuple(steps.items())

    def picked(row: Row) -> Parts:
        parts = list(pick(row))
        for at, step in listed:
            value = parts[at]
            if value is not None:
                parts[at] = step(value)
        return tuple(parts)

    return picked


def _unhex(text: bytes) -> bytes:
    return binascii.unhexlify(text[2:])
