"""
Writing rows into one table: an append if all keys are new, else a guarded merge.

A table without rows has none that are newer than ours. From its first row on, all of
its keys are known as long as only this process has written to it and they fit into
memory; new keys are appended without a search. An append commits on top of our own last
commit or fails, so it never ignores another writer; after a failure the table is
inspected. A failed statement may have committed, so after any failure the known state
is dropped.

Rows that are not all new take one statement, or several of bounded size with different
keys. They write to a branch of this writer that begins at the known commit; the main
branch moves there at the end, in one step, and only if no other writer has moved it.

``LakeAppender`` appends without Spark, which would convert each row twice: it writes
files directly from Arrow, then one commit. If that fails, no file is deleted, because a
commit that was reported as failed may have succeeded; upkeep removes files that no
version refers to.

A partial change whose row is absent or deleted is refused, and its row is refetched.
Reading before writing is safe, because there is one writer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)

from towpath.schemas.failure import TowpathError
from towpath.settings import Sink, WarehouseOptions
from towpath.sinks.change import Change, Refusal
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import SqlSession
from towpath.sinks.targets.warehouse.client import open_catalog
from towpath.sinks.targets.warehouse.opening import Commit, adds_no_key, newest
from towpath.sinks.targets.warehouse.rows import EncodedChanges, encode_keys, slices
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
from towpath.sinks.targets.warehouse.upkeep import TableUpkeep, UpkeepTask, statements

# Chunks are merged beyond this number, because each is searched separately.
_MAX_CHUNKS = 64


def key_hashes(table: LakeTable, rows: pa.Table) -> pa.Array:
    """
    Return the hashes of the rows' keys; they are valid in this process only.

    Values are hashed as the table stores them: two texts may be the same number there.
    An integer is its own hash.
    """
    first = rows.column(table.key[0])
    if len(table.key) == 1 and pa.types.is_integer(first.type):
        return first.cast(pa.int64()).combine_chunks()
    columns = [rows.column(name).to_pylist() for name in table.key]
    return pa.array([hash(key) for key in zip(*columns, strict=True)], pa.int64())


class KnownKeys:
    """
    The hashes of all keys of one table, from its first row on; eight bytes each.

    A key that is missing here is missing in the table, as long as every written row was
    learned. Two keys with the same hash cost an unnecessary search.
    """

    def __init__(self, limit: int) -> None:
        """Start with an empty table, and keep at most ``limit`` keys."""
        self._limit = limit
        self._hashes: pa.ChunkedArray = pa.chunked_array([], pa.int64())

    def new_of(self, hashes: pa.Array) -> pa.Array:
        """Return the hashes that are not known."""
        # The batch is the smaller side: it is put into a hash table.
        known = self._hashes
        found = known.filter(pc.is_in(known, value_set=hashes)).combine_chunks()
        return hashes.filter(pc.invert(pc.is_in(hashes, value_set=found)))

    def learn(self, new: pa.Array) -> bool:
        """Add new keys; return whether all of them fit."""
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
        """Write rows on top of a commit; return the new one, ``None`` on failure."""


class Engines(NamedTuple):
    """
    The two writers of a warehouse.

    Attributes:
        session: Merges rows that may not be new; creates and maintains the tables.
        appender: Appends new rows.
    """

    session: SqlSession
    appender: Appender


@dataclass(frozen=True, slots=True)
class TableRows:
    """
    Rows for one table.

    Attributes:
        table: The table.
        rows: The rows, each key once.
        guarded: Returns the statement that merges a slice of them.
    """

    table: LakeTable
    rows: pa.Table
    guarded: Callable[[pa.Table], str]


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
    """A writer of the tables of one warehouse."""

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
        self._upkeep.record_commit(name, commit.summary)
        fits = keys is not None and new is not None and keys.learn(new)
        self._states[name] = _KnownTable(commit, keys if fits else None)
        return written

    def write_views(self, name: LakeName, merges: Iterable[str]) -> int:
        """
        Merge rows that the engine has; return how many were written.

        Args:
            name: The table.
            merges: The guarded statements; when one is taken, its view is registered.
        """
        before, _ = self._confirm(name, self._take(name))
        commit, written = self._merge(name, before, merges)
        self._upkeep.record_commit(name, commit.summary)
        # Their keys are not learned: the rows never come to this process.
        self._states[name] = _KnownTable(commit, None)
        return written

    def _statements(self, rows: TableRows) -> Iterator[str]:
        """Yield statements of bounded size, each with its rows registered."""
        for part in slices(rows.rows, self._options.statement_bytes):
            self._session.register(BATCH, part)
            yield rows.guarded(part)

    def _merge(
        self, name: LakeName, before: Commit, merges: Iterable[str]
    ) -> tuple[Commit, int]:
        """Merge on top of a commit; return the new one and the count of rows."""
        session = self._session
        session.sql(branch_off(name, self.branch, before.snapshot_id))
        commit, written = before, 0
        for statement in merges:
            session.sql(statement)
            after = newest(session, name, self.branch)
            if after is not None and after.snapshot_id != commit.snapshot_id:
                commit, written = after, written + after.added_rows
        if commit.snapshot_id != before.snapshot_id:
            session.sql(fast_forward(name, self.branch))
        return commit, written

    def open_table(self, name: LakeName, *, is_new: bool) -> None:
        """Start with a table that has just been opened."""
        self.forget(name)
        if is_new:
            self._states[name] = _KnownTable(None, self._no_keys())

    def forget(self, name: LakeName) -> None:
        """Inspect the table again before the next write."""
        self._states.pop(name, None)

    def advance(self, name: LakeName, commit: Commit) -> None:
        """Adopt a newer commit, if no commit since ours has added a key."""
        state = self._states.pop(name, None)
        if state is None:
            return
        if state.keys is None or adds_no_key(self._session, name, state.commit, commit):
            self._states[name] = state._replace(commit=commit)

    def _take(self, name: LakeName) -> _KnownTable:
        """Return the state of a table that is written now."""
        # Dropped meanwhile: after a failure the table is inspected again.
        return self._states.pop(name, None) or self._inspect(name)

    def _inspect(self, name: LakeName) -> _KnownTable:
        """Return the state of an unknown table: without rows it has no keys."""
        found = newest(self._session, name)
        is_empty = found is None or found.is_empty
        return _KnownTable(found, self._no_keys() if is_empty else None)

    def _confirm(
        self, name: LakeName, state: _KnownTable
    ) -> tuple[Commit, KnownKeys | None]:
        """
        Return the commit to write on, and all keys of the table, if they are known.

        The keys are unknown if another writer has written to the table.
        """
        found = state.commit if state.keys is None else newest(self._session, name)
        keys = state.keys if state.is_at(found) else None
        if found is None:
            found = self._make_first_commit(name)
            # Another writer may have committed before it.
            keys = keys if found.is_empty else None
        return found, keys

    def _no_keys(self) -> KnownKeys:
        return KnownKeys(self._options.known_keys)

    def _make_first_commit(self, name: LakeName) -> Commit:
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
    """Appends to the tables of one warehouse, without Spark."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._logged: set[tuple[LakeName, str]] = set()

    def append(
        self, table: LakeTable, rows: pa.Table, on: Commit | None
    ) -> Commit | None:
        """
        Write rows on top of a commit; return the new one, ``None`` on failure.

        It fails if the table is at another commit. After any failure the engine may
        merge the rows instead: it finds these rows if they were committed after all,
        and they cannot be committed after its own commit.

        Args:
            table: The table; readers see all rows at once.
            rows: Its columns, and maybe others, which are left out.
            on: The table's newest known commit; ``None`` if it has none.

        Raises:
            TargetUnavailableError: Another writer has committed meanwhile.
        """
        try:
            # Opened for each append: batches are seconds apart, and an open catalog
            # grows stale.
            with closing(open_catalog(self._sink)) as catalog:
                stored = catalog.load_table(tuple(table.name))
                parent_id = None if on is None else on.snapshot_id
                rows = rows.select(table.schema.names)
                return _append(catalog, stored, rows, parent_id)
        except CommitFailedException as error:
            message = f"another writer has written to {table.name.sql} meanwhile"
            raise TargetUnavailableError(message) from error
        except Exception as error:  # noqa: BLE001 - the engine reports it better
            self._log_once(table.name, f"{type(error).__name__}: {error}")
            return None

    def _log_once(self, name: LakeName, why: str) -> None:
        """Log once per table and reason that Spark writes the rows instead."""
        if (name, why) not in self._logged:
            self._logged.add((name, why))
            _log.warning(
                "warehouse append failed: Spark writes the rows instead",
                table=name.sql,
                why=why,
            )


def _append(
    catalog: Catalog, stored: Table, rows: pa.Table, parent_id: int | None
) -> Commit | None:
    if stored.metadata.current_snapshot_id != parent_id:
        return None
    staged = stored.transaction()
    staged.append(rows)
    # Our own commit: a server returns the current state of the table.
    made = staged.table_metadata.current_snapshot()
    if made is None or made.summary is None:
        return None
    # The transaction's own commit retries on top of commits of other writers, and
    # deletes the files of a commit that a server reports as failed.
    required = (
        AssertTableUUID(uuid=stored.metadata.table_uuid),
        AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": parent_id}
        ),
    )
    changed = (
        AddSnapshotUpdate(snapshot=made),
        SetSnapshotRefUpdate.model_validate(
            {
                "ref-name": MAIN_BRANCH,
                "type": SnapshotRefType.BRANCH,
                "snapshot-id": made.snapshot_id,
            }
        ),
    )
    catalog.commit_table(stored, required, changed)
    return Commit(made.snapshot_id, dict(made.summary.additional_properties))


_KEYS: Final = "towpath_keys"


def without_absent(
    session: SqlSession, table: LakeTable, encoded: EncodedChanges
) -> EncodedChanges:
    """Refuse the partial changes of a batch whose row the table does not have."""
    partial = [n for n, change in enumerate(encoded.changes) if change.unchanged]
    if not partial:
        return encoded
    keys = encode_keys(table, [encoded.changes[n] for n in partial])
    session.register(_KEYS, keys)
    found = session.sql(stored_positions(table, _KEYS)).to_pylist()
    stored = {partial[row[ROW_NUMBER]]: row for row in found}
    absent = {n for n in partial if _is_absent(stored.get(n), encoded.changes[n])}
    if not absent:
        return encoded
    places = range(len(encoded.changes))
    return encoded._replace(
        rows=encoded.rows.filter(
            pa.array([n not in absent for n in places], pa.bool_())
        ),
        changes=tuple(encoded.changes[n] for n in places if n not in absent),
        refused=(
            *encoded.refused,
            *(
                Refusal(encoded.changes[n], ABSENT_ROW, asks=True)
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


def run_upkeep(session: SqlSession, upkeep: TableUpkeep, writer: TableWriter) -> None:
    """Run the upkeep of the table that needs it most; its failure fails no batch."""
    task = upkeep.due()
    if task is None:
        return
    try:
        for statement in (drop_branch(task.name, writer.branch), *statements(task)):
            session.sql(statement)
        _finish(session, task, upkeep, writer)
    except TowpathError as error:
        # The rows are safe without it.
        _log.warning(
            "warehouse upkeep failed: it is due again when the table has grown",
            table=task.name.table,
            error=str(error),
            remedy=error.remedy,
        )
        writer.forget(task.name)
        upkeep.postpone(task)


def _finish(
    session: SqlSession, task: UpkeepTask, upkeep: TableUpkeep, writer: TableWriter
) -> None:
    commit = newest(session, task.name)
    if commit is not None:
        writer.advance(task.name, commit)
    upkeep.done(task, {} if commit is None else commit.summary)
    _log.info("warehouse table compacted", table=task.name.table)
