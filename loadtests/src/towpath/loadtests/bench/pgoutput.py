"""
Just enough of pgoutput to know what was committed, in which order and when.

An own small reader, because a relay's decoder cannot be its own witness. It knows
inserts, and updates that leave the key as it was; others are passed over.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_EPOCH_US: Final = 946_684_800_000_000  # 2000-01-01 in Postgres's count
_BEGIN: Final = struct.Struct("!qqi")
_COLUMN_TAIL_BYTES: Final = 8

INSERTED: Final = frozenset({b"I"})
INSERTED_OR_UPDATED: Final = frozenset({b"I", b"U"})


class Row(NamedTuple):
    """One new row, by its columns' texts, and when it was committed."""

    committed_us: int
    values: dict[str, bytes | None]


def rows(messages: Iterable[bytes], tags: frozenset[bytes] = INSERTED) -> Iterator[Row]:
    """Yield the new rows in commit order."""
    committed_us = 0
    columns: dict[bytes, list[str]] = {}
    for message in messages:
        tag = message[:1]
        if tag == b"B":
            committed_us = _BEGIN.unpack_from(message, 1)[1] + _EPOCH_US
        elif tag == b"R":
            columns[message[1:5]] = _names(message)
        elif message[5:6] == b"N" and tag in tags:
            names = columns[message[1:5]]
            yield Row(committed_us, dict(zip(names, _values(message), strict=True)))


def _names(message: bytes) -> list[str]:
    at = message.index(b"\0", 5) + 1  # past the schema
    at = message.index(b"\0", at) + 1  # past the table
    count = int.from_bytes(message[at + 1 : at + 3], "big")
    at += 3
    names = []
    for _ in range(count):
        end = message.index(b"\0", at + 1)
        names.append(message[at + 1 : end].decode())
        at = end + 1 + _COLUMN_TAIL_BYTES
    return names


def _values(message: bytes) -> Iterator[bytes | None]:
    count = int.from_bytes(message[6:8], "big")
    at = 8
    for _ in range(count):
        kind = message[at : at + 1]
        if kind != b"t":
            yield None
            at += 1
            continue
        size = int.from_bytes(message[at + 1 : at + 5], "big")
        at += 5
        yield message[at : at + size]
        at += size
