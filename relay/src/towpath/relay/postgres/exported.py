"""
A slot made together with a view of the database as of its very place in the log.

The replication protocol alone can do that. What had been committed where the slot
begins is in the view, and nothing else is; the slot streams all the rest. The view can
be read by others as long as the connection that made it is left alone, and holds dead
rows back as long: it is closed as soon as nobody reads it any more.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg
import structlog
from psycopg import pq

from towpath.relay.errors import SourceUnavailableError
from towpath.relay.postgres.connect import Connection, connect, failure_of, translated
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.postgres.slot import exporting_command
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import TowpathError

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


class ExportedView:
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

    def make(self, dsn: str, slot: str, asking: Connection) -> ExportedView | None:
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
            with translated("preparing a session"):
                for setting in _PATIENT:
                    connection.execute(setting)
            command = exporting_command(slot, connection.info.server_version)
            with translated("making the slot"):
                name = self._made(connection, command, asking)
        except BaseException:
            connection.close()
            raise
        if name is None:
            connection.close()
            return None
        return ExportedView(connection, name)

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
                _tell_who_is_waited_for(asking)
            self._wait(pgconn.socket, telling.remaining_s())
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise _refused(result)
        return (result.get_value(0, 2) or b"").decode()

    def _wait(self, socket: int, timeout_s: float) -> None:
        readable = select.select([socket, self._wakeup.fileno()], [], [], timeout_s)[0]
        if self._wakeup.fileno() in readable:
            self._wakeup.clear()


def _tell_who_is_waited_for(asking: Connection) -> None:
    old = asking.execute(query("read_old_transactions")).fetchall()
    _LOG.warning(
        "making the slot waits for older transactions",
        transactions=[
            f"{who} ({application}, {age_s:.0f} s)" for who, application, age_s in old
        ],
        remedy="End them, or run select pg_terminate_backend(pid) or rollback prepared",
    )


def _refused(result: pq.abc.PGresult | None) -> TowpathError:
    if result is None:
        return SourceUnavailableError("making the slot: the server said nothing")
    field = result.error_field
    state = (field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    told = (field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"refused").decode()
    if state == _DUPLICATE:
        return SourceUnavailableError(f"making the slot: {told}")
    return failure_of(state or None, f"making the slot: {told}")
