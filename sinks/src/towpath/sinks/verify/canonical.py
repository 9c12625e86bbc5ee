"""
One text per value, whatever held it. Pure.

Both sides are brought to the text that a record carries. The source does it in SQL, the
sinks' readers give values as records do; what is left is to write numbers and booleans
as text, and floats, which have many texts, as the shortest that means the same.
"""

import struct
from collections.abc import Callable
from typing import Final

from towpath.sinks.change import Value
from towpath.sinks.unfit import is_no_instant, is_no_number
from towpath.sinks.values import text_of
from towpath.sinks.verify.table import UTC_TIMESTAMP

Canonical = Callable[[Value], str | None]


def canonical(value: Value) -> str | None:
    """Write any value but a float."""
    return None if value is None else text_of(value)


def canonical_double(value: Value) -> str | None:
    """Write a float of 64 bits."""
    return None if value is None else repr(float(value))


def canonical_real(value: Value) -> str | None:
    """Write a float of 32 bits, which some sinks hold in 64."""
    if value is None:
        return None
    return repr(struct.unpack("f", struct.pack("f", float(value)))[0])


_BY_TYPE: Final[dict[str, Canonical]] = {
    "real": canonical_real,
    "double precision": canonical_double,
}

# What a warehouse may hold null for.
_UNFIT: Final[dict[str, Callable[[Value], bool]]] = {
    "numeric": is_no_number,
    "date": is_no_instant,
    "timestamp with time zone": is_no_instant,
    "timestamp without time zone": is_no_instant,
    UTC_TIMESTAMP: is_no_instant,
}


def canonical_of(type_name: str, *, nulls_unfit: bool = False) -> Canonical:
    """
    Return how values of a Postgres type are written.

    Args:
        type_name: Postgres's own name of it.
        nulls_unfit: Whether what no warehouse has room for is null, on both sides.
    """
    is_unfit = _UNFIT.get(type_name) if nulls_unfit else None
    if is_unfit is None:
        return _BY_TYPE.get(type_name, canonical)
    return lambda value: None if is_unfit(value) else canonical(value)
