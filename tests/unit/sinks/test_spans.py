"""The spans of a sink's batch: sampled records only, bounded, and linked."""

from types import SimpleNamespace

import pyarrow as pa

from support.recorded_spans import BATCH, RecordedSpans
from towpath.schemas.clock import SystemClock
from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.engine.spans import MAX_SPANS, WriteSpans

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920{:04x}-{}"
SINK = SimpleNamespace(name="cache")


def table(*traces, begin=0):
    """Make a table of records, each with a trace context or without one."""
    rows = [
        {
            "topic": "events",
            "partition": 1,
            "offset": begin + at,
            "headers": [{"key": "position", "value": b"P"}]
            + ([{"key": "traceparent", "value": trace.encode()}] if trace else []),
        }
        for at, trace in enumerate(traces)
    ]
    return pa.Table.from_pylist(rows, schema=RECORDS)


def written(tables, tracer=None):
    """Read and write a batch; return its spans."""
    tracer = tracer or RecordedSpans()
    spans = WriteSpans(tracer, SystemClock(), SINK)
    assert tables == [*spans.watch(lambda: iter(tables))()]
    spans.written()
    return tracer.spans


def test_each_sampled_record_has_a_span_within_its_own_trace():
    """
    Records without a context, or with an unsampled or invalid one, have no span.
    """
    one, two = TRACE.format(1, "01"), TRACE.format(2, "03")
    tables = [
        table(None, one, TRACE.format(3, "00"), "no context"),
        table(None),
        # A sliced table has offsets of its own into the headers.
        table(TRACE.format(4, "01"), two, begin=4).slice(1),
    ]
    batch, *writes = written(tables)

    assert ("sink batch", None, [one, two]) == (batch.name, batch.parent, batch.links)
    assert [one, two] == [span.parent for span in writes]
    assert [1, 5] == [span.attributes["messaging.kafka.offset"] for span in writes]
    assert {(BATCH,)} == {span.links for span in writes}


def test_a_batch_without_sampled_records_has_no_span():
    """
    Its span would be a trace without any record.
    """
    assert [] == written([table(None, TRACE.format(1, "00"))])


def test_the_spans_of_a_batch_are_bounded():
    """
    Records beyond the limit are written as usual, and counted.
    """
    tracer = RecordedSpans()
    traces = [TRACE.format(at, "01") for at in range(1, MAX_SPANS + 8)]
    spans = written([table(*traces)], tracer)

    assert (MAX_SPANS + 1, 7) == (len(spans), tracer.counts.left_out)


def test_a_batch_that_is_read_again_has_its_spans_once():
    """
    A read that failed may have seen some of its records.
    """
    tracer = RecordedSpans()
    spans = WriteSpans(tracer, SystemClock(), SINK)
    read = spans.watch(lambda: iter([table(TRACE.format(1, "01"))] * 2))
    next(read())
    tuple(read())
    spans.written()

    assert 3 == len(tracer.spans)


def test_a_batch_is_not_inspected_if_tracing_is_off():
    """
    Its reader is returned unchanged.
    """

    def read():
        return iter(())

    assert read is WriteSpans(RecordedSpans(is_on=False), SystemClock(), SINK).watch(
        read
    )
