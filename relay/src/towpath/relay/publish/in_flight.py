"""
Deliveries in flight: acknowledgements become the one LSN that is safe to confirm.

Acknowledgements come in any order. A transaction is *settled* when it is committed,
every record of it is acknowledged and no hold is left on it; the acknowledged LSN is
the end of the last transaction before which, and with which, all are settled. Nothing
else moves it, but for one rule: while no transaction is unsettled and no record of any
kind is on its way, the server's own word of how far it has read may be taken.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from towpath.relay.encode.record import Acknowledgement, Partition
from towpath.schemas.position import format_lsn

# What a record costs beside its value while it waits: the client's own structures,
# key and headers. With it, a flood of tiny records is bounded as well.
RECORD_BYTES: Final = 512


class Delivery:
    """
    The records of one transaction, or one chunk, on their way: one callback for all.

    It is told of each record where it came to stand, which is all that marks need. A
    streamed record's position is bound to the callback (``partial(delivery, text)``);
    ``passed`` is the callback of records that have no place in the stream's order, and
    ``partial(delivery.passed_into, topic)`` that of many of them.
    """

    __slots__ = ("_ledger", "committed_us", "end_lsn", "pending")

    def __init__(self, ledger: "DeliveryLedger", committed_us: int = 0) -> None:
        self._ledger = ledger
        self.pending = 0
        self.end_lsn = 0
        self.committed_us = committed_us

    def expect(self, value: bytes | None) -> None:
        """Count a record in, before it is handed to the client."""
        self.pending += 1
        self._ledger.in_flight_bytes += len(value or b"") + RECORD_BYTES

    def __call__(
        self, position: bytes, error: object, acknowledgement: Acknowledgement
    ) -> None:
        """Take the client's word on one streamed record. Hot path."""
        ledger = self._ledger
        ledger.in_flight_bytes -= len(acknowledgement) + RECORD_BYTES
        if error is None:
            self.pending -= 1
            place = acknowledgement.topic(), acknowledgement.partition()
            ledger.reached[place] = position, acknowledgement
        elif ledger.failure is None:
            ledger.failure = str(error)

    def expect_all(self, values: Sequence[bytes]) -> None:
        """Count records in, before they are handed to the client together."""
        self.pending += len(values)
        size_bytes = sum(map(len, values)) + len(values) * RECORD_BYTES
        self._ledger.in_flight_bytes += size_bytes

    def passed(self, error: object, acknowledgement: Acknowledgement) -> None:
        """Take the client's word on a record that is no part of the stream."""
        self.passed_into(acknowledgement.topic(), error, acknowledgement)

    def passed_into(
        self, topic: str | None, error: object, acknowledgement: Acknowledgement
    ) -> None:
        """Do the same for a topic that the caller has bound. Hot path."""
        ledger = self._ledger
        ledger.in_flight_bytes -= len(acknowledgement) + RECORD_BYTES
        if error is None:
            self.pending -= 1
            ledger.passed[topic, acknowledgement.partition()] = acknowledgement
        elif ledger.failure is None:
            ledger.failure = str(error)


class DeliveryLedger:
    """
    Transactions in stream order, and what is still to come of each.

    Attributes:
        in_flight_bytes: Handed over and not acknowledged; 0 if and only if none is.
        failure: Why the client gave a record up, once it did.
        reached: By topic and partition, the last acknowledged streamed record: its
            position, and where it stands.
        passed: The same of records beside the stream.
        settled_count: How many transactions were settled since somebody looked.
        settled_us: When the first of them was committed.
    """

    def __init__(self, start_lsn: int) -> None:
        self.in_flight_bytes = 0
        self.failure: str | None = None
        self.reached: dict[Partition, tuple[bytes, Acknowledgement]] = {}
        self.passed: dict[Partition, Acknowledgement] = {}
        self.settled_count = 0
        self.settled_us = 0
        self._acknowledged_lsn = start_lsn
        self._open: Delivery | None = None
        self._unsettled: deque[Delivery] = deque()
        self._held: dict[str, list[Delivery]] = {}
        self._chunks: dict[int, Delivery] = {}

    def loose(self) -> Delivery:
        """Return a delivery that no LSN waits for; its owner looks at ``pending``."""
        return Delivery(self)

    def begin(self, committed_us: int = 0) -> Delivery:
        """
        Open the delivery of the transaction that begins.

        Args:
            committed_us: When it was committed; 0: its latency is not looked at.
        """
        delivery = self._open = Delivery(self, committed_us)
        return delivery

    def commit(self, end_lsn: int) -> None:
        """Close the open delivery: no record of it will be added."""
        delivery = self._open
        if delivery is None:
            reason = f"nothing is open that could end at {format_lsn(end_lsn)}"
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
        """End what ``hold`` began; unknown signals are let pass."""
        for delivery in self._held.pop(signal_id, ()):
            delivery.pending -= 1

    def begin_chunk(self, chunk_id: int) -> Delivery:
        """Open the delivery of a chunk's rows, which no LSN waits for."""
        delivery = self._chunks[chunk_id] = Delivery(self)
        delivery.pending = 1
        return delivery

    def end_chunk(self, chunk_id: int) -> None:
        """Close a chunk's delivery: no row of it will be added."""
        self._chunks[chunk_id].pending -= 1

    def take_delivered(self) -> tuple[int, ...]:
        """Hand over the chunks whose every row is acknowledged."""
        delivered = tuple(at for at, chunk in self._chunks.items() if not chunk.pending)
        for chunk_id in delivered:
            del self._chunks[chunk_id]
        return delivered

    def acknowledged(self) -> int:
        """Return the LSN below which everything is settled."""
        unsettled = self._unsettled
        while unsettled and not unsettled[0].pending:
            delivery = unsettled.popleft()
            self._acknowledged_lsn = delivery.end_lsn
            if not self.settled_count:
                self.settled_us = delivery.committed_us
            self.settled_count += 1
        return self._acknowledged_lsn

    @property
    def unsettled_count(self) -> int:
        """How many transactions are committed and not settled, or wait for such."""
        return len(self._unsettled)

    @property
    def is_idle(self) -> bool:
        """Whether nothing at all is open, unsettled or on its way."""
        self.acknowledged()
        return self._open is None and not self._unsettled and not self.in_flight_bytes

    def idle_until(self, wal_end: int) -> None:
        """Take the server's word that nothing for us lies before ``wal_end``."""
        if self.is_idle:
            self._acknowledged_lsn = max(self._acknowledged_lsn, wal_end)
