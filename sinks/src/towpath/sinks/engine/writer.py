"""
Writes the batches of one sink: first in slices, then the records that the slices leave.

::

    driver       connects ............... flushes, and writes the records left
    slices                 apply_slice

On one machine the driver applies the batch as one slice, while Kafka's client continues
to read; on a cluster the executors apply one slice for each partition of a large batch.

On a cluster, the driver's sink connects before any executor writes and keeps its
connections until its own flush: if the target restarts in between and could thus have
lost rows that executors have written, these connections break. The driver flushes after
the executors have written all rows, so the witness of this flush covers them too.
"""

from dataclasses import replace
from typing import Final, TypeAlias

import structlog

from towpath.sinks.apply.batch import BatchResult, RecordWriter, SinkContext
from towpath.sinks.apply.slice import SliceContext, SliceOutcome, apply_slice
from towpath.sinks.engine.executors import (
    MAX_BLOCKED_KEYS,
    EncodingExecutors,
    Executors,
)
from towpath.sinks.engine.query import BatchRows
from towpath.sinks.errors import BatchRefusedError, ExecutorsFailedError
from towpath.sinks.ports import Batch, Sink

AnyExecutors: TypeAlias = Executors | EncodingExecutors

_log: Final = structlog.get_logger("towpath.sinks")


class SinkWriter:
    """Writes the batches of one sink, one at a time."""

    def __init__(
        self,
        writer: RecordWriter,
        sink: Sink,
        context: SinkContext,
        executors: AnyExecutors | None = None,
        pipelined_records: int | None = None,
    ) -> None:
        """
        Store the parameters.

        Args:
            writer: Writes the records that slices leave.
            sink: The sink of the writer.
            context: The services that the writer uses.
            executors: Apply the slices of large batches; without them the driver does.
            pipelined_records: The sink kind's number of records per call.
        """
        self._writer = writer
        self._sink = sink
        self._context = context
        self._executors = executors
        self._pipelined_records = pipelined_records

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; all of it is durable when this returns.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        with self._writer.lock:
            executors = self._executors_for(rows)
            while True:
                incomplete_routes = self._context.refetches.incomplete_routes()
                outcome = self._apply(rows, batch_id, executors, incomplete_routes)
                found = self._context.refetches.incomplete_routes() - incomplete_routes
                if not found:
                    return self._finish(outcome, batch_id)
                # The batch's partial changes were merged as if no rows were missing.
                _log.info(
                    "batch must be written again: the target lacks rows",
                    sink=self._writer.routes.sink_name,
                    routes=sorted(found),
                )

    def _executors_for(self, rows: BatchRows) -> AnyExecutors | None:
        """Return the executors, if they are to write a batch."""
        executors = self._executors
        keys = len(self._context.parked) + len(self._context.refetches)
        is_large = executors is not None and rows.most >= executors.least_records
        return executors if is_large and keys <= MAX_BLOCKED_KEYS else None

    def _apply(
        self,
        rows: BatchRows,
        batch_id: int,
        executors: AnyExecutors | None,
        incomplete_routes: frozenset[str],
    ) -> SliceOutcome:
        """Apply the slices of a batch; their writes are durable when this returns."""
        context = self._context
        blocked_keys = context.blocked_keys()
        if executors is None:
            slice_context = SliceContext(
                *(self._writer.routes, self._sink, blocked_keys, incomplete_routes),
                *(batch_id, context.clock, self._pipelined_records, context.check),
            )
            return apply_slice(slice_context, rows.slices())
        context.check()
        self._sink.apply(Batch(batch_id))
        try:
            outcome = executors.apply(
                *(rows.tasks, batch_id, blocked_keys, incomplete_routes),
                self._writer.floors_epoch,
            )
        except BatchRefusedError as error:
            _log.warning(
                "batch not written by the executors: the driver writes it",
                sink=self._writer.routes.sink_name,
                why=str(error),
            )
            return self._apply(rows, batch_id, None, incomplete_routes)
        except ExecutorsFailedError:
            rows.check()
            raise
        # If the engine writes to the target, the driver's sink has the counts.
        checkpoint = self._sink.flush()
        return outcome._replace(
            rows=outcome.rows + checkpoint.applied,
            stale=outcome.stale + checkpoint.stale,
        )

    def _finish(self, outcome: SliceOutcome, batch_id: int) -> BatchResult:
        """Write records left by slices; purge tombstones below the safe position."""
        context = self._context
        if outcome.rows or outcome.stale:
            context.refusals.reset()
        # After the slices: the batch may hold records below the safe position.
        has_more = len(outcome.left) or context.safe.is_found
        written = self._writer.write_rest(outcome.left, batch_id) if has_more else None
        return self._result(outcome, written)

    def _result(self, outcome: SliceOutcome, rest: BatchResult | None) -> BatchResult:
        """Add up the counts of the slices and of the records written after them."""
        context = self._context
        result = BatchResult(
            records=outcome.records,
            rows=outcome.rows,
            stale=outcome.stale,
            dead_letters=0,
            skipped=outcome.skipped,
            left=len(outcome.left),
            nulled=outcome.nulled,
            parked=len(context.parked),
            pending_refetches=len(context.refetches),
            tombstones=outcome.tombstones,
            position=outcome.position,
            decode_ms=outcome.decode_ms,
            apply_ms=outcome.apply_ms,
            flush_ms=outcome.flush_ms,
        )
        if rest is None:
            return result
        return replace(
            result,
            rows=result.rows + rest.rows,
            stale=result.stale + rest.stale,
            dead_letters=rest.dead_letters,
            skipped=result.skipped + rest.skipped,
            refetches_requested=rest.refetches_requested,
            nulled=result.nulled + rest.nulled,
            held_back=rest.held_back,
            tombstones=result.tombstones + rest.tombstones,
            position=max(result.position, rest.position),
            decode_ms=result.decode_ms + rest.decode_ms,
            apply_ms=result.apply_ms + rest.apply_ms,
            flush_ms=result.flush_ms + rest.flush_ms,
        )
