"""
How records of rows are put together: positions, headers, sizes. Hot path in part.

A streamed record's position is its transaction's place and the change's ordinal, from
the second record of a change on with its number; a chunk's row stands at its low
watermark. A size is an upper bound: what a header adds is added to it.
"""

from collections.abc import Sequence
from typing import Final

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.reads import ReadPlace
from towpath.relay.routing.record import ANY_PARTITION, FIXED_BYTES, Header, Record
from towpath.relay.wal.sequencer import Change
from towpath.schemas import headers

# Skips a named tuple's own constructor, which costs more than the tuple.
_make: Final = tuple.__new__


def position_of(change: Change, number: int) -> bytes:
    """Return the position of the record of this number that a change gives."""
    if number:
        return change.transaction.place + b"%010d.%d" % (change.ordinal, number)
    return change.transaction.place + b"%010d" % change.ordinal


def key_text(value: object) -> bytes:
    """
    Return a key column's text.

    Raises:
        MalformedMessageError: The stream does not tell it.
    """
    if isinstance(value, bytes):
        return value
    reason = "a change lacks a column of its key: check the table's replica identity"
    raise MalformedMessageError(reason)


def marked(record: Record, name: str, value: bytes | None) -> Record:
    """Return a record with one more header, whose length is the row's affair."""
    size = record.size + len(value or b"")
    return record._replace(headers=[*record.headers, (name, value)], size=size)


def read_records(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], place: ReadPlace
) -> list[Record]:
    """Return the records of a chunk that have these keys and values."""
    log_lsn, snapshot_id, topic, now_us = place
    position = b"%016x.-" % log_lsn
    now_ms = now_us // 1000
    # One list for all: whoever adds a header makes a list of its own.
    marks: list[Header] = [
        (headers.POSITION, position),
        (headers.SNAPSHOT, snapshot_id.encode()),
    ]
    return [
        _make(
            Record,
            (
                topic,
                key,
                value,
                marks,
                position,
                now_ms,
                FIXED_BYTES + len(key or b"") + len(value or b""),
                ANY_PARTITION,
            ),
        )
        for key, value in zip(keys, values, strict=True)
    ]
