"""
One query: from the topics of a sink's routes to its batch handler.

The engine plans the offsets of a batch; the driver, or a task for each partition, reads
its rows from Kafka.

The source lists the topics at each trigger, so new topics are read from the next
trigger on. Lost records are never skipped: a topic that lost unread records stops the
query.

The target is maintained between batches: a lock of the sink's writer prevents
maintenance during a batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from towpath.schemas.clock import Clock, Deadline
from towpath.settings import Kafka, spark_options
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.changes.decode import ReadRecords, RepeatableSlices
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.checkpoint import starting_offsets
from towpath.sinks.engine.session import tune_interpreter, tune_worker
from towpath.sinks.kafka.fetch import FETCH_SLICE_RECORDS, KafkaBatches
from towpath.sinks.ports import Cluster, Sink, SupportsUpkeep
from towpath.sinks.state.copies import RESUMES_FILE
from towpath.sinks.state.declare import STARTING_OFFSETS_FILE
from towpath.sinks.state.files import JsonFile
from towpath.sinks.state.progress import Span, records_in, sink_folder

# A new topic must not wait for the default of five minutes.
_METADATA_AGE_MS: Final = 2_000

# The function of a task: gets the task's records, and yields its results.
TaskFunction: TypeAlias = Callable[[ReadRecords], Iterator[pa.RecordBatch]]

# A task ends with its batch, and the next task in its process may read another
# partition: records prefetched beyond the end of a task are often not needed.
_AHEAD_RECORDS: Final = FETCH_SLICE_RECORDS

# A stop waits this long for the batch under way; a longer batch is delivered again.
FINISH_WITHIN_S: Final = 20.0
_POLL_EVERY_S: Final = 0.02

# An emptied cache remains empty for up to this long, until its rows are requested. Each
# check is a few small calls.
CHECK_EVERY_S: Final = 5.0


class Tasks(Protocol):
    """The tasks of a batch: one for each partition of a topic."""

    def run(self, function: TaskFunction, schema: str) -> DataFrame:
        """
        Return the results of the tasks, which run when the engine needs them.

        A task that is run again passes the same records to its function.

        Args:
            function: The function of each task; it is sent to the executors.
            schema: The columns of its results.
        """


class PartitionTasks:
    """Implements ``Tasks``: each task reads its own records from Kafka."""

    def __init__(self, frame: DataFrame, kafka: Kafka, sink: str, span: Span) -> None:
        """
        Store the parameters; nothing is read yet.

        Args:
            frame: The batch as the engine passes it; the tasks run in its session.
            kafka: The brokers.
            sink: The name of the sink.
            span: The offsets of the batch.
        """
        self._frame = frame
        self._kafka = kafka
        self._sink = sink
        self._span = span

    def run(self, function: TaskFunction, schema: str) -> DataFrame:
        singles: list[Span] = [{id_: offsets} for id_, offsets in self._span.items()]
        # The largest spans come first, so that no large one starts last.
        spans = sorted(filter(records_in, singles), key=records_in, reverse=True)
        kafka, sink = self._kafka, self._sink

        def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tune_interpreter()
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    reader = _reader(kafka, sink)
                    yield from function(partial(reader.slices, spans[number]))
            tune_worker()

        count = len(spans)
        tasks = self._frame.sparkSession.range(0, count, 1, max(1, count))
        return tasks.mapInArrow(task, schema)


@cache
def _reader(kafka: Kafka, sink: str) -> KafkaBatches:
    """Return the reader of this process, which keeps its connections."""
    return KafkaBatches(kafka, sink, ahead_records=_AHEAD_RECORDS)


@dataclass(eq=False, kw_only=True)
class BatchRows(RepeatableSlices):
    """
    The rows of one batch; nothing is read before it is needed.

    Attributes:
        read: Reads the rows in the driver.
        most: The highest possible number of rows.
        tasks: Read the rows on the executors.
        check: Checks that the rows still exist, after a task has failed to read them;
            raises ``UnavailableError`` or ``RecordsGoneError``.
    """

    most: int
    tasks: Tasks
    check: Callable[[], None]


# The handler of each batch; after an error the batch is delivered again.
OnBatch: TypeAlias = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A sink, and the files of its query."""

    sink: SinkSettings
    kafka: Kafka
    state_folder: Path

    @property
    def checkpoint(self) -> Path:
        """The engine's own folder, with the offsets read and the batches committed."""
        return sink_folder(self.state_folder, self.sink.name) / "checkpoint"

    @property
    def starting_offsets_file(self) -> Path:
        """The file of a sink's first offsets, stored when the sink was declared."""
        return sink_folder(self.state_folder, self.sink.name) / STARTING_OFFSETS_FILE

    @property
    def resumes_file(self) -> Path:
        """The file of the offsets at which a query resumes, until it commits."""
        return sink_folder(self.state_folder, self.sink.name) / RESUMES_FILE

    @property
    def begins_file(self) -> Path:
        """The file of the offsets at which a query without a checkpoint begins."""
        resumes = self.resumes_file
        return resumes if resumes.exists() else self.starting_offsets_file


def start_query(
    spark: SparkSession, plan: QueryPlan, cluster: Cluster, on_batch: OnBatch
) -> StreamingQuery:
    """
    Start the query of a sink; at least one of its topics must exist.

    Raises:
        UnavailableError: The broker does not answer.
    """
    routes = Routes(plan.sink)
    source = (
        spark.readStream.format("kafka")
        .options(**spark_options(plan.kafka))
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.metadata.max.age.ms", _METADATA_AGE_MS)
        .option("subscribePattern", routes.pattern)
        .option("startingOffsets", _starting_offsets(plan, routes, cluster))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", plan.sink.batch_records)
        .load()
    )

    # A pool for each sink: a long statement of one leaves the others their cores.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", plan.sink.name)
    return (
        source.writeStream.foreachBatch(on_batch)
        .queryName(plan.sink.name)
        .option("checkpointLocation", plan.checkpoint.resolve().as_uri())
        .trigger(processingTime=f"{plan.sink.trigger_ms} milliseconds")
        .start()
    )


def _starting_offsets(plan: QueryPlan, routes: Routes, cluster: Cluster) -> str:
    stored = JsonFile[Mapping[str, int]](plan.begins_file).read()
    existing = cluster.end_offsets(routes.matching(cluster.names()))
    return starting_offsets(stored, existing)


def wait_for_batch(query: StreamingQuery, clock: Clock) -> None:
    """Wait for the batch under way, but not forever; the writer starts no new one."""
    deadline = Deadline(clock, FINISH_WITHIN_S)
    while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
        clock.wait(_POLL_EVERY_S)


class IdleUpkeep:
    """Maintains one sink between its batches."""

    def __init__(self, sink: Sink, writer: RecordWriter, clock: Clock) -> None:
        """
        Store the parameters.

        Args:
            sink: The sink.
            writer: The writer of the sink's batches.
            clock: The time.
        """
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._next = Deadline(clock, CHECK_EVERY_S)

    def check(self) -> None:
        """
        Request overdue routes and maintain the sink, if due, but not during a batch.

        Raises:
            UnavailableError: The target does not answer.
            BusyError: The target asks for a pause.
            HaltError: The sink refuses to continue.
        """
        if not self._next.passed() or not self._writer.lock.acquire(blocking=False):
            return
        self._next = Deadline(self._clock, CHECK_EVERY_S)
        try:
            self._writer.request_overdue()
            if isinstance(self._sink, SupportsUpkeep):
                self._sink.maintain()
        finally:
            self._writer.lock.release()
