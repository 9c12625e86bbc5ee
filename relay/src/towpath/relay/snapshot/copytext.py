r"""
COPY's text format: the lines of a chunk to the values of its rows, and nothing else.

A line holds columns between tabs and ends with a newline. ``\N`` alone is NULL. In a
value a backslash begins an escape: ``\b \f \n \r \t \v`` are control characters, one to
three octal digits or ``x`` and one or two hex digits are a byte, and any other
character stands for itself. What is left are the same bytes that the stream carries.
"""

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from towpath.relay.snapshot.shape import Row

_TAB: Final = b"\t"
_BACKSLASH: Final = b"\\"
_NULL: Final = rb"\N"
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_CONTROL: Final = MappingProxyType(
    {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
)


def decode_lines(lines: Iterable[bytes]) -> list[Row]:
    """Return the values of lines, each of which ends with its newline. Hot path."""
    return [
        tuple(line[:-1].split(_TAB))
        if _BACKSLASH not in line
        else tuple(
            [
                field
                if _BACKSLASH not in field
                else None
                if field == _NULL
                else _ESCAPE.sub(_unescape, field)
                for field in line[:-1].split(_TAB)
            ]
        )
        for line in lines
    ]


def _unescape(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if escape[:1] in b"01234567":
        return bytes((int(escape, 8) & 0xFF,))
    if escape[:1] == b"x" and len(escape) > 1:
        return bytes((int(escape[1:], 16),))
    return _CONTROL.get(escape, escape)
