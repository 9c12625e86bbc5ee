"""
Applies the slices of a batch on the executors: one task for each partition.

Each task of the engine has one partition of a topic, and reads its records from Kafka:
nothing is shuffled, and no record passes through the driver. A task returns counts and
the records that only the driver may write.

If the engine itself writes to the target, the tasks encode their rows. The encoded rows
stay in the engine, which runs a task again if its rows are lost. The sink's statements
read them there, and tasks of a second pass write them to files: no row passes through
the driver.

An executor makes its sink from an ``ExecutorSpec`` alone: it has no configuration and
no state folder. It reads the tables' shapes from Kafka, over one connection for all
sinks.
"""

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark import StorageLevel, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Settings, WriteFrom
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.encoded import (
    EncodedSummary,
    EngineWritten,
    Result,
    RowEncoder,
)
from towpath.sinks.apply.slice import SliceOutcome, total
from towpath.sinks.apply.task import (
    AbandonedTasks,
    Opening,
    PartitionTask,
    TaskResult,
    encode_slice,
    run_task,
)
from towpath.sinks.changes.decode import ReadRecords
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.engine.query import Tasks
from towpath.sinks.engine.session import engine_reason, is_local
from towpath.sinks.errors import (
    BatchRefusedError,
    ExecutorsFailedError,
    TargetBusyError,
)
from towpath.sinks.kafka.client import KafkaRelations
from towpath.sinks.kinds import ExecutorParts, RoutedRelations, kind_of
from towpath.sinks.ports import Sink

# Blocked keys are sent with every task. If there are more, the driver writes the batch.
MAX_BLOCKED_KEYS: Final = 1000

# The column of the tasks' results, each pickled: counts, and tables of records.
_RESULT: Final = "result"
_SCHEMA: Final = f"{_RESULT} binary"

# The columns of encoded rows: each row has the result of a task, or a statement's rows
# as an Arrow stream.
_STATEMENT: Final = "statement"
_ROWS: Final = "rows"
_ENCODED: Final = f"{_RESULT} binary, {_STATEMENT} string, {_ROWS} binary"
_IPC: Final = pa.ipc.IpcWriteOptions(compression="lz4")

_log = structlog.get_logger("towpath.sinks")


class Executors:
    """The executors, which write the slices of one sink."""

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
            make: Makes the sink on an executor; the function is sent there.
            abandoned: Records each time that tasks are abandoned.
        """
        self._sink = sink
        self._abandoned = abandoned
        self._make = make
        self._run = uuid.uuid4().hex
        # The smallest batch that executors write: below it, tasks cost more than they
        # save.
        self.least_records = sink.spread_from_records
        self._first = _FirstBatch(sink.name)
        self._failures = _BatchFailures()

    def apply(
        self,
        tasks: Tasks,
        batch_id: int,
        blocked_keys: frozenset[ParkedKey],
        incomplete_routes: frozenset[str],
        floors_epoch: int,
    ) -> SliceOutcome:
        """
        Apply all slices of a batch; their writes are durable when this returns.

        Args:
            tasks: The tasks of the batch.
            batch_id: The batch.
            blocked_keys: Keys that only the driver may write.
            incomplete_routes: Routes that lack rows.
            floors_epoch: Grows with each floor that the driver applies: executors learn
                of floors when they open the sink.

        Raises:
            BatchRefusedError: The executors have failed twice to write the batch.
            UnavailableError: A target or an executor does not answer.
        """
        self._failures.check(batch_id)
        task = PartitionTask(*(self._sink, blocked_keys, incomplete_routes, batch_id))
        opening = Opening(
            f"{self._run} {floors_epoch}", self._make, SystemClock().now().timestamp()
        )
        try:
            results = _results(tasks, task, opening)
        except ExecutorsFailedError as error:
            self._abandoned.add()
            self._failures.add(batch_id, error)
            raise
        if any(result.is_repeated for result in results):
            self._abandoned.add()
        outcome = _outcome(self._sink.name, results)
        self._first.log()
        return outcome


class EncodingExecutors:
    """The executors, which encode the rows of a sink that the engine writes."""

    def __init__(self, settings: SinkSettings, sink: EngineWritten) -> None:
        """
        Store the parameters.

        Args:
            settings: The sink, as it is configured.
            sink: The open sink; its statements run on the executors.
        """
        self._settings = settings
        self._sink = sink
        self.least_records = settings.spread_from_records
        self._first = _FirstBatch(settings.name)
        self._failures = _BatchFailures()

    def apply(
        self,
        tasks: Tasks,
        batch_id: int,
        blocked_keys: frozenset[ParkedKey],
        incomplete_routes: frozenset[str],
        _floors_epoch: int,
    ) -> SliceOutcome:
        """
        Encode all slices of a batch and have the engine write them.

        The sink counts the rows that it writes. The parameters are those of
        ``Executors``.

        Raises:
            BatchRefusedError: The target refuses a row, or the executors have failed
                twice to write the batch.
            UnavailableError: The target or an executor does not answer.
        """
        self._failures.check(batch_id)
        task = PartitionTask(
            *(self._settings, blocked_keys, incomplete_routes, batch_id)
        )
        encoded = _encoded(tasks, task, self._sink.make_encoder())
        encoded.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            outcomes, summaries = _outcomes(encoded)
            self._sink.write_encoded(_FrameRows(encoded, summaries))
        except ExecutorsFailedError as error:
            self._failures.add(batch_id, error)
            raise
        finally:
            encoded.unpersist()
        self._first.log()
        return total(outcomes)


class _BatchFailures:
    """
    The executors' failures to write the newest batch.

    The first may be temporary, such as a lost executor. A second one may be permanent,
    for example because a record cannot be encoded, or because results are too large for
    the engine: the driver then writes the batch, or reports why it cannot.
    """

    def __init__(self) -> None:
        self._batch_id: int | None = None
        self._lasting: str | None = None

    def check(self, batch_id: int) -> None:
        """Raise ``BatchRefusedError`` if a batch has failed twice on the executors."""
        if batch_id == self._batch_id and self._lasting is not None:
            raise BatchRefusedError(self._lasting)

    def add(self, batch_id: int, error: ExecutorsFailedError) -> None:
        """Record a failure; raise ``BatchRefusedError`` if it is the batch's second."""
        if batch_id != self._batch_id:
            self._batch_id, self._lasting = batch_id, None
            return
        self._lasting = str(error)
        raise BatchRefusedError(self._lasting) from error


class _FirstBatch:
    """Logs once that the executors write to a sink."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._is_logged = False

    def log(self) -> None:
        if not self._is_logged:
            self._is_logged = True
            _log.info("sink writes large batches on the executors", sink=self._sink)


def _encoded(
    tasks: Tasks, task: PartitionTask, make: Callable[[], RowEncoder]
) -> DataFrame:
    """Return the outcomes of the slices, and their encoded rows."""

    def run(read: ReadRecords) -> Iterator[pa.RecordBatch]:
        outcome, encoded = encode_slice(task, make, read)
        summaries = [one.summary for one in encoded]
        yield _encoded_row(result=pickle.dumps((outcome, summaries)))
        for one in encoded:
            for batch in one.rows.to_batches():
                yield _encoded_row(statement=one.summary.statement, rows=_to_ipc(batch))

    return tasks.run(run, _ENCODED)


def _encoded_row(
    result: bytes | None = None, statement: str | None = None, rows: bytes | None = None
) -> pa.RecordBatch:
    return pa.record_batch(
        {
            _RESULT: pa.array([result], pa.binary()),
            _STATEMENT: pa.array([statement], pa.string()),
            _ROWS: pa.array([rows], pa.binary()),
        }
    )


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_IPC) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _outcomes(
    encoded: DataFrame,
) -> tuple[list[SliceOutcome], list[EncodedSummary]]:
    """Run the tasks; return their outcomes, and summaries of their encoded rows."""
    try:
        results = encoded.where(f"{_RESULT} IS NOT NULL").select(_RESULT).toArrow()
    except (PySparkException, Py4JError) as error:
        message = f"the executors could not encode the batch: {engine_reason(error)}"
        raise ExecutorsFailedError(message) from error
    pairs = _unpickled(results)
    return [outcome for outcome, _ in pairs], [one for _, own in pairs for one in own]


class _FrameRows:
    """The encoded rows of a batch, in the engine."""

    def __init__(self, encoded: DataFrame, summaries: Sequence[EncodedSummary]) -> None:
        self.summaries = summaries
        self._encoded = encoded

    def register(
        self,
        statement: str,
        name: str,
        schema: pa.Schema,
        keep: Callable[[pa.Table], pa.Table],
    ) -> None:
        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in _tables(batches):
                yield from keep(table).to_batches()

        session = self._encoded.sparkSession
        row_schema = session.createDataFrame(schema.empty_table()).schema
        rows = self._rows_of(statement).mapInArrow(read, row_schema)
        # The batch and the sink's statements run in different sessions.
        rows.createOrReplaceGlobalTempView(name)

    def collect(
        self, statement: str, write: Callable[[pa.Table], Result]
    ) -> list[Result]:
        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tables = list(_tables(batches))
            if tables:
                yield _result_row(write(pa.concat_tables(tables)))

        # One call for each core: each call writes its own files.
        cores = self._encoded.sparkSession.sparkContext.defaultParallelism
        results = self._rows_of(statement).coalesce(cores).mapInArrow(run, _SCHEMA)
        try:
            return _unpickled(results.toArrow())
        except (PySparkException, Py4JError) as error:
            message = f"the executors could not write the batch: {engine_reason(error)}"
            raise ExecutorsFailedError(message) from error

    def _rows_of(self, statement: str) -> DataFrame:
        matching = self._encoded.where(col(_STATEMENT) == statement)
        return matching.select(_ROWS)


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the encoded rows of a task."""
    for batch in batches:
        for rows in batch.column(0):
            with pa.ipc.open_stream(rows.as_buffer()) as reader:
                yield reader.read_all()


def _results(tasks: Tasks, task: PartitionTask, opening: Opening) -> list[TaskResult]:
    def run(read: ReadRecords) -> Iterator[pa.RecordBatch]:
        result = run_task(task, opening, read)._replace(is_repeated=_is_repeated())
        yield _result_row(result)

    try:
        results = tasks.run(run, _SCHEMA).toArrow()
    except (PySparkException, Py4JError) as error:
        message = f"the executors could not write the batch: {engine_reason(error)}"
        raise ExecutorsFailedError(message) from error
    return _unpickled(results)


def _result_row(result: object) -> pa.RecordBatch:
    return pa.record_batch({_RESULT: pa.array([pickle.dumps(result)], pa.binary())})


def _unpickled(results: pa.Table) -> list[Any]:
    """Return the results of our own tasks, which have pickled them."""
    return [pickle.loads(one) for one in results.column(_RESULT).to_pylist()]  # noqa: S301


def _is_repeated() -> bool:
    """Return whether the engine repeats the task that runs in this process."""
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
        if result.retry is not None:
            raise result.retry(result.failure)
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
    shared: object = None

    def make(self) -> Sink:
        """
        Make the sink; nothing is opened yet.

        Raises:
            UsageError: Only the driver writes sinks of this kind.
        """
        spread = kind_of(self.sink).spread
        if spread is None:
            message = f"only the driver writes sinks of the kind {self.sink.kind}"
            raise UsageError(message)
        announced = _relations(self.kafka, self.prefix)
        parts = ExecutorParts(
            prefix=self.prefix,
            replay_window_s=self.replay_window_s,
            relations=RoutedRelations(
                announced, self.sink.route, kind_of(self.sink).unfit_name
            ),
            clock=SystemClock(),
            shared=self.shared,
        )
        return spread(self.sink, parts)


def is_spread(sink: SinkSettings, master: str) -> bool:
    """Return whether the executors write the large batches of a sink."""
    if sink.write_from is WriteFrom.AUTO:
        return not is_local(master) and kind_of(sink).has_tasks
    return sink.write_from is WriteFrom.EXECUTORS


def executor_spec(settings: Settings, sink: SinkSettings) -> ExecutorSpec:
    """Return the spec from which an executor makes a sink."""
    return ExecutorSpec(
        *(sink, settings.kafka, settings.database.prefix),
        replay_window_s=settings.topics.replay_window_s,
        shared=kind_of(sink).shared(sink),
    )


@cache
def _relations(kafka: Kafka, prefix: str) -> KafkaRelations:
    return KafkaRelations(kafka, prefix)
