"""
Arrow columns back into values as records carry them. Pure.

Integers, floats and booleans as such, decimals and times as text, bytes as base64: the
inverse of what ``rows`` does.
"""

import base64
import math
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.change import Value

# From this scale on Arrow writes small decimals with an exponent.
_FIRST_SCALE_WITH_EXPONENT: Final = 7


def values_of(column: pa.Array) -> list[Value]:
    """Return a column's values as a record would carry them."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Arrow writes a blank between date and time, and six digits after the point.
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
