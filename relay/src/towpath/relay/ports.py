"""
Ports: the interfaces that the loop needs.

The edges (``postgres``, ``kafka``) fit these; the loop knows neither.
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
    """The open stream of a slot."""

    def read(self, timeout_s: float) -> Sequence[bytes]:
        """
        Return the frames that are there, a bounded number, in order.

        Waits up to ``timeout_s`` for the first, or until it is woken.

        Raises:
            SourceUnavailableError: The connection is gone.
        """

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything below ``lsn`` may be forgotten."""

    def close(self) -> None:
        """End the stream. Never raises."""


# Told from ``poll``, once per record: an error or None, and where the record stands.
OnDelivery = Callable[[object, Acknowledgement], None]


# A record on its way out, and who is told of it.
Outgoing = tuple[Record, OnDelivery]


class RecordProducer(Protocol):
    """The way into Kafka."""

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        """
        Hand records over, in their order; hot path.

        Returns:
            How many were taken. Fewer than all: there is no room; ``poll``, then hand
            the rest over again.
        """

    def poll(self, timeout_s: float) -> None:
        """
        Let acknowledgements come in, waiting up to ``timeout_s`` for the first.

        Raises:
            DeliveryFailedError: The producer can go on no more.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until nothing is on its way."""

    @property
    def needs_commit(self) -> bool:
        """Whether records wait for ``commit`` to become visible."""

    def commit(self) -> None:
        """
        Make what was acknowledged visible; nothing to do without transactions.

        Raises:
            DeliveryFailedError: It was given up.
        """


class TopicFacts(NamedTuple):
    """The facts of a topic that a producer needs."""

    limit_bytes: int
    partition_count: int
    is_compacted: bool = False


class TopicCatalog(Protocol):
    """Knows and makes topics."""

    def ensure(self, topic: str) -> TopicFacts:
        """
        Return a topic's facts; it is made first if there is none.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
            BrokerRefusedError: Kafka refuses the topic.
        """

    def ends(self, topic: str, partition_count: int) -> Mapping[int, int]:
        """
        Return the end offset of each partition.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
        """


class TableCatalog(Protocol):
    """The source's catalog of tables."""

    def describe(
        self, table_oid: int, name: TableName, type_oids: Sequence[int]
    ) -> CatalogFacts:
        """
        Return a table's key and its types' names.

        Of a table that is gone, the key is that of the one that has its name now.

        Raises:
            SourceUnavailableError: The connection is gone.
        """


class Inbox(Protocol):
    """Takes signals that are left in a table of another shape."""

    def put(
        self, signal_id: str | None, kind: str | None, data: str | None, source: str
    ) -> str | None:
        """Take one; return its name for ``durable``, or None if it is refused."""

    def durable(self) -> Sequence[str]:
        """Hand over the names of what became durable, or was refused, since then."""


class SnapshotReader(Protocol):
    """Performs what the snapshot driver wants done in the database."""

    def read_stored(self) -> UnfinishedRead:
        """Return the snapshots that have not ended. Blocks; once, at start."""

    def submit(self, effect: WorkerEffect) -> None:
        """Take an effect; its answer comes back as a fact, after a wake-up."""

    def facts(self) -> Sequence[WorkerFact]:
        """Hand over the facts since the last call."""


class InterruptibleWait(Protocol):
    """Something to wait on that can be woken."""

    def wait(self, timeout_s: float) -> None:
        """Wait until woken, or the time is over."""
