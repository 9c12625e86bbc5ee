"""
One view of the database for all readers of a blocking or an initial snapshot.

A session of its own holds a repeatable-read transaction open and exports its snapshot;
each reader imports it for each chunk. For an initial snapshot the name comes from the
making of the slot, and whoever lends it keeps it alive.

A view does not outlive its session, and does not show tables that were altered since:
the server reads a table's storage of now with the rows that are visible then, so that a
rewritten one looks empty. Each reader looks, with the tables locked, whether they are
what the view shows; if not, the rest is read without it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from towpath.relay.postgres.connect import Connection, failure, translated
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.chunks import quoted_text
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.schemas.failure import TowpathError, UnavailableError


class ViewLostError(UnavailableError):
    """The one view of the database is gone, or does not hold a table any more."""

    remedy = "Nothing is to be done: what is left is read chunk by chunk."


class TableAlteredError(UnavailableError):
    """A table was altered between a transaction's view of it and its lock."""

    remedy = "Nothing is to be done: the chunk is read again."


@dataclass(slots=True)
class _View:
    """
    A snapshot of the server's that was exported.

    Without a name it is gone, and stays so: another one would show another moment.
    """

    name: str | None
    holder: Connection | None = None


class FrozenViews:
    """Makes views, keeps them, and lets go of them; safe to call from any thread."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._views: dict[str, _View] = {}

    def lend(self, view: str, exported_name: str) -> None:
        """Take in a view that somebody else has made and keeps."""
        with self._lock:
            self._views[view] = _View(exported_name)

    def enter(self, connection: Connection, view: str) -> None:
        """
        Let a repeatable-read transaction, without a query yet, see the view.

        Raises:
            ViewLostError: It is gone.
            TowpathError: It could not be made.
        """
        name = self._name(view)
        try:
            connection.execute(f"set transaction snapshot {quoted_text(name)}".encode())
        except psycopg.Error as error:
            if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
                raise
            self._lose(view)
            reason = str(failure(error, "entering the snapshot's view of the database"))
            raise ViewLostError(reason) from error

    def thaw(self, view: str) -> None:
        """Let go of a view, for good. Never raises."""
        with self._lock:
            thawed = self._views.get(view)
            self._views[view] = _View(None)
        _close(thawed)

    def close(self) -> None:
        """Let go of all views. Never raises."""
        with self._lock:
            views, self._views = self._views, {}
        for each in views.values():
            _close(each)

    def _name(self, view: str) -> str:
        with self._lock:
            found = self._views.get(view)
            if found is None:
                found = self._views[view] = self._make()
        if found.name is None:
            reason = "the snapshot's view of the database is gone"
            raise ViewLostError(reason)
        return found.name

    def _make(self) -> _View:
        holder = self._connect()
        try:
            with translated("making a view of the database"):
                holder.execute(query("lift_session_limits"))
                holder.execute("begin isolation level repeatable read read only")
                row = holder.execute(query("export_snapshot")).fetchone()
        except TowpathError:
            _close(_View(None, holder))
            raise
        return _View(str(row[0]) if row else None, holder)

    def _lose(self, view: str) -> None:
        """Remember that a view is gone."""
        with self._lock:
            lost = self._views.get(view)
            if lost is not None:
                lost.name = None


def check_unaltered(connection: Connection) -> None:
    """
    Make sure that the tables locked by a transaction are those that it shows.

    A description that was written anew by a transaction that this one sees would not
    be shown any more: such a writer was rolled back. One that was rolled back since
    counts as if it had not been.

    Raises:
        TableAlteredError: One of them is not.
    """
    visible = connection.execute(query("read_visibility")).fetchone()
    snapshot = XidSnapshot.parse(str(visible[0] if visible else ""))
    for name, is_other, writers in connection.execute(query("read_altered_tables")):
        if is_other or not all(map(snapshot.sees_streamed, writers)):
            reason = f"{name} was altered after the moment that is read"
            raise TableAlteredError(reason)


def _close(view: _View | None) -> None:
    if view is not None and view.holder is not None:
        with suppress(psycopg.Error):
            view.holder.close()
