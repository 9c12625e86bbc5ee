"""
The spans of sampled outbox rows: from the commit to Kafka's acknowledgement.

A span ends when the acknowledged LSN has passed its transaction, so no record needs a
callback of its own. Rows that are not sampled have no span. A span's id is derived from
the trace and the position, exactly as ``traceparent = "continue"`` writes it into the
record: with that option, consumers' spans are its children. A row that is streamed
again after a crash gets the same span again.
"""

from collections import deque
from typing import Final, NamedTuple

from towpath.relay.encode.outbox_columns import continue_trace
from towpath.relay.encode.record import Record
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.wal.transactions import Transaction
from towpath.schemas.clock import Clock
from towpath.schemas.headers import sampled_traceparent
from towpath.schemas.tracing import Kind, PastSpan, Tracer

# The maximum number of records in flight with a span; further rows get none, and are
# counted.
MAX_WAITING: Final = 2_000


class _Waiting(NamedTuple):
    """A sampled record that Kafka has not acknowledged."""

    commit_lsn: int
    committed_us: int
    parent: str
    topic: str
    position: str


class PublishSpans:
    """Records the spans of one session's records."""

    def __init__(self, tracer: Tracer, ledger: DeliveryLedger, clock: Clock) -> None:
        self._tracer = tracer
        self._ledger = ledger
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()

    def note(self, transaction: Transaction, record: Record, trace: bytes) -> None:
        """Note a record of an outbox row that has a trace context."""
        parent = sampled_traceparent(trace)
        if parent is None:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._tracer.counts.left_out += 1
            return
        self._waiting.append(
            _Waiting(
                commit_lsn=transaction.commit_lsn,
                committed_us=transaction.committed_us,
                parent=parent,
                topic=record.topic,
                position=record.position.decode(),
            )
        )

    def turn(self) -> None:
        """Record the spans of records that Kafka has acknowledged."""
        if not self._waiting:
            return
        acknowledged_lsn = self._ledger.acknowledged()
        now_us = int(self._clock.now().timestamp() * 1_000_000)
        while self._waiting and self._waiting[0].commit_lsn < acknowledged_lsn:
            self._tracer.record(_span(self._waiting.popleft(), now_us))


def _span(record: _Waiting, now_us: int) -> PastSpan:
    own = continue_trace(record.parent.encode(), record.position.encode()).decode()
    return PastSpan(
        name="relay publish",
        kind=Kind.PRODUCER,
        parent=record.parent,
        begin_us=record.committed_us,
        end_us=now_us,
        attributes={
            "messaging.system": "kafka",
            "messaging.destination.name": record.topic,
            "towpath.position": record.position,
        },
        span_id=own.split("-")[2],
    )
