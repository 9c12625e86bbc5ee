"""
Signals from external channels: stored in ``towpath.signal``, read for the admin port.

They return through the log and are answered like any other. The sender may drop a
signal (commit an offset, confirm a transaction) once it is durable here, so an insert
is retried until it succeeds. A signal that arrives twice, because a process died in
between, is accepted; a different signal with an id already in use is refused.

The admin port and the Kafka channel open a connection per request, so that threads
share nothing and an unavailable source is noticed immediately; such requests are rare.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import structlog

from towpath.relay.postgres.connect import (
    Connection,
    ConnectionWorker,
    connect,
    failure,
    translated_errors,
)
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.naming import address_of
from towpath.relay.snapshot.signals import (
    ExternalSignal,
    SignalRefusal,
    SignalRejectedError,
    external_signal,
)
from towpath.schemas.clock import Backoff
from towpath.schemas.failure import TowpathError

_LOG = structlog.get_logger("towpath.relay")

USED_ID: Final = "this id was used by an earlier signal; choose another"

# An absent standby must not block the relay's commits in the source.
_SESSION: Final = b"set synchronous_commit = local; set lock_timeout = '5s'"
_CLOSE_TIMEOUT_S: Final = 2.0


def insert_signal(connection: Connection, signal: ExternalSignal) -> bool:
    """
    Insert a signal; return whether it was new.

    Raises:
        SignalRejectedError: Another signal has its id.
        psycopg.Error: The insert failed.
    """
    row = {
        "id": signal.signal_id,
        "type": signal.type,
        "data": signal.data,
        "relay": address_of(signal.data, signal.relay),
    }
    if connection.execute(query("insert_signal"), row).fetchone():
        return True
    same = connection.execute(query("read_whether_same_signal"), row).fetchone()
    if same is None or not same[0]:
        raise SignalRejectedError(USED_ID)
    return False


class SignalInbox:
    """
    Inserts signals in order, in its own thread.

    ``put`` may be called from any thread.
    """

    def __init__(
        self,
        dsn: str,
        wake: Callable[[], None],
        refuse: Callable[[SignalRefusal], None],
    ) -> None:
        """
        Start the thread; it connects when it has work.

        Args:
            dsn: The source.
            wake: Called, from that thread, when a signal is durable.
            refuse: Called, from any thread, with each refused signal.
        """
        self._dsn = dsn
        self._wake = wake
        self._refuse = refuse
        self._durable: deque[str] = deque()
        self._numbers = iter(range(1 << 62))
        self._backoff = Backoff()
        self._stopping = threading.Event()
        self._worker: ConnectionWorker[tuple[str, ExternalSignal]] = ConnectionWorker(
            "signal-inbox", self._connect, self._insert, self._fail
        )

    def put(
        self, signal_id: str | None, kind: str | None, data: str | None, source: str
    ) -> str | None:
        """
        Queue a signal; return the name under which ``durable`` will report it.

        Return None if it was refused.
        """
        try:
            signal = external_signal(signal_id, kind, data, source)
        except SignalRejectedError as rejection:
            self._refuse(SignalRefusal(signal_id or "", str(rejection), source))
            return None
        # No signal id has a zero byte, so the name differs from that of any other hold.
        name = f"\0{next(self._numbers)}"
        self._worker.submit((name, signal))
        return name

    def durable(self) -> Sequence[str]:
        """Return the names of signals stored or refused since the last call."""
        names = []
        while self._durable:
            names.append(self._durable.popleft())
        return names

    def close(self) -> None:
        """Insert the queued signals, as far as time allows, and end. Never raises."""
        self._stopping.set()
        self._worker.close(_CLOSE_TIMEOUT_S, is_urgent=False)

    # In the thread ---------------------------------------------------------------

    def _connect(self) -> Connection:
        return connect_to_insert(self._dsn)

    def _insert(
        self,
        put: tuple[str, ExternalSignal],
        worker: ConnectionWorker[tuple[str, ExternalSignal]],
    ) -> None:
        """Insert one signal; retry until it succeeds, or the signal inbox closes."""
        name, signal = put
        attempt = 0
        while not self._try(signal, worker):
            if self._stopping.wait(self._backoff.delay_s(attempt)):
                return
            attempt += 1
        self._durable.append(name)
        self._wake()

    def _try(
        self,
        signal: ExternalSignal,
        worker: ConnectionWorker[tuple[str, ExternalSignal]],
    ) -> bool:
        try:
            is_new = insert_signal(worker.connection(), signal)
        except SignalRejectedError as rejection:
            self._refuse(SignalRefusal(signal.signal_id, str(rejection), signal.source))
        except (TowpathError, psycopg.Error) as error:
            if isinstance(error, psycopg.Error):
                error = failure(error, "inserting a signal")
                worker.discard_broken()
            _LOG.warning("signal insert failed: retrying", reason=str(error))
            return False
        else:
            _log_result(signal, is_new=is_new)
        return True

    def _fail(self, error: BaseException) -> None:
        """Log that the thread has failed; its queued signals hold the log back."""
        _LOG.error("signal inbox failed: it holds the log back", reason=repr(error))


def connect_to_insert(dsn: str) -> Connection:
    """
    Open a session for inserting signals.

    Raises:
        TowpathError: The session cannot be opened.
    """
    connection = connect(dsn)
    with translated_errors("preparing a session"):
        connection.execute(_SESSION)
    return connection


def _log_result(signal: ExternalSignal, *, is_new: bool) -> None:
    if is_new:
        _LOG.info(
            "signal inserted",
            signal_id=signal.signal_id,
            type=signal.type,
            source=signal.source,
        )


# The maximum number of tables in one response about snapshots.
MAX_LISTED: Final = 1_000


class SourceSignalService:
    """Inserts signals into the source, and reads their answers and snapshots."""

    def __init__(self, dsn: str, relay: str) -> None:
        """
        Create the service; each request connects.

        Args:
            dsn: The source.
            relay: The relay of signals that name none.
        """
        self._dsn = dsn
        self._relay = relay

    def store(self, signal: ExternalSignal) -> None:
        """
        Insert a signal; the same signal is accepted again.

        Raises:
            SignalRejectedError: Another signal has its id.
            TowpathError: The source is unreachable, or not prepared.
        """
        with self._connected("inserting a signal") as connection:
            insert_signal(connection, signal._replace(relay=self._relay))

    def signal(self, signal_id: str) -> Any:  # noqa: ANN401 - JSON
        """
        Return a signal's row, or None.

        Raises:
            TowpathError: The source is unreachable, or not prepared.
        """
        with self._connected("reading a signal") as connection:
            row = connection.execute(query("show_signal"), {"id": signal_id}).fetchone()
        return row[0] if row else None

    def snapshots(self, snapshot_id: str | None) -> list[Any]:
        """
        Return the tables of one snapshot, or of this relay's snapshots; at most 1,000.

        Without an id, the tables are those of the newest snapshots that signals
        requested.

        Raises:
            TowpathError: The source is unreachable, or not prepared.
        """
        names = {"id": snapshot_id, "limit": MAX_LISTED, "relay": self._relay}
        with self._connected("reading snapshots") as connection:
            rows = connection.execute(query("list_snapshots"), names)
            return [row[0] for row in rows]

    @contextmanager
    def _connected(self, doing: str) -> Iterator[Connection]:
        with connect_to_insert(self._dsn) as connection, translated_errors(doing):
            yield connection
