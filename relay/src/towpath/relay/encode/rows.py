"""
How records of rows are put together: positions, headers, sizes. Hot path in part.

A streamed record's position is its transaction's place and the change's ordinal, from
the second record of a change on with its number; a chunk's row stands at its low
watermark. A size is an upper bound: what a header adds is added to it.

What every route of a snapshot's rows does, and where such rows stand.

The sweep: a record that says which rows of a topic are gone.

A snapshot that closes a gap cannot read rows that were deleted in it. Behind its last
row each partition of the topic gets a sweep: whatever stands below the floor, and was
not read since, is to be deleted.

========  ==========================================================================
key       null; on a compacted topic ``{"sweep": <partition>}``
headers   ``position`` where it stands, ``sweep`` with the floor, ``snapshot``,
          ``sweep_partitions``: how many partitions get one
value     the envelope with ``op`` = ``m`` and neither row; as plain JSON also the
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

# Nothing of a row that a chunk read is left out.
ReadRow = tuple[bytes | None, ...]


class ReadSlice(NamedTuple):
    """
    The shared parts of the records of a slice of a chunk.

    Attributes:
        log_lsn: The chunk's low watermark: they stand at ``Position(log_lsn, -1)``.
        snapshot_id: The signal's id, for the header ``snapshot``.
        topic: Where they go: the route's own topic, or a target's.
        now_us: When the relay takes them.
    """

    log_lsn: int
    snapshot_id: str
    topic: str
    now_us: int


class ReadRoute(Protocol):
    """Makes the records of a collection's rows: of a table, or of an aggregate."""

    relation: Relation
    topic: str

    def reads(self, rows: Sequence[ReadRow], place: ReadSlice) -> Sequence[Record]:
        """
        Return the records of rows that a chunk read, one each, in their order.

        Raises:
            MalformedMessageError: A row has not the width of the shape.
        """

    def absent(self, key: Sequence[bytes], place: ReadSlice) -> Sequence[Record]:
        """
        Return the records of a key, in key order, that a chunk did not find.

        Raises:
            MalformedMessageError: The record's key cannot be made of it alone.
        """


def undelivered_read(record: Record, place: ReadSlice, reason: str) -> Record:
    """
    Return what tells the one sink that a row was read for, and cannot be delivered.

    Its value is no row: a sink sets it aside, and its key with it.
    """
    value, text = orjson.dumps(reason), reason.encode()
    position, snapshot_id = b"%016x.-" % place.log_lsn, place.snapshot_id.encode()
    key = record.key
    return Record(
        topic=place.topic,
        key=key,
        value=value,
        headers=[
            (headers.POSITION, position),
            (headers.SNAPSHOT, snapshot_id),
            (headers.UNDELIVERED, text),
        ],
        position=position,
        timestamp_ms=place.now_us // 1000,
        size=FIXED_BYTES + len(key or b"") + 2 * len(value) + len(snapshot_id),
    )


def read_envelope_facts(operation: bytes, place: ReadSlice) -> EnvelopeFacts:
    """Return what the envelopes say beside the rows."""
    now_us = place.now_us
    return EnvelopeFacts(
        operation=operation,
        committed_us=now_us,
        now_us=now_us,
        snapshot=_INCREMENTAL,
        xid=None,
        lsn=None,
        commit_lsn=place.log_lsn,
        origin=None,
        origin_lsn=None,
        transaction=None,
    )


# Skips a named tuple's own constructor, which costs more than the tuple.
_make: Final = tuple.__new__


def position_of(change: Change, number: int) -> bytes:
    """Return the position of the record of this number that a change gives."""
    if number:
        return change.transaction.place + b"%010d.%d" % (change.ordinal, number)
    return change.transaction.place + b"%010d" % change.ordinal


def key_column_text(value: object) -> bytes:
    """
    Return a key column's text.

    Raises:
        MalformedMessageError: The stream does not tell it.
    """
    if isinstance(value, bytes):
        return value
    reason = "a change lacks a column of its key: check the table's replica identity"
    raise MalformedMessageError(reason)


def with_header(record: Record, name: str, value: bytes | None) -> Record:
    """Return a record with one more header, whose length is the row's affair."""
    size = record.size + len(value or b"")
    return record._replace(headers=[*record.headers, (name, value)], size=size)


def read_records(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], place: ReadSlice
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


PREFIX: Final = "towpath.sweep"


def floor_text(floor: int) -> bytes:
    """Return a floor, a log LSN, as a position that lies below every row at it."""
    return b"%016x.-" % floor


def with_message(envelope: bytes, floor: int) -> bytes:
    """Put the floor into a plain JSON envelope, as a logical message's content."""
    content = base64.b64encode(floor_text(floor)).decode()
    message = orjson.dumps({"prefix": PREFIX, "content": content})
    return envelope[:-1] + b',"message":' + message + b"}"


def sweep_records(
    value: bytes, floor: int, place: ReadSlice, partitions: int, *, is_compacted: bool
) -> Sequence[Record]:
    """
    Return one sweep per partition, at one position.

    Args:
        value: The envelope, in the topic's format.
        floor: The log LSN below which rows are gone.
        place: Where the sweep stands.
        partitions: How many there are.
        is_compacted: The topic takes no record without a key.
    """
    position = floor_text(place.log_lsn)
    size = FIXED_BYTES + len(value) + len(place.snapshot_id.encode())
    return [
        Record(
            topic=place.topic,
            key=orjson.dumps({"sweep": partition}) if is_compacted else None,
            value=value,
            headers=[
                (headers.POSITION, position),
                (headers.SWEEP, floor_text(floor)),
                (headers.SNAPSHOT, place.snapshot_id.encode()),
                (headers.SWEEP_PARTITIONS, b"%d" % partitions),
            ],
            position=position,
            timestamp_ms=place.now_us // 1000,
            size=size,
            partition=partition,
        )
        for partition in range(partitions)
    ]
