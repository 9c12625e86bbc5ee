"""
The steps of the hot path that have a second form, in C.

``parse_begin``, ``PlainEvents`` and ``parse_commit`` read most messages of an outbox's
backlog directly from frames; ``batched`` batches queued records by their partitions.
``partitions_of`` chooses the partitions of a snapshot's rows before they are emitted.
``hot_path.c`` has all five. It is compiled with the other modules of the hot path
(``commands.compiled``), and then imported instead of this module, which is the
reference.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final

from towpath.relay.encode.outbox import EventLayout
from towpath.relay.encode.record import Partition, Record
from towpath.relay.errors import MalformedMessageError, UnroutableError
from towpath.relay.ports import OnDelivery, Outgoing, Partitioner
from towpath.relay.publish.in_flight import (
    RECORD_BYTES,
    DeliveryLedger,
    PartitionBatch,
    Queued,
)
from towpath.relay.wal.messages import Row
from towpath.relay.wal.pgoutput import (
    NEW,
    PAYLOAD_AT,
    parse_begin,
    parse_commit,
    read_values,
)
from towpath.relay.wal.transactions import Transaction

__all__ = ["PlainEvents", "batched", "parse_begin", "parse_commit", "partitions_of"]

WriteEvent = Callable[[Transaction, int, Row], Record]

_BODY_AT: Final = PAYLOAD_AT + 1
# The tag of the new row and its column count, after the relation's oid; the values
# follow.
_INSERT: Final = Struct(f">{_BODY_AT + 4}xBH")
_unpack_insert: Final = _INSERT.unpack_from
_VALUES_AT: Final = _INSERT.size

# Raised for a row that is not a valid event, or a message that was cut short.
_NOT_PLAIN: Final = (UnroutableError, MalformedMessageError, IndexError, struct.error)


class PlainEvents:
    """Makes the events of one schema of the outbox from frames."""

    def __init__(
        self,
        width: int,
        write: WriteEvent,
        layout: EventLayout | None,  # noqa: ARG002 - the C module's
    ) -> None:
        """
        Store the facts about the schema.

        Args:
            width: The number of the table's columns.
            write: Writes the event of a row.
            layout: How the C module writes the usual events without ``write``; None if
                it must not.
        """
        self._width = width
        self._write = write

    def record(
        self, frame: bytes, transaction: Transaction, ordinal: int
    ) -> Record | None:
        """
        Return the event of an inserted row of the table; None if it is not plain.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        try:
            form, count = _unpack_insert(frame)
            if form != NEW or count != self._width:
                return None
            row, end = read_values(frame, _VALUES_AT, self._width)
            if end != len(frame):
                return None
            return self._write(transaction, ordinal, row)
        except _NOT_PLAIN:
            return None


def batched(
    queued: list[Queued],
    ledger: DeliveryLedger,
    counts: Mapping[str, int],
    partition_of: Partitioner,
) -> tuple[list[Outgoing], Sequence[Partition]]:
    """
    Return queued records with their partitions and callbacks, and the partitions.

    Only the last record of each partition has a callback: one for each record would
    cost 8 % more instructions per event, the client's own included.

    Args:
        queued: The records, in the order in which they are sent.
        ledger: The deliveries in flight.
        counts: The partition count of each topic.
        partition_of: Chooses a key's partition; the C module does so itself.
    """
    batches: dict[Partition, PartitionBatch] = {}
    outgoing: list[Outgoing] = []
    for record, delivery, position in reversed(queued):
        topic, key, value, _, _, _, _, partition = record
        if partition < 0:
            key = key or b""
            partition = partition_of(None, key, len(key), counts[topic], None, None)
        at = topic, partition
        on_delivery: OnDelivery | None = None
        batch = batches.get(at)
        if batch is None:
            batch = batches[at] = PartitionBatch(ledger, at, [], 0, b"")
            on_delivery = batch.acknowledge
        batch.deliveries.append(delivery)
        batch.size_bytes += len(value or b"") + RECORD_BYTES
        batch.position = batch.position or position
        outgoing.append((record, partition, on_delivery))
    outgoing.reverse()
    return outgoing, list(batches)


def partitions_of(
    keys: list[bytes], count: int, partition_of: Partitioner
) -> list[int]:
    """
    Return each key's partition in a topic with ``count`` partitions.

    Args:
        keys: The keys.
        count: The number of partitions, at least one.
        partition_of: Chooses a key's partition; the C module does so itself.
    """
    return [partition_of(None, key, len(key), count, None, None) for key in keys]
