"""
Observers of a chaos run: a session on the source, and a reader of the topics.

The session reads the relay's confirmed LSN, and makes commits wait for a standby. The
reader consumes topics from their beginnings and passes each record to its folds. A
topic exists once it has its first record, so missing topics are looked up repeatedly.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from psycopg import sql

from towpath.loadtests.chaos.actor import connect
from towpath.loadtests.chaos.context import ChaosEnvironment
from towpath.loadtests.chaos.fold import Fold
from towpath.loadtests.chaos.tables import Session
from towpath.loadtests.errors import ChaosError
from towpath.schemas.clock import Clock, Deadline

_MISSING_STANDBY: Final = "nobody"
_WITHIN_S: Final = 10.0
_POLL_INTERVAL_S: Final = 0.05
_UNFINISHED: Final = """
select snapshot_id, collection, state, rows, error from towpath.snapshot
where state not in ('completed', 'incomplete', 'failed', 'stopped')
order by queued_at limit 20
"""
_CONFIRMED: Final = """
select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots
where slot_name = %s
"""


class SourceObserver:
    """A session on the source."""

    def __init__(self, environment: ChaosEnvironment) -> None:
        self._environment = environment
        self.session: Session = connect(environment.dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    @contextmanager
    def late_commits(self) -> Iterator[None]:
        """
        Make commits wait for a standby during the block, in sessions that enable this.

        Commits that are still waiting at the end become visible.
        """
        name = sql.Identifier(self.session.info.dbname)
        statement = "alter database {} set synchronous_commit = local"
        self.session.execute(sql.SQL(statement).format(name))
        try:
            self._name_standby(_MISSING_STANDBY)
            yield
        finally:
            self._name_standby("")

    def mark(self) -> str:
        """Write a last logical message, and return the end of the log."""
        self.session.execute("select pg_logical_emit_message(true, 'chaos', 'mark')")
        return str(self._one("select pg_current_wal_lsn()::text"))

    def is_confirmed(self, lsn: str) -> bool:
        """Return whether the relay has confirmed an LSN."""
        return bool(self._one(_CONFIRMED, lsn, self._environment.prefix))

    def unfinished(self) -> list[str]:
        """Describe tables that are queued, being read or paused, at most 20."""
        return [
            f"{row[0]} {row[1]} is {row[2]} after {row[3]} rows: {row[4] or 'no error'}"
            for row in self.session.execute(_UNFINISHED)
        ]

    def _name_standby(self, name: str) -> None:
        statement = "alter system set synchronous_standby_names = {}"
        self.session.execute(sql.SQL(statement).format(sql.Literal(name)))
        self.session.execute("select pg_reload_conf()")
        deadline = Deadline(self._environment.clock, _WITHIN_S)
        while self._one("show synchronous_standby_names") != name:
            if deadline.passed():
                message = "the server does not apply its new settings"
                raise ChaosError(message)
            self._environment.clock.wait(_POLL_INTERVAL_S)

    def _one(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401 - a value of SQL
        row = self.session.execute(statement.encode(), arguments).fetchone()
        return None if row is None else row[0]


_RECORDS_PER_POLL: Final = 5000
_LOOKUP_WITHIN_S: Final = 10.0
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's own name for it
# Errors for a topic that is being created.
_NEW_TOPIC_ERRORS: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client's own name for it
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)

_Partition = tuple[str, int]


class TopicReader:
    """A consumer of all topics of a run."""

    def __init__(self, bootstrap: str, clock: Clock) -> None:
        self._clock = clock
        self._folds: dict[str, tuple[Fold, ...]] = {}
        self._next: dict[_Partition, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "towpath-chaos",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # Reports the end, which the last record does not show: the marker of a
                # transaction follows it.
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def follow(self, topic: str, *folds: Fold) -> None:
        """Pass the records of a topic to these folds, from its first record on."""
        self._folds[topic] = folds

    def poll(self, within_s: float) -> int:
        """Pass on the records that arrive within ``within_s``; return their number."""
        self._find_topics()
        if not self._next:
            self._clock.wait(within_s)
            return 0
        count = 0
        for record in self._consumer.consume(_RECORDS_PER_POLL, within_s):
            error = record.error()
            if error is None:
                self._deliver(record)
                count += 1
            elif error.code() == _END:
                self._skip_to(record)
        return count

    def _deliver(self, record: Any) -> None:  # noqa: ANN401 - the client's object
        topic, partition = record.topic(), record.partition()
        key, value, headers = record.key(), record.value(), record.headers() or ()
        for fold in self._folds[topic]:
            fold.take(partition, key, value, headers)
        self._next[topic, partition] = record.offset() + 1

    def _skip_to(self, record: Any) -> None:  # noqa: ANN401 - as above
        place = record.topic(), record.partition()
        self._next[place] = max(self._next[place], record.offset())

    def read_to_end(self, within_s: float) -> None:
        """
        Pass on all records up to the current ends.

        Raises:
            ChaosError: The topics could not be read in time.
        """
        deadline = Deadline(self._clock, within_s)
        self._find_topics()
        ends = self._ends()
        while any(self._next[place] < end for place, end in ends.items()):
            self.poll(0.2)
            if deadline.passed():
                message = f"the topics were not read within {within_s:.0f} s"
                raise ChaosError(message)

    def _find_topics(self) -> None:
        known = {topic for topic, _ in self._next}
        if known >= self._folds.keys():
            return
        found = self._consumer.list_topics(timeout=_LOOKUP_WITHIN_S).topics
        for topic in self._folds.keys() - known:
            partitions = list(found[topic].partitions) if topic in found else []
            for partition in partitions:
                self._next[topic, partition] = 0
            if partitions:
                self._consumer.incremental_assign(
                    [TopicPartition(topic, partition, 0) for partition in partitions]
                )

    def _ends(self) -> dict[_Partition, int]:
        ends: dict[_Partition, int] = {}
        for topic, partition in self._next:
            place = TopicPartition(topic, partition)
            try:
                _, end = self._consumer.get_watermark_offsets(place, _LOOKUP_WITHIN_S)
            except KafkaException as error:
                if error.args[0].code() not in _NEW_TOPIC_ERRORS:
                    message = f"the end of {topic} cannot be read: {error}"
                    raise ChaosError(message) from error
                continue
            ends[topic, partition] = end
        return ends
