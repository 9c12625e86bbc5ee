"""
What the jobs need of a target, and what targets need of the world.

A sink has four verbs and knows nothing of Spark. ``apply`` may mean *accepted*; only
``flush`` means *durable*, and only what it returned moves a checkpoint. Any duplicate,
reordering, replay or split of batches leaves a sink equal to the fold of its changes in
position order: it refuses what is older than what it has, and remembers deletes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from towpath.sinks.change import Change, EventRow, Floor, Record, Refusal, Row
from towpath.sinks.relations import RelationShape


@dataclass(frozen=True, slots=True)
class Batch:
    """
    The changes of one micro-batch, of any partitions and routes.

    Attributes:
        batch_id: For the audit only: ids begin anew with a new checkpoint.
        changes: At most one per route and key (see ``fold``).
        events: At most one per route and event id.
        floors: Below them their routes have no rows: what is stored there goes first,
            and what comes later from below is refused as stale, for good.
    """

    batch_id: int
    changes: tuple[Change, ...] = ()
    events: tuple[EventRow, ...] = ()
    floors: tuple[Floor, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """
    What became of everything applied since the last flush; all of it is durable.

    Attributes:
        applied: Changes written and events appended.
        stale: Changes and events that the target already had, or had newer.
        refused: Changes that cannot be applied, each with its reason: the caller sets
            them aside before it moves on.
    """

    applied: int = 0
    stale: int = 0
    refused: tuple[Refusal, ...] = ()


class Sink(Protocol):
    """
    One target.

    Call order: ``open``, then any number of ``apply`` and ``flush``, then ``close``.
    After a failure of ``apply`` or ``flush`` the same batch is applied again, to the
    same sink or to a new one: both must end equal.
    """

    def open(self) -> None:
        """
        Create what is missing and check what is there; safe to repeat.

        Raises:
            UnavailableError: The target cannot be reached now.
            HaltError: The target is set up in a way that would lose changes.
        """

    def apply(self, batch: Batch) -> None:
        """
        Take the batch's changes.

        Raises:
            BusyError: The target asks for a pause; nothing is lost by trying again.
            UnavailableError: The target cannot be reached; nothing is lost by trying
                again.
        """

    def flush(self) -> Checkpoint:
        """
        Return when everything applied is durable.

        Raises:
            UnavailableError: It is not known to be durable: apply it again.
        """

    def close(self) -> None:
        """Let go of connections. Never flushes, never raises."""


class StoredRow(NamedTuple):
    """
    What a target holds of one key.

    Attributes:
        key: The key as one text (see ``key_text``).
        fields: Columns as the target gives them back, without the sink's own; a
            column that is null may be absent. Of a deleted row, nothing counts.
        position: The position that the target compares.
        is_deleted: Whether this is a tombstone.
    """

    key: str
    fields: Row
    position: str
    is_deleted: bool


class SinkReader(Protocol):
    """What a target holds, tombstones included, for whoever verifies it."""

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Go through all keys of a route once, in any order.

        Raises:
            UnavailableError: The target cannot be reached.
        """

    def close(self) -> None:
        """Let go of connections; never raises."""


class RelationSource(Protocol):
    """The shapes of tables, as the relay announced them."""

    def shape(self, topic: str) -> RelationShape:
        """
        Return the newest known shape of the table that a topic carries.

        Raises:
            UnavailableError: The relay has not announced it yet.
        """

    def refresh(self) -> None:
        """
        Read what was announced since; call it when a row does not fit its shape.

        Raises:
            UnavailableError: The broker cannot be reached now.
        """


class Cluster(Protocol):
    """What is on the broker, as far as the jobs must know it themselves."""

    def names(self) -> list[str]:
        """
        List every topic.

        Raises:
            UnavailableError: The broker does not answer.
        """

    def end_offsets(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """
        Return, per topic and partition (as text), the offset of the next record.

        A topic that does not exist is left out.

        Raises:
            UnavailableError: The broker does not answer.
        """


class DeadLetters(Protocol):
    """Where records go that cannot be applied."""

    def put(self, records: Iterable[tuple[Record, str]]) -> int:
        """
        Set records aside, each with its reason; return how many, when durable.

        Raises:
            UnavailableError: Not all of them are known to be durable.
        """


class SqlSession(Protocol):
    """SQL on the engine that writes the warehouse."""

    def sql(self, text: str) -> pa.Table:
        """Run one statement and return its rows."""

    def register(self, name: str, table: pa.Table) -> None:
        """Make a table known to later statements under ``name``, in this session."""
