"""
Deliveries in flight: their acknowledgements determine the LSN to confirm.

The producer reports the last record of each batch of a partition; the reports arrive in
any order. A transaction is *settled* when it is committed, all its records are
acknowledged and no hold is left on it. The acknowledged LSN is the end of the last
transaction up to which all are settled. A keepalive moves it to the keepalive's LSN,
but only while no transaction is open or unsettled and no record is in flight.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from towpath.relay.encode.record import Acknowledgement, Partition, Record
from towpath.schemas.position import format_lsn

# The memory that a record in flight takes besides its value: the client's structures,
# key and headers. Without this term, a flood of tiny records would not be bounded.
RECORD_BYTES: Final = 512


class Delivery:
    """The records of one transaction, or of one chunk, in flight."""

    __slots__ = ("committed_us", "end_lsn", "ledger", "pending")

    def __init__(self, ledger: "DeliveryLedger", committed_us: int = 0) -> None:
        self.ledger = ledger
        self.pending = 0
        self.end_lsn = 0
        self.committed_us = committed_us

    def expect(self, value: bytes | None) -> None:
        """Count a record before it is given to the producer."""
        self.pending += 1
        self.ledger.in_flight_bytes += len(value or b"") + RECORD_BYTES

    def expect_all(self, values: Sequence[bytes]) -> None:
        """Count records before they are given to the producer together."""
        self.pending += len(values)
        size_bytes = sum(map(len, values)) + len(values) * RECORD_BYTES
        self.ledger.in_flight_bytes += size_bytes


# A record, the delivery that waits for it, and the record's position in the stream. The
# position of a record outside the stream's order is empty.
Queued = tuple[Record, Delivery, bytes]


class PartitionBatch:
    """
    Records of one partition that were given to the producer together.

    The producer appends a partition's records in their order and fails rather than
    leave one out (``enable.gapless.guarantee``), so the acknowledgement of a batch's
    last record covers them all.

    Attributes:
        deliveries: The delivery of each record.
        size_bytes: The bytes that the records add to those in flight.
        position: The position of the last streamed record; empty if there is none.
    """

    __slots__ = ("_ledger", "_partition", "deliveries", "position", "size_bytes")

    def __init__(
        self,
        ledger: "DeliveryLedger",
        partition: Partition,
        deliveries: list[Delivery],
        size_bytes: int,
        position: bytes,
    ) -> None:
        self._ledger = ledger
        self._partition = partition
        self.deliveries = deliveries
        self.size_bytes = size_bytes
        self.position = position

    def acknowledge(self, error: object, acknowledgement: Acknowledgement) -> None:
        """Record the acknowledgement, or the error, of the last record. Hot path."""
        ledger = self._ledger
        ledger.in_flight_bytes -= self.size_bytes
        if error is not None:
            ledger.fail(error)
            return
        for delivery in self.deliveries:
            delivery.pending -= 1
        if self.position:
            ledger.ordered_acks[self._partition] = self.position, acknowledgement
        else:
            ledger.unordered_acks[self._partition] = acknowledgement


class DeliveryLedger:
    """
    Transactions in stream order, each with its records in flight.

    Attributes:
        in_flight_bytes: Bytes queued or given to the producer, and not acknowledged; 0
            if and only if nothing is in flight.
        failure: The first error of a record.
        ordered_acks: By partition, the position of the last acknowledged streamed
            record, and the acknowledgement of its batch.
        unordered_acks: By partition, the last acknowledgement of a batch without a
            streamed record.
        settled_count: Transactions whose latency is measured and that were settled
            since ``take_settled`` was last called, except those that were settled as
            soon as they were committed.
        settled_us: The commit time of the first of these, in microseconds since 1970.
    """

    def __init__(self, start_lsn: int) -> None:
        self.in_flight_bytes = 0
        self.failure: str | None = None
        self.ordered_acks: dict[Partition, tuple[bytes, Acknowledgement]] = {}
        self.unordered_acks: dict[Partition, Acknowledgement] = {}
        self.settled_count = 0
        self.settled_us = 0
        self._acknowledged_lsn = start_lsn
        self._open: Delivery | None = None
        self._unsettled: deque[Delivery] = deque()
        self._held: dict[str, list[Delivery]] = {}
        self._chunks: dict[int, Delivery] = {}

    def fail(self, error: object) -> None:
        """Keep the first error of a record, which ends the session."""
        self.failure = self.failure or str(error)

    def begin_untracked(self) -> Delivery:
        """Return a delivery that no LSN waits for; its owner reads ``pending``."""
        return Delivery(self)

    def begin(self, committed_us: int = 0) -> Delivery:
        """
        Open the delivery of the transaction that begins.

        Args:
            committed_us: Its commit time; 0 if its latency is not measured.
        """
        delivery = self._open = Delivery(self, committed_us)
        return delivery

    def commit(self, end_lsn: int) -> None:
        """Close the open delivery: no more records are added to it."""
        delivery = self._open
        if delivery is None:
            reason = f"no open transaction can end at {format_lsn(end_lsn)}"
            raise RuntimeError(reason)
        self._open = None
        delivery.end_lsn = end_lsn
        if delivery.pending or self._unsettled:
            self._unsettled.append(delivery)
        else:
            self._acknowledged_lsn = end_lsn

    def hold(self, signal_id: str) -> None:
        """Keep the open transaction unsettled until the signal is stored."""
        if self._open is not None:
            self._open.pending += 1
            self._held.setdefault(signal_id, []).append(self._open)

    def release(self, signal_id: str) -> None:
        """Remove the holds of a signal; an unknown signal has none."""
        for delivery in self._held.pop(signal_id, ()):
            delivery.pending -= 1

    def begin_chunk(self, chunk_id: int) -> Delivery:
        """Open the delivery of a chunk's rows, which no LSN waits for."""
        delivery = self._chunks[chunk_id] = Delivery(self)
        delivery.pending = 1
        return delivery

    def end_chunk(self, chunk_id: int) -> None:
        """Close a chunk's delivery: no more rows are added to it."""
        self._chunks[chunk_id].pending -= 1

    def take_delivered(self) -> tuple[int, ...]:
        """Remove and return the chunks whose rows are all acknowledged."""
        delivered = tuple(at for at, chunk in self._chunks.items() if not chunk.pending)
        for chunk_id in delivered:
            del self._chunks[chunk_id]
        return delivered

    def acknowledged(self) -> int:
        """Return the LSN up to which every transaction is settled."""
        unsettled = self._unsettled
        while unsettled and not unsettled[0].pending:
            delivery = unsettled.popleft()
            self._acknowledged_lsn = delivery.end_lsn
            if delivery.committed_us:
                if not self.settled_count:
                    self.settled_us = delivery.committed_us
                self.settled_count += 1
        return self._acknowledged_lsn

    def take_settled(self) -> tuple[int, int]:
        """Return ``settled_count`` and ``settled_us``; reset the count."""
        count, self.settled_count = self.settled_count, 0
        return count, self.settled_us

    @property
    def unsettled_count(self) -> int:
        """The number of committed transactions that are not settled."""
        return len(self._unsettled)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or unsettled and no record is in flight."""
        self.acknowledged()
        return self._open is None and not self._unsettled and not self.in_flight_bytes

    def idle_until(self, wal_end: int) -> None:
        """Move the acknowledged LSN to a keepalive's, if the ledger is idle."""
        if self.is_idle:
            self._acknowledged_lsn = max(self._acknowledged_lsn, wal_end)
