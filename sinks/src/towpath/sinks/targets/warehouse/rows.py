"""
Convert changes and events to Arrow, column by column, and Arrow back to values.

Values have the form of records: integers, floats and booleans as such, everything else
as text. A value that does not fit its column is refused with the column's name, never
rounded or cut; with ``warehouse.unfit = 'null'`` an unrepresentable value becomes null.

Hot path: one list and one conversion per column; rows are checked one by one only when
a column did not fit. ``encode_columns`` does the same for whole rows without Python
values; a slice with a value that ``encode_changes`` would refuse, leave out or convert
is left to that function, so that this handling exists only once.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.change import (
    Change,
    EventRow,
    Refusal,
    Value,
    is_nan,
    is_unrepresentable_time,
)
from towpath.sinks.changes.columns import Columns, EncodedColumns, read_rows
from towpath.sinks.key_text import text_of
from towpath.sinks.targets.warehouse.schema import (
    IS_DELETED,
    KEPT,
    POSITION,
    ROW_NUMBER,
    TIMESTAMP,
    LakeColumn,
    LakeTable,
)

# The column of an event log that limits the search for repeated events.
EVENT_TIME: Final = "occurred_at"

# The errors of Arrow and of the conversions below for a value that does not fit.
_MISFIT = (ValueError, TypeError, OverflowError)

_REMEDY: Final = "; with warehouse.unfit = 'null' the row is written with null instead"


class EncodedChanges(NamedTuple):
    """
    A batch encoded for a table.

    Attributes:
        rows: The rows to write.
        changes: The change of each row.
        refused: The changes with values that do not fit.
        nulled: The number of values made null, by column.
    """

    rows: pa.Table
    changes: tuple[Change, ...]
    refused: tuple[Refusal, ...]
    nulled: Mapping[str, int] = MappingProxyType({})


class EncodedEvents(NamedTuple):
    """Events encoded for a log; no time span is known if an event's time is invalid."""

    rows: pa.Table
    occurred_between: tuple[str, str] | None
    untimed: int


def unknown_columns(table: LakeTable, changes: Iterable[Change]) -> set[str]:
    """Return the columns that rows have, but the table's source no longer has."""
    known = frozenset(column.name for column in table.columns)
    unknown: set[str] = set()
    for change in changes:
        if change.row is not None and not known.issuperset(change.row):
            unknown |= change.row.keys() - known
    return unknown


def encode_changes(
    table: LakeTable,
    changes: Sequence[Change],
    retained: frozenset[str] = frozenset(),
    *,
    treats_unfit_as_null: bool = False,
) -> EncodedChanges:
    """
    Encode changes; a column that the table lacks is left out.

    Args:
        table: The table.
        changes: At most one per key.
        retained: Columns that the source has dropped: a row without such a column keeps
            the stored value.
        treats_unfit_as_null: Whether unrepresentable values become null.
    """
    try:
        return EncodedChanges(_whole(table, changes, retained), tuple(changes), ())
    except _MISFIT:
        if not treats_unfit_as_null:
            return _fitting(table, changes, retained)
        unfit = [_unfit_columns(table, change) for change in changes]
        pairs = list(zip(changes, unfit, strict=True))
        cleared = [_without(change, names) for change, names in pairs]
        encoded = encode_changes(table, cleared, retained)
        refused = {refusal.change.key for refusal in encoded.refused}
        written = (names for change, names in pairs if change.key not in refused)
        nulled = Counter(name for names in written for name in names)
        return encoded._replace(nulled=nulled)


def encode_keys(table: LakeTable, changes: Sequence[Change]) -> pa.Table:
    """Encode the keys of changes that fit the table, with their row numbers."""
    rows = [_fields(change) for change in changes]
    key = [c for c in table.columns if c.is_key]
    arrays = {c.name: _array(c, [row.get(c.name) for row in rows]) for c in key}
    return pa.table({**arrays, ROW_NUMBER: pa.array(range(len(rows)), pa.int64())})


def encode_events(table: LakeTable, events: Sequence[EventRow]) -> EncodedEvents:
    """Encode events; an unrepresentable time becomes null."""
    times, untimed = _times(events)
    arrays = [
        times
        if column.name == EVENT_TIME
        else pa.array([getattr(e, column.name) for e in events], pa.string())
        for column in table.columns
    ]
    rows = pa.table(arrays, schema=table.schema)
    return EncodedEvents(rows, None if untimed else time_span(rows), untimed)


def time_span(rows: pa.Table) -> tuple[str, str] | None:
    """Return the span of the events' times, if there are any events."""
    if not rows.num_rows:
        return None
    texts = rows.column(EVENT_TIME).cast(pa.string()).to_pylist()
    return min(texts), max(texts)


def _times(events: Sequence[EventRow]) -> tuple[pa.Array, int]:
    try:
        texts = pa.array([e.occurred_at for e in events], pa.string())
        return texts.cast(TIMESTAMP.arrow), 0
    except _MISFIT:
        times = [_time(e.occurred_at) for e in events]
        return pa.array(times, TIMESTAMP.arrow), times.count(None)


def _time(text: str) -> Any:  # noqa: ANN401 - an Arrow scalar's own value
    try:
        return pa.array([text]).cast(TIMESTAMP.arrow)[0].as_py()
    except _MISFIT:
        return None


def slices(rows: pa.Table, most_bytes: int) -> list[pa.Table]:
    """Split rows evenly into slices of at least one row and at most about this size."""
    count = min(-(-rows.nbytes // most_bytes), rows.num_rows)
    if count <= 1:
        return [rows] if rows.num_rows else []
    size = -(-rows.num_rows // count)
    return [rows.slice(begin, size) for begin in range(0, rows.num_rows, size)]


def key_span(table: LakeTable, rows: pa.Table) -> tuple[int, int] | None:
    """Return the span of the key's first column, if it contains integers."""
    first = rows.column(table.key[0])
    if not pa.types.is_integer(first.type) or not rows.num_rows:
        return None
    span = pc.min_max(first).as_py()
    return span["min"], span["max"]


def key_hashes(table: LakeTable, rows: pa.Table) -> pa.Array:
    """
    Return the hashes of the rows' keys; they are the same in all processes.

    Values are hashed as the table stores them, because different texts can be stored as
    the same number. A key of one integer is its own hash.
    """
    first = rows.column(table.key[0])
    if len(table.key) == 1 and pa.types.is_integer(first.type):
        return first.cast(pa.int64()).combine_chunks()
    # A key of one integer does not need the library, which is slow to load.
    from pandas.util import hash_pandas_object  # noqa: PLC0415

    keys = pa.table({name: _hashed(rows.column(name)) for name in table.key})
    frame = keys.to_pandas()
    hashes = hash_pandas_object(frame, index=False, categorize=False)
    return pa.array(hashes.to_numpy().view("int64"), pa.int64())


def _hashed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text of each of a key's values; equal values have the same text."""
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_floating(column.type):
        # -0.0 and 0.0 are equal: the addition makes both 0.0.
        column = pc.add(column, pa.scalar(0.0, column.type))
    return column.cast(pa.string())


def _whole(
    table: LakeTable, changes: Sequence[Change], retained: frozenset[str]
) -> pa.Table:
    rows = [_fields(change) for change in changes]
    arrays = []
    for column in table.columns:
        if column.name == POSITION:
            arrays.append(pa.array([c.position for c in changes], pa.string()))
        elif column.name == IS_DELETED:
            arrays.append(pa.array([c.row is None for c in changes], pa.bool_()))
        else:
            arrays.append(_array(column, [row.get(column.name) for row in rows]))
    encoded = pa.table(arrays, schema=table.schema)
    if retained or any(change.unchanged for change in changes):
        kept = [
            sorted(c.unchanged | (retained - row.keys()))
            for c, row in zip(changes, rows, strict=True)
        ]
        encoded = encoded.append_column(KEPT, pa.array(kept, pa.list_(pa.string())))
    return encoded


def _fitting(
    table: LakeTable, changes: Sequence[Change], retained: frozenset[str]
) -> EncodedChanges:
    """
    Encode the changes that fit, and refuse the others.

    A delete whose key does not fit is dropped: no row can have the key.
    """
    fitting, refused = [], []
    for change in changes:
        reason = _misfit(table, change)
        if reason is None:
            fitting.append(change)
        elif change.row is not None:
            refused.append(Refusal(change, reason))
    rows = _whole(table, fitting, retained)
    return EncodedChanges(rows, tuple(fitting), tuple(refused))


def _without(change: Change, names: Sequence[str]) -> Change:
    """Make the values of columns null."""
    if not names:
        return change
    return change._replace(row={**(change.row or {}), **dict.fromkeys(names)})


def _unfit_columns(table: LakeTable, change: Change) -> list[str]:
    """Return the columns whose values are unrepresentable."""
    row = change.row or {}
    return [
        column.name
        for column in table.columns
        if _is_unfit(column, row.get(column.name))
    ]


def _is_unfit(column: LakeColumn, value: Value) -> bool:
    """Return whether a value is unrepresentable, and may be written as null."""
    kind = column.type.arrow
    if column.is_key:
        return False
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return is_unrepresentable_time(value)
    return pa.types.is_decimal(kind) and is_nan(value)


def _fields(change: Change) -> Any:  # noqa: ANN401 - a row's mapping
    """Return the row, or the key of a delete."""
    if change.row is None:
        return dict(zip(change.key_columns, change.key, strict=True))
    return change.row


def _misfit(table: LakeTable, change: Change) -> str | None:
    fields = _fields(change)
    for column in table.columns:
        try:
            _array(column, [fields.get(column.name)])
        except _MISFIT:
            reason = f"the value of {column.name} does not fit {column.type.ddl}"
            is_unfit = _is_unfit(column, fields.get(column.name))
            return reason + (_REMEDY if is_unfit else "")
    return None


def _array(column: LakeColumn, values: list[Value]) -> pa.Array:
    kind = column.type.arrow
    if pa.types.is_string(kind):
        texts = [v if v is None or type(v) is str else text_of(v) for v in values]
        return pa.array(texts, kind)
    if pa.types.is_integer(kind):
        # Arrow would silently drop a fraction.
        if any(type(v) is float for v in values):
            message = "not an integer"
            raise ValueError(message)
        return pa.array(values, kind)
    if pa.types.is_boolean(kind):
        return pa.array(values, kind)
    if pa.types.is_floating(kind):
        # NaN and the infinities are strings.
        return pa.array([None if v is None else float(v) for v in values], kind)
    if pa.types.is_binary(kind):
        return pa.array([_bytes(v) for v in values], kind)
    return pa.array(values, pa.string()).cast(kind)


def _bytes(value: Value) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        message = "not base64"
        raise TypeError(message)
    return base64.b64decode(value, validate=True)


_OWN: Final = (POSITION, IS_DELETED)
# Arrow's errors for a value that does not fit, or for a type that it cannot read.
_COLUMN_MISFIT: Final = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
)


def encode_columns(table: LakeTable, columns: Columns) -> EncodedColumns | None:
    """Encode whole rows of plain records; ``None`` if ``encode_changes`` must do it."""
    own = [c for c in table.columns if c.name not in _OWN]
    if any(pa.types.is_binary(column.type.arrow) for column in own):
        return None
    wanted = pa.struct([(c.name, _in_json(c.type.arrow)) for c in own])
    try:
        read = read_rows(columns, wanted)
        # Fields that the table does not have are left to ``encode_changes``.
        if read.rows.type.num_fields != wanted.num_fields:
            return None
        rows = read.rows.filter(read.is_whole)
        arrays = [rows.field(c.name).cast(c.type.arrow) for c in own]
    except _COLUMN_MISFIT:
        return None
    positions = columns.positions.filter(read.is_whole)
    arrays += [positions, pa.repeat(pa.scalar(value=False), len(rows))]
    encoded = pa.table(arrays, schema=table.schema)
    if any(encoded.column(name).null_count for name in table.key):
        return None
    return EncodedColumns(encoded, columns.indices.filter(read.is_whole))


def _in_json(kind: pa.DataType) -> pa.DataType:
    """Return the type in a record: numbers and booleans as such, all else as text."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_boolean(kind) else pa.string()


# From this scale on, Arrow writes small decimals with an exponent.
_FIRST_SCALE_WITH_EXPONENT: Final = 7


def values_of(column: pa.Array) -> list[Value]:
    """Return a column's values in the form of records."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Arrow writes a space between date and time, and six decimals of the second.
        texts = pc.replace_substring(
            column.cast(pa.string()), " ", "T", max_replacements=1
        )
        return list(texts.to_pylist())
    if pa.types.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_decimal(kind):
        return _decimals(column)
    if pa.types.is_floating(kind):
        return [_float(v) for v in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [
            None if v is None else base64.b64encode(v).decode()
            for v in column.to_pylist()
        ]
    return list(column.to_pylist())


def _decimals(column: pa.Array) -> list[Value]:
    if column.type.scale < _FIRST_SCALE_WITH_EXPONENT:
        return list(column.cast(pa.string()).to_pylist())
    return [None if v is None else format(v, "f") for v in column.to_pylist()]


def _float(value: float | None) -> Value:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
