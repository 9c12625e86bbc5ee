"""
Connections to the source, and the translation of the driver's errors.

===================  ==============================================================
08, 57P0, 53         the server is unreachable, shutting down or full: retry
40, 55P03, 57014     a deadlock or another conflict, a lock timeout, a statement that a
                     time limit or an administrator canceled: retry
58000, 58030         the server's system failed, for instance a disk: retry; other
                     errors of class 58 mean missing files: halt
no SQLSTATE          the connection broke, or was never opened: retry; or an option of
                     the DSN has a wrong value: halt
28                   the login is refused; for a missing or wrong password, the
                     SQLSTATE may be absent: halt
3D000, 42501         no such database, a missing permission: halt
55006                the slot is in use: retry, for a while
42703, 42704, 42P01  an object of ``relay init`` is missing or outdated: halt
everything else      the server refuses one of our statements: halt
===================  ==============================================================

Every connection, the stream's included, has the settings of ``schemas.session``, so
that a value reads the same in the stream, in a chunk and in the catalog.

``replication.stream_error`` adds the errors that only the stream has.
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
    SourceBusyError,
    SourceRefusedError,
    SourceUnavailableError,
)
from towpath.schemas import session
from towpath.schemas.failure import TooManyFilesError, TowpathError, has_no_descriptor

Connection = psycopg.Connection[tuple[Any, ...]]

APPLICATION: Final = "towpath-relay"

# A dead network is detected within these bounds instead of never.
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
        # The objects of relay init are missing, or come from an earlier release.
        "42703": NotPreparedError,
        "42704": NotPreparedError,
        "42P01": NotPreparedError,
    }
)
_PORTS: Final = re.compile(r"[0-9,]*\Z")
_UNAVAILABLE: Final = ("08", "57P0", "53")
_BUSY: Final = ("40", "55P03", "57014", "58000", "58030")
# Messages of libpq and the server about a connection that a retry may open.
_TRANSIENT: Final = re.compile(
    r"connection slots|too many (?:connections|clients)|closed the connection"
    r"|database system is|[Cc]onnection (?:reset|refused|timed out)|timeout expired"
)
# Messages of libpq and the driver about an option that no retry can correct.
_WRONG_OPTION: Final = re.compile(
    r"invalid \w+ value: |invalid integer value |invalid port number|bad value for "
    r"|could not match \d+ |definition of service "
)


def connect(dsn: str, *, replication: bool = False) -> Connection:
    """
    Open a connection in autocommit mode.

    Args:
        dsn: The server, as a libpq connection string.
        replication: Whether to use the replication protocol, in the DSN's database.

    Raises:
        SourceUnavailableError: The server cannot be reached.
        SourceRefusedError: The server refuses the login, or ``dsn`` cannot be read or
            has a wrong value.
    """
    wanted = parts_of(dsn)
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


def parts_of(dsn: str) -> dict[str, Any]:
    """
    Parse a DSN.

    The errors of libpq must not reach a log: they quote an unreadable DSN, password
    included, or a wrong port, which may be part of a password with an unescaped slash.

    Raises:
        SourceRefusedError: The DSN cannot be read.
    """
    with suppress(psycopg.Error):
        parts: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
        if _PORTS.match(str(parts.get("port") or "")):
            return parts
    reason = (
        "[source] dsn cannot be read: write name=value pairs, with quotes around values"
        " that contain spaces, or a URI, with special characters in the password as %XX"
    )
    raise SourceRefusedError(reason)


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Raise the driver's errors as ours; ``doing`` is part of the message."""
    try:
        yield
    except psycopg.Error as error:
        raise failure(error, doing) from error
    except OSError as error:
        # The driver also opens file descriptors while it waits.
        if not has_no_descriptor(error):
            raise
        raise TooManyFilesError(doing) from error


def failure(error: psycopg.Error, doing: str) -> TowpathError:
    """Return our error for the driver's, according to its SQLSTATE."""
    if error.sqlstate is None and has_no_descriptor(error):
        return TooManyFilesError(doing)
    message = error.diag.message_primary or str(error).strip().partition("\n")[0]
    is_refused = _is_refused_login(error) or _has_wrong_option(error)
    return failure_of(error.sqlstate, f"{doing}: {message}", is_refused=is_refused)


def failure_of(
    state: str | None, message: str, *, is_refused: bool = False
) -> TowpathError:
    """Return our error for a SQLSTATE, which is None if the server did not answer."""
    if is_refused:
        return SourceRefusedError(message)
    if state is None or state.startswith(_UNAVAILABLE):
        return SourceUnavailableError(message)
    if state.startswith(_BUSY):
        return SourceBusyError(message)
    return _BY_STATE.get(state, SourceRefusedError)(message)


def _is_refused_login(error: psycopg.Error) -> bool:
    """
    Return whether a connection failed after the server had asked for a password.

    The errors of a refused login, of a dead server, and of a full server that has
    accepted the password all lack a SQLSTATE.
    """
    if error.sqlstate is not None or error.pgconn is None:
        return False
    if _TRANSIENT.search(str(error)):
        return False
    return bool(error.pgconn.needs_password or error.pgconn.used_password)


def _has_wrong_option(error: psycopg.Error) -> bool:
    return error.sqlstate is None and bool(_WRONG_OPTION.search(str(error)))


def quoted(*names: str) -> str:
    """Return a name, or a qualified name, as an SQL identifier."""
    return sql.Identifier(*names).as_string(None)


EffectT = TypeVar("EffectT")
# A queue of effects, which workers may share; each None ends one worker.
Effects = SimpleQueue[EffectT | None]


class ConnectionWorker(Generic[EffectT]):
    """
    A thread that performs effects in order, over its own connection.

    Workers may share a queue: each takes the next effect when it is free. An error of
    ``perform`` is passed to ``fail`` and ends the worker.
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
        """Queue an effect."""
        self._effects.put(effect)

    def connection(self) -> Connection:
        """
        Return the connection, opened if necessary. Only for the worker's thread.

        Raises:
            TowpathError: The connection cannot be opened.
        """
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @property
    def server_pid(self) -> int | None:
        """The server process of the connection; None without an open connection."""
        connection = self._connection
        # The worker's thread may have closed it.
        with suppress(psycopg.Error):
            return None if connection is None else connection.info.backend_pid
        return None

    def discard_broken(self) -> None:
        """Close the connection unless the last error left it idle."""
        connection = self._connection
        idle = psycopg.pq.TransactionStatus.IDLE
        if connection is not None and connection.info.transaction_status != idle:
            self._connection = None
            with suppress(psycopg.Error):
                connection.close()

    def end(self, timeout_s: float, *, is_urgent: bool) -> None:
        """
        End a worker of this queue after the queued effects. Never raises.

        Args:
            timeout_s: How long a cancellation may take.
            is_urgent: Whether to cancel the running statement.
        """
        self._effects.put(None)
        connection = self._connection
        if is_urgent and connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=timeout_s)

    def close(self, timeout_s: float, *, is_urgent: bool) -> None:
        """End the worker after the submitted effects and wait for it. Never raises."""
        self.end(timeout_s, is_urgent=is_urgent)
        self.join(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait until the worker has ended, for at most this time."""
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
