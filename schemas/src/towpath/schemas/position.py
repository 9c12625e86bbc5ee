"""
The one total order of changes.

``Position(log_lsn, ordinal)``: the LSN of the transaction's commit record plus the
offset of its lineage, then the zero-based index of the change in its transaction,
counted as received. Positions alone decide which of two changes is newer.

The text form sorts as positions compare: sixteen lower-case hex digits, a dot, ten
decimal digits. A READ row has ordinal -1, written ``-``, which sorts before every
digit: the row is above all commits before its low watermark, and below all commits
after it. If one change becomes several records, they are numbered from the second on:
``….0000000003.1``.
"""

import re
from typing import Final, NamedTuple, NewType

Lsn = NewType("Lsn", int)

READ_ORDINAL: Final = -1

# Commit LSNs are multiples of 8, so their last three bits are dropped. The remaining 51
# bits, enough for 16 PiB of log, and twelve bits of ordinal below them fit into a
# signed 64-bit integer.
_ALIGNMENT_BITS: Final = 3
_ORDINAL_BITS: Final = 12
SHARED_ORDINAL: Final = (1 << _ORDINAL_BITS) - 1
_MAX_LOG_LSN: Final = 1 << (63 - _ORDINAL_BITS + _ALIGNMENT_BITS)

_LSN_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")
_POSITION_TEXT: Final = re.compile(r"([0-9a-f]{16})\.(-|[0-9]{10})(?:\.[0-9]+)?\Z")


class Position(NamedTuple):
    """Commit LSN, then ordinal in the transaction; compares in commit order."""

    log_lsn: int
    ordinal: int

    def __str__(self) -> str:
        return format_position(self.log_lsn, self.ordinal)


def format_position(log_lsn: int, ordinal: int, number: int = 0) -> str:
    """
    Write a position as text that sorts as positions compare.

    Args:
        log_lsn: Lineage offset plus the LSN of the commit record.
        ordinal: Index of the change in its transaction; -1 for a READ row.
        number: Index of the record among those of the same change.
    """
    place = "-" if ordinal == READ_ORDINAL else f"{ordinal:010d}"
    suffix = f".{number}" if number else ""
    return f"{log_lsn:016x}.{place}{suffix}"


def parse_position(text: str) -> Position:
    """
    Parse a position; the number of a record within its change is dropped.

    Raises:
        ValueError: The text is not a position.
    """
    match = _POSITION_TEXT.match(text)
    if match is None:
        message = f"not a position: {text!r}"
        raise ValueError(message)
    place = match[2]
    return Position(int(match[1], 16), READ_ORDINAL if place == "-" else int(place))


def guard_text(text: str) -> str:
    """
    Return the part of a position header that sinks store and compare.

    Raises:
        ValueError: The text is not a position.
    """
    return str(parse_position(text))


def version(position: Position) -> int:
    """
    Pack a position into a 63-bit integer for sinks that need one.

    Ordinals from 4,094 on share a version: such sinks store the position too.

    Raises:
        ValueError: The log position does not fit into 54 bits.
    """
    if not 0 <= position.log_lsn < _MAX_LOG_LSN:
        message = f"log position out of range: {position.log_lsn}"
        raise ValueError(message)
    low = min(position.ordinal + 1, SHARED_ORDINAL)
    return (position.log_lsn >> _ALIGNMENT_BITS) << _ORDINAL_BITS | low


def is_shared(packed: int) -> bool:
    """Return whether other positions may pack to the same version."""
    return packed & SHARED_ORDINAL == SHARED_ORDINAL


def format_lsn(lsn: int) -> str:
    """Write an LSN as Postgres does: two hex halves around a slash."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """
    Parse an LSN as Postgres writes it.

    Raises:
        ValueError: The text is not an LSN.
    """
    match = _LSN_TEXT.match(text)
    if match is None:
        message = f"not an LSN: {text!r}"
        raise ValueError(message)
    return Lsn(int(match[1], 16) << 32 | int(match[2], 16))
