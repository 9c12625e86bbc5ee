"""What every route of a snapshot's rows does, and where such rows stand."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import orjson

from towpath.relay.routing.codec import Facts
from towpath.relay.routing.record import FIXED_BYTES, Record
from towpath.relay.wal.relation import Relation
from towpath.schemas import headers
from towpath.schemas.envelope import INCREMENTAL

_INCREMENTAL: Final = INCREMENTAL.encode()

# Nothing of a row that a chunk read is left out.
ReadRow = tuple[bytes | None, ...]


class ReadPlace(NamedTuple):
    """
    What the records of a slice of a chunk share.

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

    def reads(self, rows: Sequence[ReadRow], place: ReadPlace) -> Sequence[Record]:
        """
        Return the records of rows that a chunk read, one each, in their order.

        Raises:
            MalformedMessageError: A row has not the width of the shape.
        """

    def absent(self, key: Sequence[bytes], place: ReadPlace) -> Sequence[Record]:
        """
        Return the records of a key, in key order, that a chunk did not find.

        Raises:
            MalformedMessageError: The record's key cannot be made of it alone.
        """


def undelivered(record: Record, place: ReadPlace, reason: str) -> Record:
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


def read_facts(operation: bytes, place: ReadPlace) -> Facts:
    """Return what the envelopes say beside the rows."""
    now_us = place.now_us
    return Facts(
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
