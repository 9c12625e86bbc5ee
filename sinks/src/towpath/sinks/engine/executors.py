"""
Writes a batch on the executors: each task writes the guarded changes of its keys.

::

    the driver's sink    keeps its connection ............... flushes
    executors                   each task writes and flushes
                                     |
                      not plain: the driver writes the whole batch

The driver's sink connects before any executor writes and keeps its connections until
its own flush: if the target restarts in between, and may lose rows that executors have
written, these connections break. Its flush comes last, so that its witness follows all
rows of the batch. Small batches are written by the driver, which costs less than a
task.

An executor makes its sink from an ``ExecutorSpec`` alone: it has no configuration and
no state folder. It reads the tables' shapes from Kafka, over one connection for all
sinks.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Settings
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.batch import BatchResult, BatchWriter, SinkContext
from towpath.sinks.apply.executor_task import (
    PartitionResult,
    PartitionTask,
    write_task_slice,
)
from towpath.sinks.apply.plain import ROWS_LOST
from towpath.sinks.engine.query import BatchRows, QueryPlan
from towpath.sinks.engine.session import first_line
from towpath.sinks.errors import (
    ExecutorsFailedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.kafka.client import KafkaRelations
from towpath.sinks.kinds import ExecutorParts, RoutedRelations, kind_of
from towpath.sinks.ports import Batch, Sink

# Blocked keys are sent with every task. With more, the driver writes the batch.
MAX_BLOCKED_KEYS: Final = 1000

_log = structlog.get_logger("towpath.sinks")


class DriverWriter:
    """Writes every batch in the driver."""

    def __init__(self, writer: BatchWriter) -> None:
        self._writer = writer

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch, as the batch writer does.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        return self._writer.write(rows.table, batch_id)


class ExecutorWriter:
    """Writes one sink's large batches on the executors, and others in the driver."""

    def __init__(
        self,
        plan: QueryPlan,
        writer: BatchWriter,
        sink: Sink,
        context: SinkContext,
        make: Callable[[], Sink],
    ) -> None:
        """
        Store the parameters.

        Args:
            plan: The sink's query.
            writer: Writes in the driver.
            sink: The sink of the writer.
            context: The services that the writer uses.
            make: Makes the sink on an executor.
        """
        self._plan = plan
        self._writer = writer
        self._sink = sink
        self._context = context
        self._make = make
        self._opening = uuid.uuid4().hex
        self._has_spread = False

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; all of it is durable when this returns.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        with self._writer.lock:
            if self._is_small(rows):
                return self._write_here(rows, batch_id)
            before = self._context.refetches.incomplete_routes()
            self._sink.apply(Batch(batch_id))
            parts = self._on_executors(rows.frame, batch_id)
            fallback_reason = _fallback_reason(parts)
            if fallback_reason is None:
                result = self._finish(parts, batch_id)
                if not self._context.refetches.incomplete_routes() - before:
                    return result
                fallback_reason = ROWS_LOST
            _log.info(
                "batch not plain: the driver writes it",
                sink=self._plan.sink.name,
                why=fallback_reason,
            )
            return self._write_here(rows, batch_id)

    def _finish(self, parts: Sequence[PartitionResult], batch_id: int) -> BatchResult:
        """Flush after all writes of the executors."""
        context = self._context
        if not self._has_spread:
            self._has_spread = True
            name = self._plan.sink.name
            _log.info("sink writes large batches by the executors", sink=name)
        began_s = context.clock.monotonic_s()
        # After the writes: the batch may hold records below the position.
        safe = context.safe.take(context.parked.lowest())
        self._sink.apply(Batch(batch_id, safe=safe))
        self._sink.flush()
        flush_ms = round((context.clock.monotonic_s() - began_s) * 1000)
        return result_of(parts, parked=len(context.parked), flush_ms=flush_ms)

    def _is_small(self, rows: BatchRows) -> bool:
        wanted = self._plan.sink.spread_from_records
        keys = len(self._context.parked) + len(self._context.refetches)
        has_too_many = keys > MAX_BLOCKED_KEYS
        return has_too_many or rows.most < wanted

    def _write_here(self, rows: BatchRows, batch_id: int) -> BatchResult:
        # The driver may apply floors, which executors load only when they open a sink.
        self._opening = uuid.uuid4().hex
        return self._writer.write(rows.table, batch_id)

    def _on_executors(self, frame: DataFrame, batch_id: int) -> list[PartitionResult]:
        task = PartitionTask(
            sink=self._plan.sink,
            make=self._make,
            opening=self._opening,
            blocked_keys=self._context.blocked_keys(),
            incomplete_routes=self._context.refetches.incomplete_routes(),
            batch_id=batch_id,
        )

        def write(rows: Iterable[Row]) -> Iterator[PartitionResult]:
            yield write_task_slice(task, rows)

        parts = frame.sparkSession.sparkContext.defaultParallelism
        try:
            # Rows, not Arrow, for which the engine would need pandas here.
            results: list[PartitionResult]
            results = frame.repartition(parts, "key").rdd.mapPartitions(write).collect()
        except (PySparkException, Py4JError) as error:
            message = f"the executors could not write the batch: {first_line(error)}"
            raise ExecutorsFailedError(message) from error
        return results


def result_of(
    parts: Sequence[PartitionResult], *, parked: int, flush_ms: int
) -> BatchResult:
    """Add up the results of parallel tasks, and the flush that followed."""
    return BatchResult(
        records=sum(part.records for part in parts),
        rows=sum(part.rows for part in parts),
        stale=sum(part.stale for part in parts),
        dead_letters=0,
        skipped=sum(part.skipped for part in parts),
        parked=parked,
        tombstones=sum(part.tombstones for part in parts),
        position=max((part.position for part in parts), default=""),
        decode_ms=max((part.decode_ms for part in parts), default=0),
        apply_ms=max((part.apply_ms for part in parts), default=0),
        flush_ms=max((part.flush_ms for part in parts), default=0) + flush_ms,
    )


def _fallback_reason(parts: Iterable[PartitionResult]) -> str | None:
    """
    Return why the driver has to write the batch; ``None`` if it is written.

    Raises:
        UnavailableError: A target does not answer; write the batch again.
    """
    failed = [part for part in parts if part.fallback_reason]
    for part in failed:
        if part.retry_after_s:
            raise TargetBusyError(
                part.fallback_reason, retry_after_s=part.retry_after_s
            )
        if part.is_unavailable:
            raise TargetUnavailableError(part.fallback_reason)
    return failed[0].fallback_reason if failed else None


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """Everything an executor needs to make a sink; it is sent with every task."""

    sink: SinkSettings
    kafka: Kafka
    prefix: str
    replay_window_s: int

    def make(self) -> Sink:
        """
        Make the sink; nothing is opened yet.

        Raises:
            UsageError: The kind is written from the driver only.
        """
        spread = kind_of(self.sink).spread
        if spread is None:
            message = f"a sink of the kind {self.sink.kind} is written from the driver"
            raise UsageError(message)
        announced = _relations(self.kafka, self.prefix)
        parts = ExecutorParts(
            prefix=self.prefix,
            replay_window_s=self.replay_window_s,
            relations=RoutedRelations(
                announced, self.sink.route, kind_of(self.sink).unfit_name
            ),
            clock=SystemClock(),
        )
        return spread(self.sink, parts)


def executor_spec(settings: Settings, sink: SinkSettings) -> ExecutorSpec:
    """Return the executor's spec of a sink."""
    return ExecutorSpec(
        sink, settings.kafka, settings.database.prefix, settings.topics.replay_window_s
    )


@cache
def _relations(kafka: Kafka, prefix: str) -> KafkaRelations:
    return KafkaRelations(kafka, prefix)
