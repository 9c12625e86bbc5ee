"""
Write rows into one table: append them if all keys are new, else merge them, guarded.

A table without rows has none that are newer than ours. From its first row on, all of
its keys are known as long as only this process has written to it and they fit into
memory; new keys are appended without a search. An append commits on top of our own last
commit or fails, so it never ignores another writer; after a failure the table is
inspected. A failed statement may have committed, so after any failure the known state
is dropped.

If some keys are not new, the rows are merged by one statement, or by several of bounded
size with different keys. The statements write to this writer's branch, which begins at
the known commit; the main branch is fast-forwarded to this branch at the end, in one
step, and only if no other writer has moved it.

Rows that tasks have encoded are split: tasks append the rows of new keys; other rows,
if any, are merged on the same branch (see ``EncodedTable``).

A partial change whose row is absent or deleted is refused, and its row is refetched.
Reading the stored rows before the write is safe, because there is one writer.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.table.refs import MAIN_BRANCH

from towpath.schemas.failure import TowpathError
from towpath.settings import WarehouseOptions
from towpath.sinks.change import Change, Refusal
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Commit, LakeSession, SqlSession
from towpath.sinks.targets.warehouse.append import WriteFiles, WrittenFiles
from towpath.sinks.targets.warehouse.opening import adds_no_key
from towpath.sinks.targets.warehouse.rows import (
    EncodedChanges,
    encode_keys,
    key_hashes,
    slices,
)
from towpath.sinks.targets.warehouse.schema import (
    IS_DELETED,
    POSITION,
    ROW_NUMBER,
    LakeName,
    LakeTable,
)
from towpath.sinks.targets.warehouse.statements import (
    drop_branch,
    first_commit,
    stored_positions,
)
from towpath.sinks.targets.warehouse.upkeep import (
    TableUpkeep,
    UpkeepTask,
    orphan_removal,
    rewrites,
)

# More chunks than this are joined into one, because each is searched separately.
_MAX_CHUNKS = 64


class KnownKeys:
    """
    The hashes of all keys of one table, from its first row on; eight bytes each.

    A key that is missing here is missing in the table, as long as the keys of all
    written rows were learned. Two keys with the same hash cost an unnecessary search.
    """

    def __init__(self, limit: int) -> None:
        """Start without keys, and keep at most ``limit`` of them."""
        self._limit = limit
        self._hashes: pa.ChunkedArray = pa.chunked_array([], pa.int64())

    def new_of(self, hashes: pa.Array) -> pa.Array:
        """Return the hashes that are not known."""
        # The batch, which is the smaller side, is put into a hash table.
        known = self._hashes
        found = known.filter(pc.is_in(known, value_set=hashes)).combine_chunks()
        return hashes.filter(pc.invert(pc.is_in(hashes, value_set=found)))

    def learn(self, new: pa.Array) -> bool:
        """Add new keys if all of them fit; return whether they do."""
        if len(self._hashes) + len(new) > self._limit:
            return False
        chunks = [*self._hashes.chunks, new]
        if len(chunks) > _MAX_CHUNKS:
            chunks = [pa.concat_arrays(chunks)]
        self._hashes = pa.chunked_array(chunks, pa.int64())
        return True


BATCH: Final = "towpath_batch"


class Appender(Protocol):
    """Appends rows to tables (see ``LakeAppender``)."""

    def append(
        self, table: LakeTable, rows: pa.Table, on: Commit | None
    ) -> Commit | None:
        """Write rows on top of a commit; return the new one, or ``None`` on failure."""

    def append_files(
        self,
        table: LakeTable,
        write: WriteFiles,
        on: Commit | None,
        branch: str = MAIN_BRANCH,
    ) -> Commit | None:
        """Commit files that tasks write; return the same as ``append``."""


class Engines(NamedTuple):
    """
    The two engines that write to a warehouse.

    Attributes:
        session: Merges rows that may not be new; creates and maintains the tables.
        appender: Appends new rows.
    """

    session: LakeSession
    appender: Appender


@dataclass(frozen=True, slots=True)
class TableRows:
    """
    Rows for one table.

    Attributes:
        table: The table.
        rows: The rows, each key once.
        guarded: Returns the statement that merges a slice of the rows.
    """

    table: LakeTable
    rows: pa.Table
    guarded: Callable[[pa.Table], str]


class TaskRows(Protocol):
    """Rows of one table that tasks have encoded (see ``EncodedTable``)."""

    @property
    def table(self) -> LakeTable:
        """The table."""

    @property
    def hashes(self) -> pa.Array:
        """The hash of each row's key."""

    def hashes_to_merge(self, hashes: pa.Array, new: pa.Array) -> pa.Array | None:
        """Return the hashes of the keys whose rows are merged; ``None`` for all."""

    def write_files(
        self, to_merge: pa.Array, write: Callable[[pa.Table], WrittenFiles]
    ) -> Iterable[WrittenFiles]:
        """Write the rows that need no merge into files, on the executors."""

    def merges(self, to_merge: pa.Array | None) -> Iterable[str]:
        """Yield the statements that merge the rows of these keys; ``None`` for all."""


class _KnownTable(NamedTuple):
    """
    The known state of a table.

    Attributes:
        commit: Its newest known commit; a table never written to has none.
        keys: All of its keys, if they are known.
    """

    commit: Commit | None
    keys: KnownKeys | None

    def is_at(self, found: Commit | None) -> bool:
        """Return whether the table's newest commit is the known one."""
        return _id_of(self.commit) == _id_of(found)


class TableWriter:
    """Writes to the tables of one warehouse."""

    def __init__(
        self,
        engines: Engines,
        options: WarehouseOptions,
        upkeep: TableUpkeep,
        branch: str,
    ) -> None:
        self.branch = branch
        self._session, self._appender = engines
        self._options = options
        self._upkeep = upkeep
        self._states: dict[LakeName, _KnownTable] = {}

    def write(self, rows: TableRows) -> int:
        """Write rows unless the table has newer ones; return how many were written."""
        name, count = rows.table.name, len(rows.rows)
        if not count:
            return 0
        state = self._take(name)
        keys = state.keys
        new = None if keys is None else keys.new_of(key_hashes(rows.table, rows.rows))
        commit, written = None, count
        if new is not None and len(new) == count:
            commit = self._appender.append(rows.table, rows.rows, state.commit)
        if commit is None:
            before, keys = self._confirm(name, state)
            commit, written = self._merge(name, before, self._statements(rows))
        self._record(name, commit, keys, new)
        return written

    def write_encoded(self, rows: TaskRows) -> int:
        """Write rows that tasks have encoded; return how many were written."""
        name, hashes = rows.table.name, rows.hashes
        if not len(hashes):
            return 0
        state = self._take(name)
        keys = state.keys
        new = None if keys is None else keys.new_of(hashes).unique()
        to_merge = None if new is None else rows.hashes_to_merge(hashes, new)
        commit, written = None, 0
        if to_merge is not None and not len(to_merge):
            files = partial(rows.write_files, to_merge)
            commit = self._appender.append_files(rows.table, files, state.commit)
            written = 0 if commit is None else commit.added_rows
        if commit is None:
            before, keys = self._confirm(name, state)
            to_merge = None if keys is None else to_merge
            commit, written = self._append_and_merge(rows, before, to_merge)
        self._record(name, commit, keys, new)
        return written

    def _record(
        self,
        name: LakeName,
        commit: Commit,
        keys: KnownKeys | None,
        new: pa.Array | None,
    ) -> None:
        """Record our commit, and the keys that it has added."""
        self._upkeep.record_commit(name, commit.summary)
        fits = keys is not None and new is not None and keys.learn(new)
        self._states[name] = _KnownTable(commit, keys if fits else None)

    def _append_and_merge(
        self, rows: TaskRows, before: Commit, to_merge: pa.Array | None
    ) -> tuple[Commit, int]:
        """
        Append the rows of new keys, if there are any, and merge the others.

        Args:
            rows: The rows.
            before: The commit to build on.
            to_merge: The hashes of the keys whose rows are merged; ``None`` or empty:
                all rows are merged.
        """
        appended = None
        if to_merge is not None and len(to_merge):
            self._session.start_branch(
                rows.table.name.sql, self.branch, before.snapshot_id
            )
            files = partial(rows.write_files, to_merge)
            appended = self._appender.append_files(
                *(rows.table, files, before, self.branch)
            )
        merges = rows.merges(None if appended is None else to_merge)
        return self._merge(rows.table.name, before, merges, appended)

    def _statements(self, rows: TableRows) -> Iterator[str]:
        """Yield statements of bounded size, each with its rows registered."""
        for part in slices(rows.rows, self._options.statement_bytes):
            self._session.register(BATCH, part)
            yield rows.guarded(part)

    def _merge(
        self,
        name: LakeName,
        before: Commit,
        merges: Iterable[str],
        appended: Commit | None = None,
    ) -> tuple[Commit, int]:
        """
        Merge on top of a commit; return the new one and the number of written rows.

        Args:
            name: The table.
            before: The commit.
            merges: The statements.
            appended: The branch's commit to merge onto; ``None`` starts the branch at
                ``before``.
        """
        session = self._session
        if appended is None:
            session.start_branch(name.sql, self.branch, before.snapshot_id)
            commit, written = before, 0
        else:
            commit, written = appended, appended.added_rows
        for statement in merges:
            session.sql(statement)
            after = session.newest_commit(name.sql, self.branch)
            if after is not None and after.snapshot_id != commit.snapshot_id:
                commit, written = after, written + after.added_rows
        if commit.snapshot_id != before.snapshot_id:
            session.fast_forward(name.sql, self.branch)
        return commit, written

    def open_table(self, name: LakeName, *, is_new: bool) -> None:
        """Forget the state of an opened table; a new table is known to have no keys."""
        self.forget(name)
        if is_new:
            self._states[name] = _KnownTable(None, self._no_keys())

    def forget(self, name: LakeName) -> None:
        """Inspect the table again before the next write."""
        self._states.pop(name, None)

    def advance(self, name: LakeName, commit: Commit) -> None:
        """Adopt a newer commit; forget a table to which keys may have been added."""
        state = self._states.pop(name, None)
        if state is None:
            return
        if state.keys is None or adds_no_key(self._session, name, state.commit, commit):
            self._states[name] = state._replace(commit=commit)

    def _take(self, name: LakeName) -> _KnownTable:
        """Remove and return the state of a table that is about to be written."""
        # Dropped until the write has ended: after a failure the table is inspected.
        return self._states.pop(name, None) or self._inspect(name)

    def _inspect(self, name: LakeName) -> _KnownTable:
        """Return the state of an unknown table: without rows it has no keys."""
        found = self._newest(name)
        is_empty = found is None or found.is_empty
        return _KnownTable(found, self._no_keys() if is_empty else None)

    def _confirm(
        self, name: LakeName, state: _KnownTable
    ) -> tuple[Commit, KnownKeys | None]:
        """
        Return the commit to build on, and all keys of the table, if they are known.

        The keys are unknown if another writer has written to the table.
        """
        found = state.commit if state.keys is None else self._newest(name)
        keys = state.keys if state.is_at(found) else None
        if found is None:
            found = self._make_first_commit(name)
            # Another writer may have committed before this first commit.
            keys = keys if found.is_empty else None
        return found, keys

    def _newest(self, name: LakeName) -> Commit | None:
        """Return a table's newest commit; a table never written to has none."""
        return self._session.newest_commit(name.sql, MAIN_BRANCH)

    def _no_keys(self) -> KnownKeys:
        return KnownKeys(self._options.known_keys)

    def _make_first_commit(self, name: LakeName) -> Commit:
        """Create a table's first commit, which is empty."""
        self._session.sql(first_commit(name))
        made = self._newest(name)
        if made is None:
            message = f"{name.sql} has no commit, although one was made"
            raise TargetUnavailableError(message)
        return made


def _id_of(commit: Commit | None) -> int | None:
    return None if commit is None else commit.snapshot_id


_log = structlog.get_logger("towpath.sinks.warehouse")

_KEYS: Final = "towpath_keys"


def without_absent(
    session: SqlSession, table: LakeTable, encoded: EncodedChanges
) -> EncodedChanges:
    """Refuse partial changes whose row is absent or deleted in the table."""
    partials = [n for n, change in enumerate(encoded.changes) if change.unchanged]
    if not partials:
        return encoded
    keys = encode_keys(table, [encoded.changes[n] for n in partials])
    session.register(_KEYS, keys)
    found = session.sql(stored_positions(table, _KEYS)).to_pylist()
    stored = {partials[row[ROW_NUMBER]]: row for row in found}
    absent = {n for n in partials if _is_absent(stored.get(n), encoded.changes[n])}
    if not absent:
        return encoded
    indexes = range(len(encoded.changes))
    return encoded._replace(
        rows=encoded.rows.filter(
            pa.array([n not in absent for n in indexes], pa.bool_())
        ),
        changes=tuple(encoded.changes[n] for n in indexes if n not in absent),
        refused=(
            *encoded.refused,
            *(
                Refusal(encoded.changes[n], ABSENT_ROW, needs_refetch=True)
                for n in sorted(absent)
            ),
        ),
    )


def _is_absent(stored: dict[str, Any] | None, change: Change) -> bool:
    """Return whether there is no row to merge with; an older change is merely stale."""
    if stored is None:
        return True
    is_deleted: bool = stored[IS_DELETED]
    position: str = stored[POSITION]
    return is_deleted and position <= change.position


def run_upkeep(session: LakeSession, upkeep: TableUpkeep, writer: TableWriter) -> None:
    """Run the most urgent upkeep; log a failure, but do not raise it."""
    task = upkeep.due()
    if task is None:
        return
    try:
        for statement in (drop_branch(task.name, writer.branch), *rewrites(task)):
            session.sql(statement)
        session.expire_snapshots(task.name.sql)
        if task.orphans_before is not None:
            session.sql(orphan_removal(task.name, task.orphans_before))
        _finish(session, task, upkeep, writer)
    except TowpathError as error:
        # The rows are safe without upkeep.
        _log.warning(
            "warehouse upkeep failed: it is tried again later",
            table=task.name.table,
            error=str(error),
            remedy=error.remedy,
        )
        writer.forget(task.name)
        upkeep.postpone(task)


def _finish(
    session: LakeSession, task: UpkeepTask, upkeep: TableUpkeep, writer: TableWriter
) -> None:
    commit = session.newest_commit(task.name.sql, MAIN_BRANCH)
    if commit is not None:
        writer.advance(task.name, commit)
    upkeep.done(task, {} if commit is None else commit.summary)
    _log.info("warehouse table compacted", table=task.name.table)
