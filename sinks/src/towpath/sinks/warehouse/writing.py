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
from towpath.sinks.warehouse.opening import Commit, adds_no_key, newest
from towpath.sinks.warehouse.rows import slices
from towpath.sinks.warehouse.tables import LakeName, LakeTable
from towpath.sinks.warehouse.upkeep import Upkeep

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
