"""
Whole rows as a table's columns, without a value of each. Pure.

What comes out is what ``rows`` would lay out; whatever that would refuse, leave out or
convert is not taken here, so that there is one place for it.
"""

from typing import Final

import pyarrow as pa

from towpath.sinks.columns import Columns, LaidRows, read_rows
from towpath.sinks.warehouse.tables import IS_DELETED, POSITION, LakeTable

_OWN: Final = (POSITION, IS_DELETED)
# What Arrow raises for a value that does not fit, or for a type that it cannot read.
_MISFIT: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def lay_out(table: LakeTable, columns: Columns) -> LaidRows | None:
    """Lay out the whole rows of plain records; ``None`` if one does not fit."""
    own = [c for c in table.columns if c.name not in _OWN]
    if any(pa.types.is_binary(column.type.arrow) for column in own):
        return None
    wanted = pa.struct([(c.name, _in_json(c.type.arrow)) for c in own])
    try:
        read = read_rows(columns, wanted)
        # A field that the table does not have is somebody else's to judge.
        if read.rows.type.num_fields != wanted.num_fields:
            return None
        rows = read.rows.filter(read.is_whole)
        arrays = [rows.field(c.name).cast(c.type.arrow) for c in own]
    except _MISFIT:
        return None
    positions = columns.positions.filter(read.is_whole)
    arrays += [positions, pa.repeat(pa.scalar(value=False), len(rows))]
    laid = pa.table(arrays, schema=table.schema)
    if any(laid.column(name).null_count for name in table.key):
        return None
    return LaidRows(laid, columns.places.filter(read.is_whole))


def _in_json(kind: pa.DataType) -> pa.DataType:
    """Return how a record carries a type: numbers as such, all else as text."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_boolean(kind) else pa.string()
