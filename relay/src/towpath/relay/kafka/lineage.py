"""
The runs of the relay and of its snapshots, and their datasets, for lineage catalogs.

A run of the relay is one session of its stream. A run of a snapshot covers one of its
tables, from the first chunk to the end, across several sessions if need be; a run that
the process leaves unfinished is aborted, and another run continues it. The columns of a
table are those that the relay announced in Kafka, so the source is not queried.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from towpath.relay.encode.outbox_columns import ReservedTopics
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.recovery import AnnouncedTable, read_announced_tables
from towpath.relay.snapshot.stored import StoredTable
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
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import backfill_topic, outbox_topic, table_topic
from towpath.settings import Settings
from towpath.settings.outbox import AggregateView


class SnapshotRuns:
    """Tracks the runs of a process's snapshots. Only the loop calls it."""

    def __init__(self, reporter: LineageReporter, datasets: "RelayDatasets") -> None:
        self._reporter = reporter
        self._datasets = datasets
        self._runs: dict[tuple[str, str], LineageRun] = {}

    def take(self, table: StoredTable) -> None:
        """Begin or end the run of a table whose progress has changed."""
        name = table.snapshot_id, table.collection
        if name not in self._runs:
            if table.state != "running" and not table.has_ended:
                return
            self._runs[name] = self._reporter.start(self._datasets.snapshot_job(table))
        if table.has_ended:
            is_failed = table.state in {"failed", "incomplete"}
            failure = (table.error or table.state) if is_failed else None
            is_aborted = table.state == "stopped"
            self._runs.pop(name).end(failure, is_aborted=is_aborted)

    def close(self) -> None:
        """Abort the runs that have not ended."""
        for run in self._runs.values():
            run.end(is_aborted=True)
        self._runs.clear()


class RelayLineage:
    """Reports the runs of one relay process."""

    def __init__(self, reporter: LineageReporter, datasets: "RelayDatasets") -> None:
        self._reporter = reporter
        self._datasets = datasets
        self.snapshots = SnapshotRuns(reporter, datasets)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Report a block as a run of the relay; an exception fails the run."""
        run = self._reporter.start(self._datasets.relay_job())
        try:
            yield
        except Exception as error:
            run.end(f"{type(error).__name__}: {error}")
            raise
        run.end()

    def close(self) -> None:
        """Abort open snapshot runs; spend a short time sending pending events."""
        self.snapshots.close()
        self._reporter.close()


class RelayDatasets:
    """The tables and topics of the relay."""

    def __init__(
        self, settings: Settings, place: Mapping[str, object], captured: Collection[str]
    ) -> None:
        """
        Store the parameters; nothing is read.

        Args:
            settings: The configuration.
            place: The address of the source, as libpq parameters.
            captured: The captured tables, which may be replaced while the relay runs.
        """
        self._settings = settings
        self._place = place
        self._captured = captured

    def relay_job(self) -> Job:
        """Describe the job of the relay."""
        return Job(f"{self._prefix}.relay", "RELAY", self.read)

    def snapshot_job(self, table: StoredTable) -> Job:
        """Describe the job of a table's snapshots."""
        name = f"{self._prefix}.snapshot.{table.collection}"
        datasets = partial(self._of_snapshot, table.collection, table.target)
        for view in self._settings.relay.outbox.view:
            if view.collection == table.collection:
                datasets = partial(self._of_view, view, table.target)
        return Job(name, "SNAPSHOT", datasets, is_streaming=False)

    def read(self) -> JobDatasets:
        """
        Return the captured tables and the outbox, and their topics.

        Raises:
            TowpathError: Kafka cannot be read.
        """
        outbox = self._settings.relay.outbox
        with TopicReader(self._settings.kafka) as reader:
            announced = read_announced_tables(reader, self._prefix)
            topics = reader.partition_counts()
        names = [TableName.parse(text) for text in sorted(self._captured)]
        events = self._event_topics(topics, (*names, *announced))
        inputs = [self._input(name, announced.get(name)) for name in names]
        outputs = [
            self._output(name, announced[name], table_topic(self._prefix, name))
            for name in names
            if name in announced
        ]
        if events:
            inputs.append(Dataset(self._table(TableName.parse(outbox.table))))
        outputs += [Dataset(self._topic(topic)) for topic in sorted(events)]
        return JobDatasets(inputs, outputs)

    def _event_topics(
        self, topics: Iterable[str], tables: Iterable[TableName]
    ) -> list[str]:
        """Return the unreserved topics that match the template for event topics."""
        template = self._settings.relay.outbox.topic
        before, _, after = outbox_topic(template, "\0").partition("\0")
        of_tables = (table_topic(self._prefix, name) for name in tables)
        further = (*of_tables, self._settings.signal_topic)
        reserved = ReservedTopics(self._prefix, further)
        return [
            topic
            for topic in topics
            if topic.startswith(before)
            and topic.endswith(after)
            and topic not in reserved
        ]

    def _of_snapshot(self, table: str, target: str | None) -> JobDatasets:
        name = TableName.parse(table)
        with TopicReader(self._settings.kafka) as reader:
            announced = read_announced_tables(reader, self._prefix).get(name)
        topic = table_topic(self._prefix, name)
        topic = topic if target is None else backfill_topic(topic, target)
        inputs = [self._input(name, announced)]
        return JobDatasets(inputs, [self._output(name, announced, topic)])

    def _of_view(self, view: AggregateView, target: str | None) -> JobDatasets:
        """Return the view of an aggregate, and the topic of its events."""
        topic = self._settings.relay.outbox.topic_of(view.aggregate_type)
        topic = topic if target is None else backfill_topic(topic, target)
        return JobDatasets(
            [Dataset(self._table(TableName.parse(view.view)))],
            [Dataset(self._topic(topic))],
        )

    def _input(self, name: TableName, announced: AnnouncedTable | None) -> Dataset:
        columns = () if announced is None else announced.columns
        fields = [Field(each.source_name, each.type) for each in columns]
        return Dataset(self._table(name), fields)

    def _output(
        self, name: TableName, announced: AnnouncedTable | None, topic: str
    ) -> Dataset:
        """Return a topic's dataset, with the table column behind each topic column."""
        columns = () if announced is None else announced.columns
        table = self._table(name)
        return Dataset(
            self._topic(topic),
            [Field(each.name, each.type) for each in columns],
            {each.name: [(table, each.source_name)] for each in columns},
        )

    @property
    def _prefix(self) -> str:
        return self._settings.database.prefix

    def _table(self, name: TableName) -> DatasetName:
        return postgres_dataset(self._place, name.joined)

    def _topic(self, name: str) -> DatasetName:
        return kafka_dataset(self._settings.kafka.bootstrap_servers, name)
