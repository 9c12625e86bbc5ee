"""
The rows of one batch: read once by the driver, or by tasks on the executors.

The engine plans the offsets of a batch. Driver and tasks read the records with Kafka's
client (``KafkaBatches``): the engine's own source would take several times the
processor time per record.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from towpath.settings import Kafka
from towpath.sinks.apply.task import ReadRecords, RepeatableSlices
from towpath.sinks.engine.session import tune_interpreter, tune_worker
from towpath.sinks.kafka.fetch import FETCH_SLICE_RECORDS, Batches, KafkaBatches
from towpath.sinks.state.progress import Span, records_in

# The function of a task: gets the task's records, and yields its results.
TaskFunction: TypeAlias = Callable[[ReadRecords], Iterator[pa.RecordBatch]]

# A task ends with its batch, and the next one of its process may read another
# partition: records prefetched beyond the end of a task are often read in vain.
_AHEAD_RECORDS: Final = FETCH_SLICE_RECORDS


class Tasks(Protocol):
    """The tasks of a batch: one for each partition of a topic."""

    def run(self, function: TaskFunction, schema: str) -> DataFrame:
        """
        Return what the tasks yield; they run when the engine needs it.

        A task that is run again yields the same records to its function.

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
            frame: The batch as the engine passes it, of whose session the tasks are.
            kafka: The brokers.
            sink: The name of the sink.
            span: The offsets of the batch.
        """
        self._frame = frame
        self._kafka = kafka
        self._sink = sink
        self._span = span

    def run(self, function: TaskFunction, schema: str) -> DataFrame:
        # The largest first, so that none of them is begun last.
        spans: list[Span] = [
            {place: offsets}
            for place, offsets in sorted(self._span.items(), key=_records, reverse=True)
            if offsets[0] < offsets[1]
        ]
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


def _records(of_place: tuple[object, tuple[int, int]]) -> int:
    _, (begin, end) = of_place
    return end - begin


@cache
def _reader(kafka: Kafka, sink: str) -> KafkaBatches:
    """Return the reader of this process, which keeps its connections."""
    return KafkaBatches(kafka, sink, ahead_records=_AHEAD_RECORDS)


class BatchRows:
    """The rows of one batch; nothing is read before it is needed."""

    def __init__(self, batches: Batches, span: Span, tasks: Tasks) -> None:
        """
        Store the parameters.

        Args:
            batches: Reads them in the driver.
            span: The offsets of the batch.
            tasks: Read them on the executors.
        """
        self.most = records_in(span)
        self.tasks = tasks
        self._batches = batches
        self._span = span
        self._slices = RepeatableSlices(partial(batches.slices, span))

    def slices(self) -> Iterator[pa.Table]:
        """
        Yield the rows slice by slice; a further call yields all of them again.

        Raises:
            UnavailableError: They cannot be read now; the next call begins at the
                first.
            RecordsGoneError: Some of them no longer exist.
        """
        return self._slices.read()

    def check(self) -> None:
        """
        Check that the rows still exist, after a task could not read them.

        Raises:
            UnavailableError: The broker does not answer.
            RecordsGoneError: Some of them no longer exist.
        """
        self._batches.check(self._span)
