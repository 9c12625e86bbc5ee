"""
The spans of sampled records that a sink has written.

The records of a batch belong to many traces, so the batch gets a trace of its own::

    sink batch        from the first read to the durable write; linked to its records
    sink write        one for each sampled record, within the trace of its event

Only records with a sampled trace context in a header have spans: events of an outbox.
They are found column-wise while the driver reads the batch, and only if tracing is on.
A batch whose records the executors read has no spans.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from towpath.schemas import headers as names
from towpath.schemas.clock import Clock
from towpath.schemas.headers import sampled_traceparent
from towpath.schemas.tracing import (
    Attribute,
    Kind,
    PastSpan,
    Tracer,
)
from towpath.settings import Sink
from towpath.sinks.changes.decode import ReadRecords

# At most this many records of one batch have spans; further records are only counted.
MAX_SPANS: Final = 128
_SAMPLED: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]$"


class _SampledRecord(NamedTuple):
    """A sampled record of the batch."""

    traceparent: str
    topic: str
    partition: int
    offset: int


class WriteSpans:
    """Records the spans of one batch."""

    def __init__(self, tracer: Tracer, clock: Clock, sink: Sink) -> None:
        """Note when the batch begins."""
        self._tracer = tracer
        self._clock = clock
        self._sink = sink
        self._began_us = self._now_us()
        self._seen: list[_SampledRecord] = []
        self._left_out = 0

    def watch(self, read: ReadRecords) -> ReadRecords:
        """Return the reader of the batch, which notes sampled records as it reads."""
        if not self._tracer.is_on:
            return read

        def watched() -> Iterator[pa.Table]:
            # A batch that could not be read is read again from its first record.
            self._seen.clear()
            self._left_out = 0
            for table in read():
                self._note(table)
                yield table

        return watched

    def written(self) -> None:
        """Record the spans: the batch is durable."""
        if not self._seen:
            return
        self._tracer.counts.left_out += self._left_out
        end_us = self._now_us()
        attributes: dict[str, Attribute] = {"towpath.sink": self._sink.name}
        batch = self._tracer.record(
            PastSpan(
                name="sink batch",
                kind=Kind.INTERNAL,
                parent=None,
                begin_us=self._began_us,
                end_us=end_us,
                attributes=attributes,
                links=[record.traceparent for record in self._seen],
            )
        )
        for record in self._seen:
            origin: dict[str, Attribute] = {
                "messaging.system": "kafka",
                "messaging.destination.name": record.topic,
                "messaging.destination.partition.id": str(record.partition),
                "messaging.kafka.offset": record.offset,
            }
            self._tracer.record(
                PastSpan(
                    name="sink write",
                    kind=Kind.CONSUMER,
                    parent=record.traceparent,
                    begin_us=self._began_us,
                    end_us=end_us,
                    attributes=attributes | origin,
                    links=() if batch is None else (batch,),
                )
            )

    def _note(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            found = _sampled(batch)
            remaining = MAX_SPANS - len(self._seen)
            self._left_out += max(0, len(found) - remaining)
            self._seen += found[:remaining]

    def _now_us(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000)


def _sampled(batch: pa.RecordBatch) -> list[_SampledRecord]:
    """Return a batch's records that have a sampled trace context in a header."""
    lists = batch.column("headers")
    headers = lists.flatten()
    is_trace = pc.equal(headers.field("key"), names.TRACEPARENT)
    if not pc.any(is_trace).as_py():
        return []
    values = headers.field("value").filter(is_trace)
    numbers = pc.list_parent_indices(lists).filter(is_trace)
    is_sampled = pc.match_substring_regex(values, _SAMPLED)
    origins = batch.select(["topic", "partition", "offset"]).take(
        numbers.filter(is_sampled)
    )
    rows = zip(
        values.filter(is_sampled).to_pylist(),
        *origins.to_pydict().values(),
        strict=True,
    )
    return [
        _SampledRecord(traceparent, *origin)
        for value, *origin in rows
        if (traceparent := sampled_traceparent(value)) is not None
    ]
