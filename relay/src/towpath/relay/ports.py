"""
Ports: the interfaces that the loop needs.

``postgres`` and ``kafka`` implement them; the loop imports neither.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from towpath.relay.encode.record import Acknowledgement, Record
from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.snapshot.protocol import (
    UnfinishedRead,
    WorkerEffect,
    WorkerFact,
)
from towpath.schemas.table_name import TableName


class ReplicationStream(Protocol):
    """The stream of a replication slot."""

    def read(self, timeout_s: float) -> Sequence[bytes]:
        """
        Return a bounded number of received frames, in order.

        Wait up to ``timeout_s`` for the first one, or until woken.

        Raises:
            SourceUnavailableError: The connection is lost.
            HaltError: The server cannot continue the stream.
        """

    def confirm(self, lsn: int) -> None:
        """
        Confirm to the server that it may drop the log below ``lsn``.

        Raises:
            SourceUnavailableError: The connection is lost.
            HaltError: The server cannot continue the stream.
        """

    def close(self) -> None:
        """Close the stream. Never raises."""


# Called once, while the producer polls, flushes or commits, with an error or None, and
# the record's acknowledgement.
OnDelivery = Callable[[object, Acknowledgement], None]


# A record, its partition, and the callback of its delivery, if there is one.
Outgoing = tuple[Record, int, OnDelivery | None]

# As librdkafka declares it: topic, key, its length, partition count, two values for
# other partitioners; only key, length and count are used.
Partitioner = Callable[[None, bytes, int, int, None, None], int]


class RecordProducer(Protocol):
    """The producer of all records."""

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        """
        Queue records in order; return how many the queue accepted. Hot path.

        The caller polls, and then produces the rest again. The records of a partition
        are appended in order. If one of them cannot be appended, the producer
        fails before a later one is sent.

        Raises:
            DeliveryFailedError: The producer has failed.
            BrokerRefusedError: The client refuses a record.
            BrokerUnavailableError: The client reports a transient error.
        """

    def poll(self, timeout_s: float) -> None:
        """
        Receive acknowledgements, waiting up to ``timeout_s`` for the first.

        Raises:
            DeliveryFailedError: The producer has failed.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until nothing is in flight."""

    @property
    def needs_commit(self) -> bool:
        """Whether sent records become visible only with the next ``commit``."""

    def commit(self) -> None:
        """
        Make acknowledged records visible, if the producer is transactional.

        Raises:
            DeliveryFailedError: The transaction failed.
        """


class TopicFacts(NamedTuple):
    """The facts about a topic that a producer needs."""

    limit_bytes: int
    partition_count: int
    is_compacted: bool = False


class TopicCatalog(Protocol):
    """Creates topics, and returns their facts."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The partition counts that decide where keys go, by topic."""

    def ensure(self, topic: str) -> TopicFacts:
        """
        Return a topic's facts; a missing topic is created.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            BrokerRefusedError: Kafka refuses the topic.
        """

    def ends(self, topic: str, partition_count: int) -> Mapping[int, int]:
        """
        Return the end offset of each partition.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
        """


class TableCatalog(Protocol):
    """The source's catalog of tables."""

    def describe(
        self, table_oid: int, name: TableName, type_oids: Sequence[int]
    ) -> CatalogFacts:
        """
        Return a table's keys, its required columns and its types.

        For a dropped table, the keys are those of the table that now has its name.

        Raises:
            SourceUnavailableError: The connection is lost.
        """


class SignalStore(Protocol):
    """Stores signals of the external signal table in ``towpath.signal``."""

    def put(
        self, signal_id: str | None, kind: str | None, data: str | None, source: str
    ) -> str | None:
        """Queue a signal; return its name for ``durable``, or None if it is refused."""

    def durable(self) -> Sequence[str]:
        """Return the names of signals stored or refused since the last call."""


class SnapshotReader(Protocol):
    """Performs the snapshot driver's effects on the database."""

    def read_stored(self) -> UnfinishedRead:
        """
        Return the unfinished snapshots. Blocks; called once, at start.

        Raises:
            TowpathError: The source cannot be read.
        """

    def submit(self, effect: WorkerEffect) -> None:
        """Queue an effect; its result arrives as a fact, after a wake-up."""

    def facts(self) -> Sequence[WorkerFact]:
        """
        Return the facts that have arrived since the last call.

        Raises:
            TowpathError: An effect has failed for good.
        """


class InterruptibleWait(Protocol):
    """A wait that another thread can interrupt."""

    def wait(self, timeout_s: float) -> None:
        """Wait until woken, or for ``timeout_s``."""
