"""
Writes rows into one table: appended if none of their keys can be there, else guarded.

A table without rows holds nothing that could be newer. From then on all of
its keys are known, as long as this process alone has written to it and they find room
in memory; new keys are appended without a search. An append goes on top of our own last
commit or not at all, so whoever else has written is met there; then the table is asked.
A failed statement may have committed, so whatever fails makes all of this forgotten.

What is not all new takes one statement, or several of bounded size, each with keys of
its own. They write to a branch of this writer's own that begins at the commit that we
know; the table itself moves there at the end, all at once, and only if nobody else has
moved it.

All keys of a table, as hashes: what is not among them can be appended unseen.

Exact where it counts: a key that is missing here is missing in the table, as long as
all that was ever written to the table was learnt. Two keys that share a hash cost a
search that was not needed, and no more.

Appends rows without the engine: files written from Arrow as they are, then one commit.

To be handed to the engine, rows would be taken apart and put together again, one by
one. The commit goes on top of the one that it was told of, or fails: of two that append
the same rows one must. Nothing is taken away if it fails, because a commit that is said
to have failed may have landed; what nothing knows of goes with upkeep.

Partial changes: those that rest upon a row which only the warehouse still has.

A partial change whose row is absent or deleted is refused, and its row asked for.
Looking first and writing
then is safe, because there is one writer.

Carries out the upkeep of tables, one at a time; its failure fails no batch.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

from towpath.schemas.failure import TowpathError
from towpath.settings import Sink, WarehouseOptions
from towpath.sinks.change import Change, Refusal
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import SqlSession
from towpath.sinks.targets.warehouse.client import open_catalog
from towpath.sinks.targets.warehouse.opening import Commit, adds_no_key, newest
from towpath.sinks.targets.warehouse.rows import Laid, lay_out_keys, slices
from towpath.sinks.targets.warehouse.schema import (
    IS_DELETED,
    POSITION,
    ROW_NUMBER,
    LakeName,
    LakeTable,
)
from towpath.sinks.targets.warehouse.statements import (
    branch_off,
    drop_branch,
    fast_forward,
    first_commit,
    stored_positions,
)
from towpath.sinks.targets.warehouse.upkeep import Task, Upkeep, statements

# Chunks are put together now and then, because each is looked through on its own.
_MOST_CHUNKS = 64


def key_hashes(table: LakeTable, rows: pa.Table) -> pa.Array:
    """
    Return the hashes of the rows' keys; they are this process's own.

    Values count as the table holds them: two texts may be one number there. A whole
    number is its own.
    """
    first = rows.column(table.key[0])
    if len(table.key) == 1 and pa.types.is_integer(first.type):
        return first.cast(pa.int64()).combine_chunks()
    columns = [rows.column(name).to_pylist() for name in table.key]
    return pa.array([hash(key) for key in zip(*columns, strict=True)], pa.int64())


class KnownKeys:
    """The keys of one table, from its first row on; eight bytes each."""

    def __init__(self, limit: int) -> None:
        """Begin with an empty table, of which at most ``limit`` keys are kept."""
        self._limit = limit
        self._hashes: pa.ChunkedArray = pa.chunked_array([], pa.int64())

    def new_of(self, hashes: pa.Array) -> pa.Array:
        """Return those that are not known."""
        # The batch is the small side: it is what is put into a hash table.
        mine = self._hashes
        found = mine.filter(pc.is_in(mine, value_set=hashes)).combine_chunks()
        return hashes.filter(pc.invert(pc.is_in(hashes, value_set=found)))

    def learn(self, new: pa.Array) -> bool:
        """Take new keys; tell whether all of them found room."""
        if len(self._hashes) + len(new) > self._limit:
            return False
        chunks = [*self._hashes.chunks, new]
        if len(chunks) > _MOST_CHUNKS:
            chunks = [pa.concat_arrays(chunks)]
        self._hashes = pa.chunked_array(chunks, pa.int64())
        return True


BATCH: Final = "towpath_batch"


class Appender(Protocol):
    """Appends rows to tables (see ``appending.LakeAppender``)."""

    def append(
        self, table: LakeTable, rows: pa.Table, on: Commit | None
    ) -> Commit | None:
        """Write rows on top of a commit; return the new one, nothing if it cannot."""


class Engines(NamedTuple):
    """
    What writes a warehouse.

    Attributes:
        session: Searches, and so whatever may not be new; makes and keeps the tables.
        appender: Writes what is new.
    """

    session: SqlSession
    appender: Appender


@dataclass(frozen=True, slots=True)
class Rows:
    """
    Rows for one table.

    Attributes:
        table: Where they go.
        rows: The rows, each key once.
        guarded: Makes the statement that writes a part of them by searching.
    """

    table: LakeTable
    rows: pa.Table
    guarded: Callable[[pa.Table], str]


class _State(NamedTuple):
    """
    What is known of a table.

    Attributes:
        commit: Its newest one, as far as we know; a table never written to has none.
        keys: All that it has, if they are known.
    """

    commit: Commit | None
    keys: KnownKeys | None

    def stands_at(self, found: Commit | None) -> bool:
        """Tell whether the table is as we know it."""
        return _id_of(self.commit) == _id_of(found)


class Writer:
    """Writes the tables of one warehouse."""

    def __init__(
        self,
        engines: Engines,
        options: WarehouseOptions,
        upkeep: Upkeep,
        branch: str,
    ) -> None:
        self.branch = branch
        self._session, self._appender = engines
        self._options = options
        self._upkeep = upkeep
        self._states: dict[LakeName, _State] = {}

    def write(self, rows: Rows) -> int:
        """Write rows unless the table has newer ones; return how many were written."""
        name, count = rows.table.name, len(rows.rows)
        if not count:
            return 0
        # Forgotten while it is written: if that fails, the table is asked again.
        state = self._states.pop(name, None) or self._ask(name)
        keys = state.keys
        new = None if keys is None else keys.new_of(key_hashes(rows.table, rows.rows))
        commit, written = None, count
        if new is not None and len(new) == count:
            commit = self._appender.append(rows.table, rows.rows, state.commit)
        if commit is None:
            before, keys = self._ask_again(name, state)
            commit, written = self._merge(rows, before)
        self._upkeep.note(name, commit.summary)
        fits = keys is not None and new is not None and keys.learn(new)
        self._states[name] = _State(commit, keys if fits else None)
        return written

    def _merge(self, rows: Rows, before: Commit) -> tuple[Commit, int]:
        """Write on top of a commit; return the new one, and how many were written."""
        name, session = rows.table.name, self._session
        session.sql(branch_off(name, self.branch, before.snapshot_id))
        commit, written = before, 0
        for part in slices(rows.rows, self._options.statement_bytes):
            session.register(BATCH, part)
            session.sql(rows.guarded(part))
            after = newest(session, name, self.branch)
            if after is not None and after.snapshot_id != commit.snapshot_id:
                commit, written = after, written + after.added_rows
        if commit.snapshot_id != before.snapshot_id:
            session.sql(fast_forward(name, self.branch))
        return commit, written

    def begin(self, name: LakeName, *, is_new: bool) -> None:
        """Begin with a table that was opened just now."""
        self.forget(name)
        if is_new:
            self._states[name] = _State(None, self._no_keys())

    def forget(self, name: LakeName) -> None:
        """Ask the table again before the next write."""
        self._states.pop(name, None)

    def carry_over(self, name: LakeName, commit: Commit) -> None:
        """Go on from a newer commit, if nothing since ours has added a key."""
        state = self._states.pop(name, None)
        if state is None:
            return
        if state.keys is None or adds_no_key(self._session, name, state.commit, commit):
            self._states[name] = state._replace(commit=commit)

    def _ask(self, name: LakeName) -> _State:
        """Look at a table of which nothing is known: without rows it has no keys."""
        found = newest(self._session, name)
        is_empty = found is None or found.is_empty
        return _State(found, self._no_keys() if is_empty else None)

    def _ask_again(
        self, name: LakeName, state: _State
    ) -> tuple[Commit, KnownKeys | None]:
        """
        Return the commit to go on top of, and all keys of the table, if they are known.

        They are not any more if somebody else has written to it.
        """
        found = state.commit if state.keys is None else newest(self._session, name)
        keys = state.keys if state.stands_at(found) else None
        if found is None:
            found = self._first(name)
            # Somebody else's may have come before it.
            keys = keys if found.is_empty else None
        return found, keys

    def _no_keys(self) -> KnownKeys:
        return KnownKeys(self._options.known_keys)

    def _first(self, name: LakeName) -> Commit:
        """Make a table's first commit."""
        self._session.sql(first_commit(name))
        made = newest(self._session, name)
        if made is None:
            message = f"{name.sql} has no commit, although one was made"
            raise TargetUnavailableError(message)
        return made


def _id_of(commit: Commit | None) -> int | None:
    return None if commit is None else commit.snapshot_id


_log = structlog.get_logger("towpath.sinks.warehouse")


class LakeAppender:
    """Appends to the tables of one warehouse."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._told: set[tuple[LakeName, str]] = set()

    def append(
        self, table: LakeTable, rows: pa.Table, on: Commit | None
    ) -> Commit | None:
        """
        Write rows on top of a commit; return the new one, or nothing if it cannot.

        It cannot if the table stands at another one. After any failure the engine may
        look for the rows and write them: it finds ours if they were committed after
        all, and nothing of ours is committed behind what it writes.

        Args:
            table: Where to; readers see all of it at once.
            rows: Its columns, and maybe others, which are left out.
            on: The table's newest commit, as far as is known; ``None``: it has none.

        Raises:
            TargetUnavailableError: Somebody else has committed meanwhile.
        """
        try:
            # Opened for each: batches are seconds apart, and what stays open grows
            # stale.
            with closing(open_catalog(self._sink)) as catalog:
                stored = catalog.load_table(tuple(table.name))
                parent_id = None if on is None else on.snapshot_id
                return _append(stored, rows.select(table.schema.names), parent_id)
        except CommitFailedException as error:
            message = f"somebody else has written to {table.name.sql} meanwhile"
            raise TargetUnavailableError(message) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine says better
            self._tell(table.name, f"{type(error).__name__}: {error}")
            return None

    def _tell(self, name: LakeName, why: str) -> None:
        """Say once that a table is left to the engine."""
        if (name, why) not in self._told:
            self._told.add((name, why))
            _log.warning("not appended: left to the engine", table=name.sql, why=why)


def _append(stored: Table, rows: pa.Table, parent_id: int | None) -> Commit | None:
    if stored.metadata.current_snapshot_id != parent_id:
        return None
    staged = stored.transaction()
    staged.append(rows)
    # Ours as we made it: a server answers with the table as it is by then.
    made = staged.table_metadata.current_snapshot()
    if made is None or made.summary is None:
        return None
    # Its own way to commit tries again on top of whatever somebody else has committed
    # meanwhile, and takes away the files of what a server says has failed.
    required = (
        AssertTableUUID(uuid=stored.metadata.table_uuid),
        AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": parent_id}
        ),
    )
    stored._do_commit(staged._updates, required)  # noqa: SLF001
    return Commit(made.snapshot_id, dict(made.summary.additional_properties))


_KEYS: Final = "towpath_keys"


def without_absent(session: SqlSession, table: LakeTable, laid: Laid) -> Laid:
    """Refuse the partial changes of a batch whose row the table does not have."""
    partial = [n for n, change in enumerate(laid.changes) if change.unchanged]
    if not partial:
        return laid
    keys = lay_out_keys(table, [laid.changes[n] for n in partial])
    session.register(_KEYS, keys)
    found = session.sql(stored_positions(table, _KEYS)).to_pylist()
    stored = {partial[row[ROW_NUMBER]]: row for row in found}
    absent = {n for n in partial if _is_absent(stored.get(n), laid.changes[n])}
    if not absent:
        return laid
    places = range(len(laid.changes))
    return laid._replace(
        rows=laid.rows.filter(pa.array([n not in absent for n in places], pa.bool_())),
        changes=tuple(laid.changes[n] for n in places if n not in absent),
        refused=(
            *laid.refused,
            *(Refusal(laid.changes[n], ABSENT_ROW, asks=True) for n in sorted(absent)),
        ),
    )


def _is_absent(stored: dict[str, Any] | None, change: Change) -> bool:
    """Tell whether there is nothing to merge with; an older change is merely stale."""
    if stored is None:
        return True
    is_deleted: bool = stored[IS_DELETED]
    position: str = stored[POSITION]
    return is_deleted and position <= change.position


def carry_out(session: SqlSession, upkeep: Upkeep, writer: Writer) -> None:
    """Do the upkeep of the table that needs it most, if any does."""
    task = upkeep.due()
    if task is None:
        return
    try:
        for statement in (drop_branch(task.name, writer.branch), *statements(task)):
            session.sql(statement)
        _settle(session, task, upkeep, writer)
    except TowpathError as error:
        # The rows are safe without it; it is due again when the table has grown.
        _log.warning(
            "upkeep failed",
            table=task.name.table,
            error=str(error),
            remedy=error.remedy,
        )
        writer.forget(task.name)
        upkeep.put_off(task)


def _settle(session: SqlSession, task: Task, upkeep: Upkeep, writer: Writer) -> None:
    commit = newest(session, task.name)
    if commit is not None:
        writer.carry_over(task.name, commit)
    upkeep.done(task, {} if commit is None else commit.summary)
    _log.info("table compacted", table=task.name.table)
