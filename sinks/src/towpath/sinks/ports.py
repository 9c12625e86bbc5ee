"""
What the jobs need of a target, and what targets need of the world.

A sink has four verbs and knows nothing of Spark. ``apply`` may mean *accepted*; only
``flush`` means *durable*, and only what it returned moves a checkpoint. Any duplicate,
reordering, replay or split of batches leaves a sink equal to the fold of its changes in
position order: it refuses what is older than what it has, and remembers deletes.

A sink's verb beside the others: single keys are taken out of its target.

``towpath verify --repair --erase`` asks for it, by an order in the dead-letter topic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from towpath.sinks.change import Change, EventRow, Floor, Origin, Refusal, Row, Value
from towpath.sinks.changes.columns import Columns, EncodedColumns
from towpath.sinks.changes.relations import RelationShape


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
        safe: Nothing below this position can be delivered again, so tombstones below
            it may be forgotten. Told now and then; ``None``: nothing new.
    """

    batch_id: int
    changes: tuple[Change, ...] = ()
    events: tuple[EventRow, ...] = ()
    floors: tuple[Floor, ...] = ()
    safe: str | None = None

    @property
    def is_replay(self) -> bool:
        """Whether it is a replay of what was set aside; its id is below zero."""
        return self.batch_id < 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """
    What became of everything applied since the last flush; all of it is durable.

    Attributes:
        applied: Changes written and events appended.
        stale: Changes and events that the target already had, or had newer.
        refused: Changes that cannot be applied, each with its reason: the caller sets
            them aside before it moves on.
        refused_events: Events that cannot be appended, by their record, with the
            reason; likewise.
        nulled: Values that were made null because the target has no room for them.
    """

    applied: int = 0
    stale: int = 0
    refused: tuple[Refusal, ...] = ()
    refused_events: Mapping[Origin, str] = field(default_factory=dict)
    nulled: int = 0


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


@runtime_checkable
class SupportsUpkeep(Protocol):
    """A sink that looks after itself while no batch comes; most have no need to."""

    def maintain(self) -> None:
        """
        Look whether the target is as it was left, and have what it lost read anew.

        Called now and then after ``open``, never beside another verb, though by
        another thread.

        Raises:
            BusyError: The target asks for a pause.
            UnavailableError: The target cannot be reached now.
            HaltError: The target is set up in a way that would lose changes.
        """


@runtime_checkable
class Pipelined(Protocol):
    """A sink whose target works while the next changes are decoded; most wait."""

    def send(self, batch: Batch) -> None:
        """
        Send a batch's changes on their way, as ``apply`` does, but do not wait.

        What becomes of them is counted, and durable, with the next ``flush``. What was
        sent before arrives before.

        Raises:
            BusyError: The target asks for a pause; nothing is lost by trying again.
            UnavailableError: The target cannot be reached; nothing is lost by trying
                again.
        """

    def send_columns(self, columns: Columns) -> pa.Array | None:
        """
        Send what it can of plain records on its way, likewise.

        The rest comes by ``send`` then.

        Returns:
            Where the records stand that are taken; ``None`` if none are.

        Raises:
            BusyError: The target asks for a pause; nothing is lost by trying again.
            UnavailableError: The target cannot be reached; nothing is lost by trying
                again.
        """


@runtime_checkable
class Columnar(Protocol):
    """A sink that also takes rows as columns, many times as fast; most cannot."""

    def encode_columns(self, columns: Columns) -> EncodedColumns | None:
        """
        Lay out what it can of plain records; nothing is written yet.

        Returns:
            The rows, likewise from one call to the next; ``None`` if there are none.

        Raises:
            UnavailableError: The target cannot be reached; nothing is lost by trying
                again.
        """

    def write_rows(self, route: str, rows: pa.Table) -> None:
        """
        Take rows that it has laid out, of each key the newest.

        The rest of their batch comes by ``apply`` then. Counted and durable with the
        next ``flush``.

        Raises:
            BusyError: The target asks for a pause; nothing is lost by trying again.
            UnavailableError: The target cannot be reached; nothing is lost by trying
                again.
            BatchRefusedError: It refuses a row and does not say which: none are taken.
        """


@runtime_checkable
class KeepsEventOrder(Protocol):
    """
    A sink that tells the events of an aggregate in their order; most keep a log.

    Events behind one that was set aside wait for it then, as the changes of a row do.

    Attributes:
        tells_in_order: That it does.
    """

    keeps_event_order: bool


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
        Go through all keys of a route once, in any order; none before it was opened.

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

    def first_offsets(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """
        Return, per topic and partition (as text), the offset of the first record.

        A topic that does not exist is left out.

        Raises:
            UnavailableError: The broker does not answer.
        """

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """
        Return the id that the broker gave to each topic when it was made.

        A topic that does not exist, or has no id, is left out.

        Raises:
            UnavailableError: The broker does not answer.
        """


class Repairs(Protocol):
    """
    Has rows of one sink's routes read anew, for that sink only.

    Asking is durable when the call returns. Asking twice reads twice, and harms nobody.
    """

    def request_keys(self, route: str, keys: Iterable[tuple[Value, ...]]) -> bool:
        """
        Have the rows of these keys read, and deletes told for those that are gone.

        Returns whether they can be asked for; not so of an event log.

        Raises:
            UnavailableError: It is not known to be asked for.
        """

    def request_columns(
        self, route: str, columns: Sequence[str], why: str
    ) -> str | None:
        """
        Have rows read with a value in these columns of the source; return the id.

        Raises:
            UnavailableError: It is not known to be asked for.
        """

    def request_all(self, route: str, why: str) -> bool:
        """
        Have all rows of a route read, with a sweep; tell whether that can be asked for.

        Raises:
            UnavailableError: It is not known to be asked for.
        """


class SqlSession(Protocol):
    """SQL on the engine that writes the warehouse."""

    def sql(self, text: str) -> pa.Table:
        """Run one statement and return its rows."""

    def register(self, name: str, table: pa.Table) -> None:
        """Make a table known to later statements under ``name``, in this session."""


@runtime_checkable
class Erasing(Protocol):
    """A sink that can take single keys out of its target, whatever their position."""

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Take every row of some keys away, durably; what is read of them later counts.

        Args:
            route: Whose they are.
            keys: As ``StoredRow`` has them.

        Raises:
            BusyError: The target asks for a pause.
            UnavailableError: The target cannot be reached; it is safe to repeat.
        """
