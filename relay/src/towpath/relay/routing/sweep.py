"""
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
from typing import Final

import orjson

from towpath.relay.routing.reads import ReadPlace
from towpath.relay.routing.record import FIXED_BYTES, Record
from towpath.schemas import headers

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
    value: bytes, floor: int, place: ReadPlace, partitions: int, *, is_compacted: bool
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
