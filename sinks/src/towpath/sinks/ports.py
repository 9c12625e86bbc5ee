"""
The ports between the engine and its targets.

A sink has four methods and knows nothing of Spark. ``apply`` may mean *accepted*; only
``flush`` means *durable*, and only its result moves a checkpoint. After any
duplication, reordering, replay or split of batches, a sink equals the fold of its
changes in position order: it refuses changes older than its rows, and remembers
deletes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from towpath.sinks.change import Change, EventRow, Floor, Origin, Refusal, Row, Value
from towpath.sinks.changes.columns import Columns
from towpath.sinks.changes.relations import RelationShape


@dataclass(frozen=True, slots=True)
class Batch:
    """
    The changes of one micro-batch, from any partitions and routes.

    Attributes:
        batch_id: The same when the engine repeats the batch; a new checkpoint begins
            again at 0.
        changes: At most one per route and key (see ``fold``).
        events: At most one per route and event id.
        floors: Positions below which routes have no rows: stored rows below them are
            deleted first, and later changes below them are refused as stale, for good.
        safe: No change below this position can be delivered again, so tombstones below
            it may be dropped. Given from time to time; ``None`` if it is unchanged.
    """

    batch_id: int
    changes: tuple[Change, ...] = ()
    events: tuple[EventRow, ...] = ()
    floors: tuple[Floor, ...] = ()
    safe: str | None = None

    @property
    def is_replay(self) -> bool:
        """Whether it is a replay of dead letters; its id is negative."""
        return self.batch_id < 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """
    The outcome of everything applied since the last flush; all of it is durable.

    Attributes:
        applied: Changes written and events appended.
        stale: Changes and events that the target already had, or that were older than
            its rows.
        refused: Changes that cannot be applied, each with its reason; the caller stores
            them as dead letters before the next batch.
        refused_events: The reason for each event that cannot be appended, by the origin
            of its record.
        nulled: Values that were made null because the target cannot represent them.
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
    same sink or a new one: both must end in the same state.
    """

    def open(self) -> None:
        """
        Create what is missing and check what exists; safe to repeat.

        Raises:
            UnavailableError: The target cannot be reached now.
            HaltError: The target is set up in a way that would lose changes.
        """

    def apply(self, batch: Batch) -> None:
        """
        Accept the changes of a batch.

        Raises:
            BusyError: The target asks for a pause; a retry loses nothing.
            UnavailableError: The target cannot be reached; a retry loses nothing.
            BatchRefusedError: The target refuses the call without naming a change.
            HaltError: Continuing would lose changes.
        """

    def flush(self) -> Checkpoint:
        """
        Return once everything applied is durable.

        Raises:
            UnavailableError: The changes may not be durable: apply the batch again.
            BatchRefusedError: The target refuses a call without naming a change.
            HaltError: Continuing would lose changes.
        """

    def close(self) -> None:
        """Release connections. Never flushes, never raises."""


@runtime_checkable
class SupportsUpkeep(Protocol):
    """A sink that maintains its target between batches."""

    def maintain(self) -> None:
        """
        Check that the target is unchanged, and request the rows that it lost.

        Called from time to time after ``open``, by another thread, never while another
        method is running.

        Raises:
            BusyError: The target asks for a pause.
            UnavailableError: The target cannot be reached now.
            HaltError: The target is set up in a way that would lose changes.
        """


@runtime_checkable
class Columnar(Protocol):
    """A sink that can also write rows as columns, which is many times faster."""

    def apply_columns(self, columns: Columns) -> pa.Array | None:
        """
        Accept plain records of one route as columns, as ``apply`` accepts changes.

        A key may occur several times. ``apply`` gets the other records of the batch.

        Returns:
            The indices of the records that were accepted; ``None`` if none were.

        Raises:
            BusyError: The target asks for a pause; a retry loses nothing.
            UnavailableError: The target cannot be reached; a retry loses nothing.
            HaltError: Continuing would lose changes.
        """


@runtime_checkable
class KeepsEventOrder(Protocol):
    """
    A sink that delivers the events of an aggregate in order.

    Events behind a dead letter of their aggregate are parked, as changes of a row are.

    Attributes:
        keeps_event_order: Always true.
    """

    keeps_event_order: bool


class StoredRow(NamedTuple):
    """
    A target's row for one key.

    Attributes:
        key: The key as one string (see ``key_text``).
        fields: Columns as the target returns them, without the sink's own; a null
            column may be absent. Irrelevant for a deleted row.
        position: The position that the target compares.
        is_deleted: Whether this is a tombstone.
    """

    key: str
    fields: Row
    position: str
    is_deleted: bool


class SinkReader(Protocol):
    """Reads a target back, tombstones included, for verification."""

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Yield the row of each key of a route once, in any order.

        Before the sink is first opened, there are none.

        Raises:
            UnavailableError: The target cannot be reached.
            HaltError: The target refuses the call, or its table is not the sink's.
        """

    def close(self) -> None:
        """Release connections; never raises."""


class RelationSource(Protocol):
    """The shapes of tables, as the relay announced them."""

    def shape(self, topic: str) -> RelationShape:
        """
        Return the newest known shape of the table that a topic carries.

        Raises:
            UnavailableError: The relay has not announced the table yet.
        """

    def refresh(self) -> None:
        """
        Read new announcements; called when a row does not fit its shape.

        Raises:
            UnavailableError: The broker cannot be reached now.
        """


class Cluster(Protocol):
    """The operations on the broker's topics that the engine needs."""

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
        Return the id that the broker gave to each topic when it was created.

        A topic that does not exist, or has no id, is left out.

        Raises:
            UnavailableError: The broker does not answer.
        """


class Repairs(Protocol):
    """
    Requests rows of one sink's routes from the source, for that sink only.

    A request is durable when the call returns. A repeated request only reads the rows
    again.
    """

    def request_keys(self, route: str, keys: Iterable[tuple[Value, ...]]) -> bool:
        """
        Request the rows of these keys; deletes are delivered for absent rows.

        Returns:
            Whether the rows can be requested; those of an event log cannot.

        Raises:
            UnavailableError: The request is not known to be durable.
        """

    def request_columns(
        self, route: str, columns: Sequence[str], why: str
    ) -> str | None:
        """
        Request the rows with a value in these source columns; return the snapshot's id.

        Raises:
            UnavailableError: The request is not known to be durable.
        """

    def request_all(self, route: str, why: str) -> bool:
        """
        Request all rows of a route, with a sweep; return whether that is possible.

        Raises:
            UnavailableError: The request is not known to be durable.
        """


class Commit(NamedTuple):
    """One commit of a warehouse's table, with the engine's summary."""

    snapshot_id: int
    summary: Mapping[str, str]

    @property
    def added_rows(self) -> int:
        """The number of rows written: new rows, and new versions of old rows."""
        return int(self.summary.get("added-records", 0))

    @property
    def is_empty(self) -> bool:
        """Whether the table has no rows at all, not even replaced ones."""
        return self.summary.get("total-records") == "0"


class SqlSession(Protocol):
    """SQL on the engine that writes to the warehouse."""

    def sql(self, text: str) -> pa.Table:
        """
        Run one statement and return its rows.

        Raises:
            StatementRefusedError: The engine refuses the statement.
            BatchRefusedError: The engine refuses the value of a row.
            TargetUnavailableError: The engine could not run the statement.
        """

    def register(self, name: str, table: pa.Table) -> None:
        """
        Register a table under ``name`` for later statements of this session.

        Raises:
            TargetUnavailableError: The engine could not accept the table.
        """


class LakeSession(SqlSession, Protocol):
    """
    The engine that writes to the warehouse: SQL, and calls on the commits of a table.

    Each call does what a statement could do, but plans no query and runs no job: it
    takes milliseconds instead of a tenth of a second. ``table`` is the table's name as
    in a statement. All calls raise the errors of ``sql``.
    """

    def newest_commit(self, table: str, branch: str) -> Commit | None:
        """Return a branch's newest commit; ``None`` if there is no such branch."""

    def start_branch(self, table: str, branch: str, snapshot_id: int) -> None:
        """
        Start a branch at a commit, or move it there.

        A branch left by a dead process expires with old versions, once it is a day old.
        """

    def fast_forward(self, table: str, branch: str) -> None:
        """Move main to a branch, if the branch is a continuation of main."""

    def expire_snapshots(self, table: str) -> None:
        """Delete versions that the table's properties let expire, and their files."""


@runtime_checkable
class Erasing(Protocol):
    """
    A sink that can delete single keys from its target, at any position.

    ``towpath verify --repair --erase`` requests this through the dead-letter topic.
    """

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Delete the rows of some keys durably, and keep no tombstones for them.

        Args:
            route: The route of the keys.
            keys: The keys as ``StoredRow`` has them.

        Raises:
            BusyError: The target asks for a pause.
            UnavailableError: The target cannot be reached; the call is safe to repeat.
            HaltError: The target refuses the call.
        """
