"""
Booleans, integers and floats: numbers as Postgres writes them. Hot path.

What JSON has no number for (``NaN`` and the infinities) is its name as a string.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from towpath.relay.routing.forms.form import Form, Fragments, Schema

_BOOLEANS: Final = MappingProxyType({b"t": b"true", b"f": b"false"})
_NO_NUMBERS: Final = MappingProxyType(
    {b"NaN": b'"NaN"', b"Infinity": b'"Infinity"', b"-Infinity": b'"-Infinity"'}
)


def number_json(text: bytes) -> bytes:
    """Write what is a JSON number already."""
    return text


def number_column(texts: Sequence[bytes]) -> Fragments:
    """Write what are JSON numbers already."""
    return Fragments(texts)


def float_json(text: bytes) -> bytes:
    """Write a float."""
    return _NO_NUMBERS.get(text, text)


def float_column(texts: Sequence[bytes]) -> Fragments:
    """Write floats."""
    if _NO_NUMBERS.keys().isdisjoint(texts):
        return Fragments(texts)
    return Fragments(list(map(float_json, texts)))


def boolean_json(text: bytes) -> bytes:
    """Write ``t`` or ``f``."""
    return _BOOLEANS[text]


def boolean_column(texts: Sequence[bytes]) -> Fragments:
    """Write many of them."""
    return Fragments(list(map(_BOOLEANS.__getitem__, texts)))


def boolean_value(text: bytes) -> bool:
    """Read ``t`` or ``f``."""
    return text == b"t"


BOOLEAN: Final = Form(
    Schema("boolean"), boolean_json, boolean_value, column=boolean_column
)
INT16: Final = Form(Schema("int16"), number_json, int, column=number_column)
INT32: Final = Form(Schema("int32"), number_json, int, column=number_column)
INT64: Final = Form(Schema("int64"), number_json, int, column=number_column)
FLOAT: Final = Form(Schema("float"), float_json, float, column=float_column)
DOUBLE: Final = Form(Schema("double"), float_json, float, column=float_column)
