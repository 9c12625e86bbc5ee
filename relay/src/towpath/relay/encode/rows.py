"""
Parts of row records: positions, headers, sizes, and the records of snapshots.

A streamed record's position is its transaction's place and the change's ordinal; the
second and later records of a change also have a number. A chunk's row has the position
of the chunk's low watermark. A record's size is an upper bound, which each added header
raises.

A snapshot that closes a gap cannot read rows that were deleted in the gap. After its
last row it writes a *sweep* to each partition, which deletes all rows that are below
the floor and have not been read since.

========  ==========================================================================
key       null; on a compacted topic ``{"sweep": <partition>}``
headers   ``position``, ``sweep`` with the floor, ``snapshot``, ``sweep_partitions``:
          the number of partitions with a sweep
value     the envelope with ``op`` = ``m`` and without rows; as plain JSON also the
          message: prefix ``towpath.sweep``, content the floor
========  ==========================================================================
"""

import base64
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import orjson

from towpath.relay.encode.codecs.codec import EnvelopeFacts
from towpath.relay.encode.record import (
    ANY_PARTITION,
    FIXED_BYTES,
    Header,
    Record,
)
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import Relation
from towpath.relay.wal.transactions import Change
from towpath.schemas import headers
from towpath.schemas.envelope import INCREMENTAL

_INCREMENTAL: Final = INCREMENTAL.encode()

# A row of a chunk; no value is missing.
ReadRow = tuple[bytes | None, ...]


class ReadSlice(NamedTuple):
    """
    The shared parts of the records of a slice of a chunk.

    Attributes:
        log_lsn: The chunk's low watermark; the position is ``Position(log_lsn, -1)``.
        snapshot_id: The signal's id, for the header ``snapshot``.
        topic: The route's own topic, or a target's.
        now_us: When the records are created.
    """

    log_lsn: int
    snapshot_id: str
    topic: str
    now_us: int


class ReadRoute(Protocol):
    """Makes the records of a collection's rows: those of a table or aggregate view."""

    relation: Relation
    topic: str

    def reads(self, rows: Sequence[ReadRow], read_slice: ReadSlice) -> Sequence[Record]:
        """
        Return a record for each row of a chunk, in order.

        Raises:
            MalformedMessageError: A row does not have one value per column.
        """

    def absent(self, key: Sequence[bytes], read_slice: ReadSlice) -> Sequence[Record]:
        """
        Return the records of a key (in key order) that its chunk does not contain.

        Raises:
            MalformedMessageError: The record's key needs columns besides the given key.
        """


def undelivered_read(record: Record, read_slice: ReadSlice, reason: str) -> Record:
    """
    Return a notice to a target sink that a row, or its delete, became a dead letter.

    The notice's value is not a row, so the sink makes the notice a dead letter and
    parks its key.
    """
    value, text = orjson.dumps(reason), reason.encode()
    position = b"%016x.-" % read_slice.log_lsn
    snapshot_id = read_slice.snapshot_id.encode()
    key = record.key
    return Record(
        topic=read_slice.topic,
        key=key,
        value=value,
        headers=[
            (headers.POSITION, position),
            (headers.SNAPSHOT, snapshot_id),
            (headers.UNDELIVERED, text),
        ],
        position=position,
        timestamp_ms=read_slice.now_us // 1000,
        size=FIXED_BYTES + len(key or b"") + 2 * len(value) + len(snapshot_id),
    )


def read_envelope_facts(operation: bytes, read_slice: ReadSlice) -> EnvelopeFacts:
    """Return the envelope facts of rows that a snapshot reads."""
    now_us = read_slice.now_us
    return EnvelopeFacts(
        operation=operation,
        committed_us=now_us,
        now_us=now_us,
        snapshot=_INCREMENTAL,
        xid=None,
        lsn=None,
        commit_lsn=read_slice.log_lsn,
        origin=None,
        origin_lsn=None,
        transaction=None,
    )


# Skips a named tuple's own constructor, which costs more than creating the tuple.
_make: Final = tuple.__new__


def position_of(change: Change, number: int) -> bytes:
    """Return the position of a change's record with this number."""
    if number:
        return change.transaction.place + b"%010d.%d" % (change.ordinal, number)
    return change.transaction.place + b"%010d" % change.ordinal


def key_column_text(value: object) -> bytes:
    """
    Return a key column's text.

    Raises:
        MalformedMessageError: The stream does not contain the column's value.
    """
    if isinstance(value, bytes):
        return value
    reason = "a change lacks a column of its key: check the table's replica identity"
    raise MalformedMessageError(reason)


def with_header(record: Record, name: str, value: bytes | None) -> Record:
    """Return a record with one more header, and a size that includes it."""
    size = record.size + len(value or b"")
    return record._replace(headers=[*record.headers, (name, value)], size=size)


def read_records(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], read_slice: ReadSlice
) -> list[Record]:
    """Return the records of a slice with these keys and values."""
    log_lsn, snapshot_id, topic, now_us = read_slice
    position = b"%016x.-" % log_lsn
    now_ms = now_us // 1000
    # All records share this list; ``with_header`` makes a new one.
    shared_headers: list[Header] = [
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
                shared_headers,
                position,
                now_ms,
                FIXED_BYTES + len(key or b"") + len(value or b""),
                ANY_PARTITION,
            ),
        )
        for key, value in zip(keys, values, strict=True)
    ]


PREFIX: Final = "towpath.sweep"


def floor_text(floor: int) -> bytes:
    """Return the lowest position with this log LSN, which snapshot rows have."""
    return b"%016x.-" % floor


def with_message(envelope: bytes, floor: int) -> bytes:
    """Add the floor to a plain JSON envelope, as a logical message's content."""
    content = base64.b64encode(floor_text(floor)).decode()
    message = orjson.dumps({"prefix": PREFIX, "content": content})
    return envelope[:-1] + b',"message":' + message + b"}"


def sweep_records(
    value: bytes,
    floor: int,
    read_slice: ReadSlice,
    partitions: int,
    *,
    is_compacted: bool,
) -> Sequence[Record]:
    """
    Return one sweep per partition, all with one position.

    Args:
        value: The envelope, in the topic's format.
        floor: The log LSN below which rows are deleted.
        read_slice: The position and topic of the sweep.
        partitions: The number of partitions.
        is_compacted: Whether the topic requires keys.
    """
    position = floor_text(read_slice.log_lsn)
    size = FIXED_BYTES + len(value) + len(read_slice.snapshot_id.encode())
    return [
        Record(
            topic=read_slice.topic,
            key=orjson.dumps({"sweep": partition}) if is_compacted else None,
            value=value,
            headers=[
                (headers.POSITION, position),
                (headers.SWEEP, floor_text(floor)),
                (headers.SNAPSHOT, read_slice.snapshot_id.encode()),
                (headers.SWEEP_PARTITIONS, b"%d" % partitions),
            ],
            position=position,
            timestamp_ms=read_slice.now_us // 1000,
            size=size,
            partition=partition,
        )
        for partition in range(partitions)
    ]
