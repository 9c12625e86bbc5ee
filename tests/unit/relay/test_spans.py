"""The spans of outbox rows: which rows have one, when it ends, and its id."""

from support.recorded_spans import RecordedSpans
from towpath.relay.encode.outbox_columns import continue_trace
from towpath.relay.encode.record import Record
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.publish.spans import MAX_WAITING, PublishSpans
from towpath.relay.wal.transactions import Transaction
from towpath.schemas.clock import SystemClock

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
SAMPLED = TRACE + b"01"
COMMITTED_US = 1_700_000_000_000_000


class Bench:
    """The spans of a session, and its ledger."""

    def __init__(self) -> None:
        self.tracer = RecordedSpans()
        self.ledger = DeliveryLedger(0)
        self.spans = PublishSpans(self.tracer, self.ledger, SystemClock())

    def publish(self, commit_lsn: int, trace: bytes = SAMPLED):
        """Publish a transaction with one record, and return its delivery."""
        transaction = Transaction(1, commit_lsn, commit_lsn, COMMITTED_US, b"P.")
        delivery = self.ledger.begin(COMMITTED_US)
        delivery.pending += 1
        position = b"P.%d" % commit_lsn
        record = Record("events", b"k", b"v", [], position, 0, 1)
        self.spans.note(transaction, record, trace)
        self.ledger.commit(commit_lsn + 8)
        return delivery

    def recorded_positions(self):
        """Record the ended spans, and return the positions of all recorded ones."""
        self.spans.turn()
        return [s.attributes["towpath.position"] for s in self.tracer.spans]


def test_a_span_ends_once_kafka_has_everything_up_to_its_transaction():
    """
    It begins at the commit; an earlier transaction in flight delays its end.
    """
    bench = Bench()
    first, second = bench.publish(8), bench.publish(16)
    second.pending = 0
    before = bench.recorded_positions()
    first.pending = 0
    after = bench.recorded_positions()

    assert ([], ["P.8", "P.16"]) == (before, after)
    span = bench.tracer.spans[0]
    assert (COMMITTED_US, True) == (span.begin_us, span.end_us > COMMITTED_US)


def test_a_span_has_the_id_in_the_continued_record():
    """
    Consumers' spans are thus its children, and a replay makes no second span.
    """
    bench = Bench()
    bench.publish(8).pending = 0
    bench.recorded_positions()
    continued = continue_trace(SAMPLED, b"P.8").decode()
    span = bench.tracer.spans[0]

    assert (SAMPLED.decode(), continued[36:52]) == (span.parent, span.span_id)


def test_rows_that_are_not_sampled_have_no_span():
    """
    Rows with an invalid context have no span, either.
    """
    bench = Bench()
    for at, trace in enumerate((TRACE + b"00", b"", b"x", TRACE.upper() + b"01")):
        bench.publish(8 * at + 8, trace).pending = 0

    assert [] == bench.recorded_positions()


def test_waiting_spans_are_limited():
    """
    An unresponsive broker costs only limited memory; further spans are counted.
    """
    bench = Bench()
    deliveries = [bench.publish(8 * at + 8) for at in range(MAX_WAITING + 3)]
    for delivery in deliveries:
        delivery.pending = 0

    assert (MAX_WAITING, 3) == (
        len(bench.recorded_positions()),
        bench.tracer.counts.left_out,
    )
