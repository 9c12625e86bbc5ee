"""
One view of the database for all readers of a blocking or an initial snapshot.

A session of its own holds a repeatable-read transaction open and exports its snapshot;
each reader imports it for each chunk. For an initial snapshot the name comes from the
making of the slot, and whoever lends it keeps it alive.

A view does not outlive its session, and does not show tables that were altered since:
the server reads a table's storage of now with the rows that are visible then, so that a
rewritten one looks empty. Each reader looks, with the tables locked, whether they are
what the view shows; if not, the rest is read without it.

A slot made together with a view of the database as of its very place in the log.

The replication protocol alone can do that. What had been committed where the slot
begins is in the view, and nothing else is; the slot streams all the rest. The view can
be read by others as long as the connection that made it is left alone, and holds dead
rows back as long: it is closed as soon as nobody reads it any more.
"""

import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg
import structlog
from psycopg import pq

from towpath.relay.errors import SourceUnavailableError
from towpath.relay.postgres.connect import (
    Connection,
    connect,
    failure,
    failure_of,
    translated_errors,
)
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.postgres.slot import exporting_command
from towpath.relay.snapshot.sql import quoted_text
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import TowpathError, UnavailableError


class ViewLostError(UnavailableError):
    """The one view of the database is gone, or does not hold a table any more."""

    remedy = "Nothing is to be done: what is left is read chunk by chunk."


class TableAlteredError(UnavailableError):
    """A table was altered between a transaction's view of it and its lock."""

    remedy = "Nothing is to be done: the chunk is read again."


@dataclass(slots=True)
class _ExportedSnapshot:
    """
    A snapshot of the server's that was exported.

    Without a name it is gone, and stays so: another one would show another moment.
    """

    name: str | None
    holder: Connection | None = None


class ExportedSnapshots:
    """Makes views, keeps them, and lets go of them; safe to call from any thread."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._views: dict[str, _ExportedSnapshot] = {}

    def lend(self, view: str, exported_name: str) -> None:
        """Take in a view that somebody else has made and keeps."""
        with self._lock:
            self._views[view] = _ExportedSnapshot(exported_name)

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
            self._views[view] = _ExportedSnapshot(None)
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

    def _make(self) -> _ExportedSnapshot:
        holder = self._connect()
        try:
            with translated_errors("making a view of the database"):
                holder.execute(query("lift_session_limits"))
                holder.execute("begin isolation level repeatable read read only")
                row = holder.execute(query("export_snapshot")).fetchone()
        except TowpathError:
            _close(_ExportedSnapshot(None, holder))
            raise
        return _ExportedSnapshot(str(row[0]) if row else None, holder)

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


def _close(view: _ExportedSnapshot | None) -> None:
    if view is not None and view.holder is not None:
        with suppress(psycopg.Error):
            view.holder.close()


_LOG = structlog.get_logger("towpath.relay")

# The view must outlive the silence of the connection that holds it.
_PATIENT: Final = (
    b"set idle_in_transaction_session_timeout = 0",
    b"set idle_session_timeout = 0",
)
# Making a slot waits for every transaction that runs: after so long they are named,
# and then at each of these.
_TOLD_EVERY_S: Final = 60.0
_CANCEL_TIMEOUT_S: Final = 5.0
_DUPLICATE: Final = "42710"


class SlotSnapshot:
    """The connection that holds a view; nothing else may be done with it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self.name = name

    def close(self) -> None:
        """Let go of the view; whoever has begun to read in it may go on."""
        with suppress(psycopg.Error):
            self._connection.close()


class SlotMaker:
    """Makes a slot that exports a view, and stops when it is told to."""

    def __init__(
        self, clock: Clock, wakeup: Wakeup, is_stopping: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._wakeup = wakeup
        self._is_stopping = is_stopping

    def make(self, dsn: str, slot: str, asking: Connection) -> SlotSnapshot | None:
        """
        Make the slot; None if the process is to stop before there is one.

        Args:
            dsn: Where to.
            slot: The slot's name.
            asking: An ordinary connection, to find out who is waited for.

        Raises:
            SourceUnavailableError: The connection is gone, or somebody else has just
                made the slot.
            SourceRefusedError: The server refuses.
        """
        connection = connect(dsn, replication=True)
        try:
            with translated_errors("preparing a session"):
                for setting in _PATIENT:
                    connection.execute(setting)
            command = exporting_command(slot, connection.info.server_version)
            with translated_errors("making the slot"):
                name = self._made(connection, command, asking)
        except BaseException:
            connection.close()
            raise
        if name is None:
            connection.close()
            return None
        return SlotSnapshot(connection, name)

    def _made(
        self, connection: Connection, command: str, asking: Connection
    ) -> str | None:
        """Send the command, wait, and return the view's name."""
        pgconn = connection.pgconn
        pgconn.send_query(command.encode())
        telling = Deadline(self._clock, _TOLD_EVERY_S)
        while pgconn.is_busy():
            if self._is_stopping():
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
                return None
            if telling.passed():
                telling = Deadline(self._clock, _TOLD_EVERY_S)
                _log_blockers(asking)
            self._wait(pgconn.socket, telling.remaining_s())
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise _creation_error(result)
        return (result.get_value(0, 2) or b"").decode()

    def _wait(self, socket: int, timeout_s: float) -> None:
        readable = select.select([socket, self._wakeup.fileno()], [], [], timeout_s)[0]
        if self._wakeup.fileno() in readable:
            self._wakeup.clear()


def _log_blockers(asking: Connection) -> None:
    old = asking.execute(query("read_old_transactions")).fetchall()
    _LOG.warning(
        "slot creation waits for older transactions",
        transactions=[
            f"{who} ({application}, {age_s:.0f} s)" for who, application, age_s in old
        ],
        remedy="End them, or run select pg_terminate_backend(pid) or rollback prepared",
    )


def _creation_error(result: pq.abc.PGresult | None) -> TowpathError:
    if result is None:
        return SourceUnavailableError("making the slot: the server said nothing")
    field = result.error_field
    state = (field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    told = (field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"refused").decode()
    if state == _DUPLICATE:
        return SourceUnavailableError(f"making the slot: {told}")
    return failure_of(state or None, f"making the slot: {told}")
