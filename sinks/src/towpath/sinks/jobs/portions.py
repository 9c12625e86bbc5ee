"""
Large batches of a sink that does not wait: sent portion by portion.

While the target works on one portion, the next is decoded; the answers are waited for
once, by the flush. Only what is plain is written so (see ``plain``): a batch that holds
anything else is written again as a whole, in the ordinary way.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import structlog

from towpath.sinks.jobs.batch import BatchResult, BatchWriter, Desk, records_of
from towpath.sinks.jobs.plain import ROWS_LOST, Plain, plain_of
from towpath.sinks.jobs.query import Rows
from towpath.sinks.ports import Batch, Checkpoint, Pipelined, Sink

# A smaller batch is one portion, and has nothing to gain.
LEAST_RECORDS: Final = 8_000
# Some 50 ms of work for either side. Larger ones have the target wait for the first.
PORTION_RECORDS: Final = 4_000

_log = structlog.get_logger("towpath.sinks.jobs")


class PipelinedSink(Sink, Pipelined, Protocol):
    """A sink that does not wait."""


class _Sent(NamedTuple):
    """What was sent of a batch, and what became of it."""

    parts: list[Plain]
    checkpoint: Checkpoint
    send_ms: int
    flush_ms: int


class InPortions:
    """Writes a sink's large batches portion by portion, as far as they are plain."""

    def __init__(
        self, name: str, writer: BatchWriter, sink: PipelinedSink, desk: Desk
    ) -> None:
        self._name = name
        self._writer = writer
        self._sink = sink
        self._desk = desk

    def write(self, rows: Rows, batch_id: int) -> BatchResult:
        """
        Write one batch; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        records = rows.table
        if len(records) < LEAST_RECORDS:
            return self._writer.write(records, batch_id)
        with self._writer.alone:
            before = self._desk.owed.lacking()
            sent = self._send(records, batch_id, before)
            left = _left(sent)
            if self._desk.owed.lacking() - before:
                left = ROWS_LOST
            if left:
                _log.info(
                    "a batch is written whole after all", sink=self._name, why=left
                )
                return self._writer.write(records, batch_id)
            return self._result(sent, len(records))

    def _send(
        self, records: pa.Table, batch_id: int, lacking: Collection[str]
    ) -> _Sent:
        desk = self._desk
        began_s = desk.clock.monotonic_s()
        parts: list[Plain] = []
        for part in self._read(records, lacking):
            # Its changes are the sink's now: a batch is not held twice.
            parts.append(part._replace(changes=()))
            if part.left:
                break
            self._sink.send(Batch(batch_id, part.changes))
        sent_s = desk.clock.monotonic_s()
        if not parts[-1].left:
            # Only now: the batch may hold what lies below.
            safe = desk.safe.take(desk.parked.lowest())
            self._sink.send(Batch(batch_id, safe=safe))
        checkpoint = self._sink.flush()
        flush_s = desk.clock.monotonic_s() - sent_s
        return _Sent(
            parts, checkpoint, round((sent_s - began_s) * 1000), round(flush_s * 1000)
        )

    def _read(self, records: pa.Table, lacking: Collection[str]) -> Iterator[Plain]:
        waited_for = self._desk.waited_for()
        for begin in range(0, len(records), PORTION_RECORDS):
            portion = records_of(records.slice(begin, PORTION_RECORDS))
            yield plain_of(portion, self._writer.routes, waited_for, lacking)

    def _result(self, sent: _Sent, records: int) -> BatchResult:
        parts, checkpoint = sent.parts, sent.checkpoint
        return BatchResult(
            records=records,
            rows=checkpoint.applied,
            stale=checkpoint.stale,
            dead_letters=0,
            skipped=sum(part.skipped for part in parts),
            parked=len(self._desk.parked),
            tombstones=sum(part.tombstones for part in parts),
            position=_highest(parts),
            # Decoding and writing go on at the same time.
            apply_ms=sent.send_ms,
            flush_ms=sent.flush_ms,
        )


def _left(sent: _Sent) -> str:
    """Say why the batch is to be written in the ordinary way; empty if it is done."""
    if sent.parts[-1].left:
        return sent.parts[-1].left
    return "the target refuses a change" if sent.checkpoint.refused else ""


def _highest(parts: Iterable[Plain]) -> str:
    return max((part.position for part in parts), default="")
