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
from towpath.sinks.values import text_of

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


def canonical_of(type_name: str) -> Canonical:
    """Return how values of a Postgres type are written."""
    return _BY_TYPE.get(type_name, canonical)
