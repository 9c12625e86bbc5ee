"""
The runs of sinks, and their datasets, for data lineage catalogs.

A sink's run begins once its query is running, or when a batch is written after a
failure, and ends with the sink, or with a failure. Its inputs are the topics of its
routes, and its outputs are the datasets in the target. Columns are known for the routes
of tables: an input has those that the relay announced, and an output has those of the
route, each with the published columns that it comes from.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from urllib.parse import urlsplit

from towpath.schemas.lineage import (
    Dataset,
    DatasetName,
    Field,
    Job,
    JobDatasets,
    LineageReporter,
    LineageRun,
    kafka_dataset,
    postgres_dataset,
)
from towpath.schemas.topics import is_backfill
from towpath.settings import Route, RouteKind, Settings, Sink, SinkKind
from towpath.sinks.changes.relations import RelationShape
from towpath.sinks.changes.routing import Routes, Routing
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.postgres import parameters_of


class SinkRuns:
    """The runs of one sink, one at a time; called by any thread of the sink."""

    def __init__(self, reporter: LineageReporter, job: Job) -> None:
        self._reporter = reporter
        self._job = job
        self._run: LineageRun | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin a run, unless one has begun."""
        with self._lock:
            if self._run is None:
                self._run = self._reporter.start(self._job)

    def end(self, failure: str | None = None) -> None:
        """End the run that has begun, if any."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.end(failure)


def sink_job(settings: Settings, sink: Sink) -> Job:
    """Describe the job of a sink."""
    name = f"{settings.database.prefix}.sink.{sink.name}"
    return Job(name, "SINK", SinkDatasets(settings, sink).read)


class SinkDatasets:
    """The datasets of one sink."""

    def __init__(self, settings: Settings, sink: Sink) -> None:
        self._settings = settings
        self._sink = sink
        self._routes = Routes(sink)

    def read(self) -> JobDatasets:
        """
        Return the datasets as they are now.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        kafka, prefix = self._settings.kafka, self._settings.database.prefix
        topics = self._routes.matching(Topics(kafka).names())
        read = [topic for topic in topics if not is_backfill(topic)]
        with closing(KafkaRelations(kafka, prefix)) as relations:
            relations.refresh()
            shapes = {topic: relations.known(topic) for topic in read}
        inputs = [
            Dataset(self._topic(topic), _fields(shape))
            for topic, shape in shapes.items()
        ]
        return JobDatasets(inputs, list(self._outputs(shapes)))

    def _outputs(self, shapes: Mapping[str, RelationShape | None]) -> Iterator[Dataset]:
        for route in self._sink.route:
            name = target_of(self._sink, route, self._settings.database.prefix)
            shape = shapes.get(route.topic)
            if route.kind is not RouteKind.TABLE or shape is None:
                yield Dataset(name)
                continue
            routing = self._routes.routing(route.name)
            topic = self._topic(route.topic)
            yield _routed(name, shape, topic, routing or Routing(route))

    def _topic(self, name: str) -> DatasetName:
        return kafka_dataset(self._settings.kafka.bootstrap_servers, name)


def _fields(shape: RelationShape | None) -> list[Field]:
    if shape is None:
        return []
    return [Field(column.name, column.type) for column in shape.columns]


def _routed(
    name: DatasetName, shape: RelationShape, topic: DatasetName, routing: Routing
) -> Dataset:
    """Return a route's dataset; each column lists the columns that it comes from."""
    origins = {
        column: [(topic, origin) for origin in sorted(each.inputs)]
        for each in routing.transformed(shape.columns).columns
        if (column := routing.name(each.name)) is not None and each.inputs
    }
    return Dataset(name, _fields(routing.shape(shape)), origins)


def target_of(sink: Sink, route: Route, prefix: str) -> DatasetName:
    """
    Return the name of the dataset that a route writes to.

    A namespace has the scheme, host and port of the target's address, never its login;
    the scheme of a search index is ``opensearch``. The namespace of a warehouse is the
    folder or the location of its files.
    """
    if sink.kind == SinkKind.POSTGRES:
        return postgres_dataset(parameters_of(sink.url), route.name)
    if sink.kind == SinkKind.WAREHOUSE:
        location = sink.warehouse.location or f"file://{sink.folder}"
        return DatasetName(location.rstrip("/"), route.name)
    address = urlsplit(sink.url)
    host = address.netloc.rpartition("@")[2]
    scheme = "opensearch" if sink.kind == SinkKind.SEARCH else address.scheme
    name = f"{prefix}:{route.name}" if sink.kind == SinkKind.CACHE else route.name
    return DatasetName(f"{scheme}://{host}", name)
