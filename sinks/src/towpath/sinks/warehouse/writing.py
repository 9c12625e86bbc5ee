"""
Writes rows into one table: appended if none of their keys can be there, else guarded.

A table without rows holds nothing that could be newer. From then on all of
its keys are known, as long as this process alone has written to it and they find room
in memory; new keys are appended without a search. Whether somebody else has written is
asked of the table before each append: its newest commit must be our last one. A failed
statement may have committed, so whatever fails makes all of this forgotten.

What is not all new takes one statement, or several of bounded size, each with keys of
its own. They write to a branch of this writer's own that begins at the commit that we
know; the table itself moves there at the end, all at once, and only if nobody else has
moved it. An append is one commit, which fails likewise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from towpath.settings import WarehouseOptions
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.ports import SqlSession
from towpath.sinks.warehouse.known import KnownKeys, key_hashes
from towpath.sinks.warehouse.merge import branch_off, fast_forward, first_commit
from towpath.sinks.warehouse.opening import Commit, newest
from towpath.sinks.warehouse.rows import slices
from towpath.sinks.warehouse.tables import LakeName, LakeTable
from towpath.sinks.warehouse.upkeep import Upkeep

BATCH: Final = "towpath_batch"


class Appender(Protocol):
    """Appends rows to tables (see ``appending.LakeAppender``)."""

    def append(self, table: LakeTable, rows: pa.Table, on: Commit) -> Commit | None:
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
    """What is known of a table after our last commit."""

    commit: Commit
    keys: KnownKeys | None


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
        before, keys = self._before(name)
        new = None if keys is None else keys.new_of(key_hashes(rows.table, rows.rows))
        commit, written = None, count
        if new is not None and len(new) == count:
            commit = self._appender.append(rows.table, rows.rows, before)
        if commit is None:
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
            if after is not None and after != commit:
                commit, written = after, written + after.added_rows
        if commit != before:
            session.sql(fast_forward(name, self.branch))
        return commit, written

    def forget(self, name: LakeName) -> None:
        """Ask the table again before the next write."""
        self._states.pop(name, None)

    def recheck(self, name: LakeName) -> None:
        """Forget a table that somebody else has written to."""
        state = self._states.get(name)
        found = None if state is None else newest(self._session, name)
        if found is None or state is None or found.snapshot_id != state.commit[0]:
            self.forget(name)

    def carry_over(self, name: LakeName, commit: Commit) -> None:
        """Take note of a commit of our own that added no key."""
        state = self._states.get(name)
        if state is not None:
            self._states[name] = state._replace(commit=commit)

    def _before(self, name: LakeName) -> tuple[Commit, KnownKeys | None]:
        """Return the newest commit, and all keys of the table, if they are known."""
        # Forgotten while statements run: if one fails, the table is asked again.
        state = self._states.pop(name, None)
        if state is not None and state.keys is None:
            return state
        found = self._newest(name)
        if found.is_empty:
            return found, KnownKeys(self._options.known_keys)
        is_ours = state is not None and state.commit.snapshot_id == found.snapshot_id
        return found, state.keys if state is not None and is_ours else None

    def _newest(self, name: LakeName) -> Commit:
        found = newest(self._session, name)
        if found is None:
            self._session.sql(first_commit(name))
            found = newest(self._session, name)
        if found is None:
            message = f"{name.sql} has no commit, although one was made"
            raise TargetUnavailableError(message)
        return found
