"""
Large batches of a sink that does not wait: sent portion by portion.

While the target works on one portion, the next is decoded; the answers are waited for
once, by the flush. Only what is plain is written so (see ``plain``): a batch that holds
anything else is written again as a whole, in the ordinary way.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa
import structlog

from towpath.schemas.failure import TowpathError
from towpath.sinks.jobs.batch import BatchWriter, Desk, records_of
from towpath.sinks.jobs.batch_result import BatchResult
from towpath.sinks.jobs.by_column import after_columns
from towpath.sinks.jobs.plain import ROWS_LOST, Plain, plain_of
from towpath.sinks.jobs.query import Rows
from towpath.sinks.ports import Batch, Checkpoint, Pipelined, Sink

# A smaller batch is one portion, and has nothing to gain.
LEAST_RECORDS: Final = 8_000

_log = structlog.get_logger("towpath.sinks.jobs")


class PipelinedSink(Sink, Pipelined, Protocol):
    """A sink that does not wait."""


@dataclass(slots=True)
class _Sent:
    """What was sent of a batch, and what became of it; of the changes only counts."""

    records: int = 0
    skipped: int = 0
    tombstones: int = 0
    position: str = ""
    left: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    send_ms: int = 0
    flush_ms: int = 0

    def add(self, part: Plain, position: str) -> None:
        """Count a portion: what was read of it, and how far its columns reach."""
        self.skipped += part.skipped
        self.tombstones += part.tombstones
        self.position = max(self.position, part.position, position)
        self.left = part.left


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
        if rows.most < LEAST_RECORDS:
            return self._writer.write(rows.table, batch_id)
        with self._writer.alone:
            before = self._desk.owed.lacking()
            sent = self._send(rows, batch_id, before)
            left = _left(sent)
            if self._desk.owed.lacking() - before:
                left = ROWS_LOST
            if left:
                _log.info(
                    "a batch is written whole after all", sink=self._name, why=left
                )
                return self._writer.write(rows.table, batch_id)
            return self._result(sent)

    def _send(self, rows: Rows, batch_id: int, lacking: Collection[str]) -> _Sent:
        desk = self._desk
        began_s = desk.clock.monotonic_s()
        waited_for = desk.waited_for()
        apart = frozenset(parked.key for parked in waited_for)
        routes, sink = self._writer.routes, self._sink
        sent = _Sent()
        for portion in self._read(rows):
            sent.records += len(portion)
            rest, position = after_columns(portion, routes, apart, sink.send_columns)
            part = plain_of(records_of(rest), routes, waited_for, lacking)
            sent.add(part, position)
            if part.left:
                break
            if part.changes:
                sink.send(Batch(batch_id, part.changes))
        sent_s = desk.clock.monotonic_s()
        if not sent.left:
            # Only now: the batch may hold what lies below.
            safe = desk.safe.take(desk.parked.lowest())
            sink.send(Batch(batch_id, safe=safe))
        sent.checkpoint = sink.flush()
        sent.send_ms = round((sent_s - began_s) * 1000)
        sent.flush_ms = round((desk.clock.monotonic_s() - sent_s) * 1000)
        return sent

    def _read(self, rows: Rows) -> Iterator[pa.Table]:
        """Give the portions; what was sent before one that fails counts nowhere."""
        try:
            yield from rows.portions()
        except TowpathError:
            self._sink.flush()
            raise

    def _result(self, sent: _Sent) -> BatchResult:
        return BatchResult(
            records=sent.records,
            rows=sent.checkpoint.applied,
            stale=sent.checkpoint.stale,
            dead_letters=0,
            skipped=sent.skipped,
            parked=len(self._desk.parked),
            owed=len(self._desk.owed),
            tombstones=sent.tombstones,
            position=sent.position,
            # Decoding and writing go on at the same time.
            apply_ms=sent.send_ms,
            flush_ms=sent.flush_ms,
        )


def _left(sent: _Sent) -> str:
    """Say why the batch is to be written in the ordinary way; empty if it is done."""
    if sent.left:
        return sent.left
    return "the target refuses a change" if sent.checkpoint.refused else ""
