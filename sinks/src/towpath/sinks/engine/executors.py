"""
Applies the slices of a batch on the executors: one task for each partition.

Kafka's source makes a task of the engine for each partition of a topic, and the slice
stays there: nothing is shuffled. A task returns counts and the records that only the
driver may write.

An executor makes its sink from an ``ExecutorSpec`` alone: it has no configuration and
no state folder. It reads the tables' shapes from Kafka, over one connection for all
sinks.
"""

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Settings, WriteFrom
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.slice import SliceOutcome, total
from towpath.sinks.apply.task import (
    AbandonedTasks,
    PartitionTask,
    TaskResult,
    run_task,
)
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.engine.session import first_line, is_local, tune_interpreter
from towpath.sinks.errors import (
    ExecutorsFailedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.kafka.client import KafkaRelations
from towpath.sinks.kinds import ExecutorParts, RoutedRelations, kind_of
from towpath.sinks.ports import Sink

# Blocked keys are sent with every task. With more, the driver writes the batch.
MAX_BLOCKED_KEYS: Final = 1000

# The column of the tasks' results, each pickled: counts, and tables of records.
_RESULT: Final = "result"
_SCHEMA: Final = f"{_RESULT} binary"

_log = structlog.get_logger("towpath.sinks")


class Executors:
    """The executors, as far as they write one sink."""

    def __init__(
        self,
        sink: SinkSettings,
        make: Callable[[], Sink],
        abandoned: AbandonedTasks,
    ) -> None:
        """
        Store the parameters.

        Args:
            sink: The sink.
            make: Makes it on an executor; it is sent there.
            abandoned: Gets the tasks that were given up.
        """
        self._sink = sink
        self._abandoned = abandoned
        self._make = make
        self._run = uuid.uuid4().hex
        # The smallest batch that executors write; a smaller one costs less than a task.
        self.least_records = sink.spread_from_records
        self._has_written = False

    def apply(
        self,
        frame: DataFrame,
        batch_id: int,
        blocked_keys: frozenset[ParkedKey],
        incomplete_routes: frozenset[str],
        floors_epoch: int,
    ) -> SliceOutcome:
        """
        Apply all slices of a batch; what they wrote is durable.

        Args:
            frame: The records.
            batch_id: The batch.
            blocked_keys: Keys that only the driver may write.
            incomplete_routes: Routes that lack rows.
            floors_epoch: Grows with each floor that the driver applies: executors
                learn floors when they open the sink.

        Raises:
            UnavailableError: A target or an executor does not answer.
        """
        task = PartitionTask(
            sink=self._sink,
            make=self._make,
            opening=f"{self._run} {floors_epoch}",
            blocked_keys=blocked_keys,
            incomplete_routes=incomplete_routes,
            batch_id=batch_id,
            sent_at_s=SystemClock().now().timestamp(),
        )
        try:
            results = _results(frame, task)
        except ExecutorsFailedError:
            self._abandoned.add()
            raise
        if any(result.is_repeated for result in results):
            self._abandoned.add()
        outcome = _outcome(self._sink.name, results)
        if not self._has_written:
            self._has_written = True
            _log.info(
                "sink writes large batches by the executors", sink=self._sink.name
            )
        return outcome


def _results(frame: DataFrame, task: PartitionTask) -> list[TaskResult]:
    def run(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tune_interpreter()
        result = run_task(task, records)._replace(is_repeated=_is_repeated())
        pickled = pickle.dumps(result)
        yield pa.record_batch({_RESULT: pa.array([pickled], pa.binary())})

    try:
        results = frame.mapInArrow(run, _SCHEMA).toArrow()
    except (PySparkException, Py4JError) as error:
        message = f"the executors could not write the batch: {first_line(error)}"
        raise ExecutorsFailedError(message) from error
    # Our own tasks have pickled them.
    return [pickle.loads(one) for one in results.column(_RESULT).to_pylist()]  # noqa: S301


def _is_repeated() -> bool:
    """Return whether the engine runs this task again, in its process."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _outcome(sink: str, results: Sequence[TaskResult]) -> SliceOutcome:
    """
    Return the outcome of all tasks.

    Raises:
        UnavailableError: A target does not answer; write the batch again.
    """
    failed = [result for result in results if result.failure]
    for result in failed:
        if result.retry_after_s:
            raise TargetBusyError(result.failure, retry_after_s=result.retry_after_s)
        if result.is_unavailable:
            raise TargetUnavailableError(result.failure)
    for result in failed:
        _log.warning(
            "batch not written by a task: the driver writes its records",
            sink=sink,
            records=result.outcome.records,
            why=result.failure,
        )
    return total([result.outcome for result in results])


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


def is_spread(sink: SinkSettings, master: str) -> bool:
    """Return whether the executors write the large batches of a sink."""
    if sink.write_from is WriteFrom.AUTO:
        return not is_local(master) and kind_of(sink).spread is not None
    return sink.write_from is WriteFrom.EXECUTORS


def executor_spec(settings: Settings, sink: SinkSettings) -> ExecutorSpec:
    """Return the executor's spec of a sink."""
    return ExecutorSpec(
        sink, settings.kafka, settings.database.prefix, settings.topics.replay_window_s
    )


@cache
def _relations(kafka: Kafka, prefix: str) -> KafkaRelations:
    return KafkaRelations(kafka, prefix)
