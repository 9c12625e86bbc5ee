"""
Exported snapshots: one view of the database for all readers of a snapshot.

For a blocking snapshot a dedicated session holds a repeatable-read transaction open and
exports its snapshot; each reader imports it for each chunk. For an initial snapshot
the creation of the slot exports it, and the creator keeps that session open.

An exported snapshot does not outlive its session, and does not show tables that have
been altered since: the server reads a table's current storage with the snapshot's
visibility, so that a rewritten table looks empty. Each reader compares the locked
tables with the snapshot; if they differ, the rest is read without the snapshot.

Only the replication protocol creates a slot with an exported snapshot. The snapshot
shows exactly the transactions that committed before the slot's start; the slot streams
all the others. The snapshot lives as long as its connection is idle, and keeps VACUUM
from removing dead rows for that long, so it is closed as soon as no reader needs it.
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
from towpath.relay.postgres.slot import blocking_transactions, exporting_command
from towpath.relay.snapshot.sql import quoted_text
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import TowpathError, UnavailableError


class ViewLostError(UnavailableError):
    """The exported snapshot is lost, or no longer shows a table."""

    remedy = "No action is needed: the remaining rows are read chunk by chunk."


class TableAlteredError(UnavailableError):
    """A table was altered after a transaction's snapshot but before its lock."""

    remedy = "No action is needed: the chunk is read again."


@dataclass(slots=True)
class _ExportedSnapshot:
    """
    An exported snapshot, and the session that holds it.

    Without a name it is lost for good: a new snapshot would show a different moment.
    """

    name: str | None
    holder: Connection | None = None


class ExportedSnapshots:
    """The exported snapshots, by the names that effects use; thread-safe."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._views: dict[str, _ExportedSnapshot] = {}

    def adopt(self, view: str, exported_name: str) -> None:
        """Add a snapshot that another session has exported and holds."""
        with self._lock:
            self._views[view] = _ExportedSnapshot(exported_name)

    def enter(self, connection: Connection, view: str) -> None:
        """
        Import a snapshot into a repeatable-read transaction that has run no query.

        Raises:
            ViewLostError: The snapshot is lost.
            TowpathError: The snapshot could not be exported.
            psycopg.Error: The connection is lost, or the server is shutting down.
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

    def release(self, view: str) -> None:
        """Release a snapshot for good. Never raises."""
        with self._lock:
            released = self._views.get(view)
            self._views[view] = _ExportedSnapshot(None)
        _close(released)

    def close(self) -> None:
        """Release all snapshots. Never raises."""
        with self._lock:
            views, self._views = self._views, {}
        for each in views.values():
            _close(each)

    def _name(self, view: str) -> str:
        with self._lock:
            found = self._views.get(view)
            if found is None:
                found = self._views[view] = self._export()
        if found.name is None:
            reason = "the snapshot's view of the database is lost"
            raise ViewLostError(reason)
        return found.name

    def _export(self) -> _ExportedSnapshot:
        holder = self._connect()
        try:
            with translated_errors("exporting a view of the database"):
                holder.execute(query("lift_session_limits"))
                holder.execute("begin isolation level repeatable read read only")
                row = holder.execute(query("export_snapshot")).fetchone()
        except TowpathError:
            _close(_ExportedSnapshot(None, holder))
            raise
        return _ExportedSnapshot(str(row[0]) if row else None, holder)

    def _lose(self, view: str) -> None:
        """Record that a snapshot is lost."""
        with self._lock:
            lost = self._views.get(view)
            if lost is not None:
                lost.name = None


def check_unaltered(connection: Connection) -> None:
    """
    Check that no table locked by a transaction was altered after its snapshot.

    Writers are the transactions that have replaced the visible catalog rows of a table.
    A writer that ended before the snapshot must have been rolled back; otherwise its
    own rows would be the visible ones. A writer that ended later counts as committed,
    even if it was rolled back.

    Raises:
        TableAlteredError: A locked table was altered.
    """
    visible = connection.execute(query("read_visibility")).fetchone()
    snapshot = XidSnapshot.parse(str(visible[0] if visible else ""))
    for name, is_other, writers in connection.execute(query("read_altered_tables")):
        if is_other or not all(map(snapshot.sees_streamed, writers)):
            reason = f"{name} was altered after the snapshot was taken"
            raise TableAlteredError(reason)


def _close(view: _ExportedSnapshot | None) -> None:
    if view is not None and view.holder is not None:
        with suppress(psycopg.Error):
            view.holder.close()


_LOG = structlog.get_logger("towpath.relay")

# The connection that holds the snapshot must not time out while it is idle.
_NO_TIMEOUTS: Final = (
    b"set idle_in_transaction_session_timeout = 0",
    b"set idle_session_timeout = 0",
)
# Creating a slot waits for running transactions, which are logged at this interval.
_LOG_INTERVAL_S: Final = 60.0
_CANCEL_TIMEOUT_S: Final = 5.0
_DUPLICATE: Final = "42710"


class SlotSnapshot:
    """The connection that holds a slot's exported snapshot; it must remain idle."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self.name = name

    def close(self) -> None:
        """Release the snapshot; transactions that have imported it may continue."""
        with suppress(psycopg.Error):
            self._connection.close()


class SlotMaker:
    """Creates a slot with an exported snapshot; can be stopped while it waits."""

    def __init__(
        self, clock: Clock, wakeup: Wakeup, is_stopping: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._wakeup = wakeup
        self._is_stopping = is_stopping

    def make(self, dsn: str, slot: str, catalog: Connection) -> SlotSnapshot | None:
        """
        Create the slot and return its snapshot; None if the process stops first.

        Args:
            dsn: The source.
            slot: The slot's name.
            catalog: An ordinary connection, to read the transactions that block the
                creation.

        Raises:
            SourceUnavailableError: The connection is lost, or another process has just
                created the slot.
            SourceRefusedError: The server refuses the command.
        """
        connection = connect(dsn, replication=True)
        try:
            with translated_errors("preparing a session"):
                for setting in _NO_TIMEOUTS:
                    connection.execute(setting)
            command = exporting_command(slot, connection.info.server_version)
            with translated_errors("creating the slot"):
                name = self._create(connection, command, catalog)
        except BaseException:
            connection.close()
            raise
        if name is None:
            connection.close()
            return None
        return SlotSnapshot(connection, name)

    def _create(
        self, connection: Connection, command: str, catalog: Connection
    ) -> str | None:
        """Send the command, wait, and return the exported snapshot's name."""
        pgconn = connection.pgconn
        pgconn.send_query(command.encode())
        next_log = Deadline(self._clock, _LOG_INTERVAL_S)
        while pgconn.is_busy():
            if self._is_stopping():
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
                return None
            if next_log.passed():
                next_log = Deadline(self._clock, _LOG_INTERVAL_S)
                _log_blockers(catalog)
            self._wait(pgconn.socket, next_log.remaining_s())
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise _creation_error(result)
        return (result.get_value(0, 2) or b"").decode()

    def _wait(self, socket: int, timeout_s: float) -> None:
        readable = select.select([socket, self._wakeup.fileno()], [], [], timeout_s)[0]
        if self._wakeup.fileno() in readable:
            self._wakeup.clear()


def _log_blockers(catalog: Connection) -> None:
    _LOG.warning(
        "slot creation waits for older transactions",
        transactions=blocking_transactions(catalog),
        remedy="End them, or use pg_terminate_backend(pid) or ROLLBACK PREPARED.",
    )


def _creation_error(result: pq.abc.PGresult | None) -> TowpathError:
    if result is None:
        return SourceUnavailableError("creating the slot: the server gave no response")
    field = result.error_field
    state = (field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = (field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"refused").decode()
    if state == _DUPLICATE:
        return SourceUnavailableError(f"creating the slot: {message}")
    return failure_of(state or None, f"creating the slot: {message}")
