"""
One query: from the topics of a sink's routes to its batch handler.

The source lists the topics at each trigger, so new topics are read from the next one
on. Lost records are never skipped: a topic that lost unread records stops the query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from towpath.settings import Kafka, Sink, spark_options
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.checkpoint import starting_offsets
from towpath.sinks.ports import Cluster
from towpath.sinks.state.copies import RESUMES_FILE
from towpath.sinks.state.declare import STARTING_OFFSETS_FILE
from towpath.sinks.state.progress import sink_folder

# A new topic must not wait for the default of five minutes.
_METADATA_AGE_MS: Final = 2_000


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
        .option("subscribePattern", routes.pattern)
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
