"""
One query: from the topics of a sink's routes to its batch handler.

The source lists the topics at each trigger, so new topics are read from the next one
on. Lost records are never skipped: a topic that lost unread records stops the query.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from towpath.settings import Kafka, Sink, spark_options
from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.checkpoint import starting_offsets
from towpath.sinks.ports import Cluster
from towpath.sinks.state.copies import RESUMES_FILE
from towpath.sinks.state.declare import STARTING_OFFSETS_FILE
from towpath.sinks.state.progress import sink_folder

# A new topic must not wait for the default of five minutes.
_METADATA_AGE_MS: Final = 2_000


# The engine knows the end offsets before it fetches, so the broker need not wait. With
# Kafka's default, the fetch left open after each batch costs the next one half a
# second.
_FETCH_WAIT_MS: Final = 1


class BatchRows:
    """The rows of one batch, read in the driver on demand, or on executors."""

    def __init__(
        self, frame: DataFrame, read: Callable[[], Iterator[pa.Table]], most: int
    ) -> None:
        """
        Store the parameters; nothing is read yet.

        Args:
            frame: The rows in the engine.
            read: Reads them in the driver, slice by slice, from the first.
            most: The highest possible number of rows.
        """
        self.most = most
        self._frame = frame
        self._read = read
        self._rest: Iterator[pa.Table] | None = None
        self._slices: list[pa.Table] = []

    @property
    def frame(self) -> DataFrame:
        """The rows on the executors."""
        return self._frame.select(*RECORDS.names)

    def slices(self) -> Iterator[pa.Table]:
        """
        Yield the rows slice by slice; a further call yields all of them again.

        Raises:
            UnavailableError: They cannot be read now; the next call begins at the
                first.
        """
        position = 0
        while position < len(self._slices) or self._has_more():
            yield self._slices[position]
            position += 1

    def _has_more(self) -> bool:
        """Read one more slice; return whether there was one."""
        # After a failure, reading begins again at the first slice.
        rest, self._rest = self._rest, None
        if rest is None:
            rest = self._read()
        try:
            slice_ = next(rest, None)
        except BaseException:
            self._slices.clear()
            raise
        self._rest = rest
        if slice_ is None:
            return False
        self._slices.append(slice_)
        return True


# The handler of each batch; after an error the batch is delivered again.
OnBatch: TypeAlias = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A sink, and the files of its query."""

    sink: Sink
    kafka: Kafka
    state_folder: Path

    @property
    def checkpoint(self) -> Path:
        """The engine's own folder: offsets read, batches committed."""
        return sink_folder(self.state_folder, self.sink.name) / "checkpoint"

    @property
    def starting_offsets_file(self) -> Path:
        """The first offsets of a sink, stored when it was declared."""
        return sink_folder(self.state_folder, self.sink.name) / STARTING_OFFSETS_FILE

    @property
    def resumes_file(self) -> Path:
        """The offsets at which the query resumes after a recovery, until it commits."""
        return sink_folder(self.state_folder, self.sink.name) / RESUMES_FILE

    @property
    def begins_file(self) -> Path:
        """The first offsets without a checkpoint; without the file, the earliest."""
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
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("subscribePattern", routes.pattern)
        .option("includeHeaders", "true")
        .option("startingOffsets", _starting_offsets(plan, routes, cluster))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", plan.sink.batch_records)
        .load()
    )

    # So that a long statement of one sink leaves the others their share of the cores.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", plan.sink.name)
    return (
        source.writeStream.foreachBatch(on_batch)
        .queryName(plan.sink.name)
        .option("checkpointLocation", plan.checkpoint.resolve().as_uri())
        .trigger(processingTime=f"{plan.sink.trigger_ms} milliseconds")
        .start()
    )


def _starting_offsets(plan: QueryPlan, routes: Routes, cluster: Cluster) -> str:
    try:
        stored = orjson.loads(plan.begins_file.read_bytes())
    except FileNotFoundError:
        stored = {}
    existing = cluster.end_offsets(routes.matching(cluster.names()))
    return starting_offsets(stored, existing)
