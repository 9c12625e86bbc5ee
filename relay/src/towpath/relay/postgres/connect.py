"""
Connections, and the one place where the driver's errors become ours.

===================  ==============================================================
08, 57P0, 53         the server is away, shutting down or full: try again
no SQLSTATE          the connection broke, or was never made: try again
28, or a password    the login is refused: halt
3D000, 42501         no such database, a missing right: halt
55006                the slot is in use: try again, for a while
55000, 58P01         the slot needs log that is gone: halt
42704                no such slot or publication: halt
everything else      the server refuses a statement of ours: halt
===================  ==============================================================

Every connection has the settings of ``schemas.session``, also that of the stream, so
that a value reads the same in the stream, in a chunk and in the catalog.

A thread that does one thing after another over a connection of its own.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg import conninfo, sql

from towpath.relay.errors import (
    NotPreparedError,
    SlotBusyError,
    SlotLostError,
    SourceRefusedError,
    SourceUnavailableError,
)
from towpath.schemas import session
from towpath.schemas.failure import TooManyFilesError, TowpathError, has_no_descriptor

Connection = psycopg.Connection[tuple[Any, ...]]

APPLICATION: Final = "towpath-relay"

# A dead network shows itself within this many seconds instead of never.
_CONNECT_TIMEOUT_S: Final = 10
_KEEPALIVES: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

_BY_STATE: Final = MappingProxyType(
    {
        "55006": SlotBusyError,
        "55000": SlotLostError,
        "58P01": SlotLostError,
        # What relay init makes is not there, or is of an earlier release.
        "42703": NotPreparedError,
        "42704": NotPreparedError,
        "42P01": NotPreparedError,
    }
)
_PORTS: Final = re.compile(r"[0-9,]*\Z")
_AWAY: Final = ("08", "57P0", "53")


def connect(dsn: str, *, replication: bool = False) -> Connection:
    """
    Open a connection in autocommit.

    Args:
        dsn: Where to, in libpq's words.
        replication: Open it for the replication protocol of this database.

    Raises:
        SourceUnavailableError: The server cannot be reached.
        SourceRefusedError: The server refuses the login, or ``dsn`` cannot be read.
    """
    wanted = _parts(dsn)
    with translated_errors("connecting"):
        wanted.setdefault("application_name", APPLICATION)
        wanted.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
        for name, value in _KEEPALIVES.items():
            wanted.setdefault(name, value)
        if replication:
            wanted["replication"] = "database"
        connection = psycopg.Connection.connect(
            conninfo.make_conninfo("", **wanted), autocommit=True
        )
        try:
            version = connection.info.server_version
            connection.execute(session.statement(version).encode())
        except psycopg.Error:
            connection.close()
            raise
        return connection


def _parts(dsn: str) -> dict[str, Any]:
    """
    Take a DSN apart.

    What libpq says of one that it cannot read quotes it, password included, as it does
    with a port that is none (where an unescaped slash in a password ends up): nothing
    of it may reach a log.
    """
    with suppress(psycopg.Error):
        parts: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
        if _PORTS.match(str(parts.get("port") or "")):
            return parts
    reason = (
        "[source] dsn cannot be read: write name=value pairs, with quotes around values"
        " that have blanks, or a URI, with special characters of the password as %XX"
    )
    raise SourceRefusedError(reason)


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """
    Raise the driver's errors as ours.

    Args:
        doing: The operation, for the message.
    """
    try:
        yield
    except psycopg.Error as error:
        raise failure(error, doing) from error


def failure(error: psycopg.Error, doing: str) -> TowpathError:
    """Return our error for the driver's, by its SQLSTATE."""
    if error.sqlstate is None and has_no_descriptor(error):
        return TooManyFilesError(doing)
    told = error.diag.message_primary or str(error).strip().partition("\n")[0]
    return failure_of(error.sqlstate, f"{doing}: {told}", was_login=_was_login(error))


def failure_of(
    state: str | None, message: str, *, was_login: bool = False
) -> TowpathError:
    """Return our error for a SQLSTATE; None: there was no answer at all."""
    if was_login:
        return SourceRefusedError(message)
    if state is None or state.startswith(_AWAY):
        return SourceUnavailableError(message)
    return _BY_STATE.get(state, SourceRefusedError)(message)


def _was_login(error: psycopg.Error) -> bool:
    """
    Tell whether a connection failed after its password was asked for.

    A refused login comes without a SQLSTATE, as a dead server does.
    """
    if error.sqlstate is not None or error.pgconn is None:
        return False
    return bool(error.pgconn.needs_password or error.pgconn.used_password)


def quoted(*names: str) -> str:
    """Write a name, or a name within another, as SQL does."""
    return sql.Identifier(*names).as_string(None)


EffectT = TypeVar("EffectT")
# What is to be done; each None ends one lane.
Effects = SimpleQueue[EffectT | None]


class ConnectionWorker(Generic[EffectT]):
    """
    Performs effects in the order in which they were submitted.

    Lanes may share their effects: each takes the next one when it is free. An error
    that ``perform`` lets out is told to ``fail`` and ends the lane.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        perform: Callable[[EffectT, "ConnectionWorker[EffectT]"], None],
        fail: Callable[[BaseException], None],
        effects: Effects[EffectT] | None = None,
    ) -> None:
        self._connect = connect
        self._perform = perform
        self._fail = fail
        self._connection: Connection | None = None
        self._effects: Effects[EffectT] = SimpleQueue() if effects is None else effects
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, effect: EffectT) -> None:
        """Put an effect behind those that wait."""
        self._effects.put(effect)

    def connection(self) -> Connection:
        """
        Return the lane's connection; it is made if there is none. In the thread only.

        Raises:
            TowpathError: It cannot be made.
        """
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @property
    def server_pid(self) -> int | None:
        """The server's process behind the lane's connection; None: there is none."""
        connection = self._connection
        return None if connection is None else connection.info.backend_pid

    def mend(self) -> None:
        """Give up a connection that an error has left in any other state than idle."""
        connection = self._connection
        idle = psycopg.pq.TransactionStatus.IDLE
        if connection is not None and connection.info.transaction_status != idle:
            self._connection = None
            with suppress(psycopg.Error):
                connection.close()

    def end(self, timeout_s: float, *, is_urgent: bool) -> None:
        """
        Let the lane, or one of those that share effects, end after them. Never raises.

        Args:
            timeout_s: How long to try to cancel.
            is_urgent: Cancel what is running.
        """
        self._effects.put(None)
        connection = self._connection
        if is_urgent and connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=timeout_s)

    def close(self, timeout_s: float, *, is_urgent: bool) -> None:
        """End the lane after what was submitted, and wait for that. Never raises."""
        self.end(timeout_s, is_urgent=is_urgent)
        self.join(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait until the lane has ended, but not longer than that."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (effect := self._effects.get()) is not None:
                self._perform(effect, self)
        except Exception as error:  # noqa: BLE001 - the loop gets it
            self._fail(error)
        finally:
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.close()
