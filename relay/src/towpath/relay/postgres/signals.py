"""
Signals from outside the log: inserted into ``towpath.signal``, and read for the port.

From there they come back through the log and are answered like any other. The sender
may forget a signal (commit an offset, let a transaction be confirmed) once it is
durable here, so an insert is tried until it succeeds. A signal that comes twice,
because a process died in between, passes; another signal with a used id is refused.

The admin port and the Kafka channel open a connection for each request, so that threads
share nothing and an unavailable source is noticed at once: these requests are few.
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

# As with everything that the relay stores in the source: a standby that is away must
# not stop it.
_SESSION: Final = b"set synchronous_commit = local; set lock_timeout = '5s'"
_CLOSE_TIMEOUT_S: Final = 2.0


def insert_signal(connection: Connection, signal: ExternalSignal) -> bool:
    """
    Insert a signal; tell whether it was not there before.

    Raises:
        SignalRejectedError: Another signal has its id.
        psycopg.Error: It could not be done.
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
    Inserts in a thread of its own, in the order in which signals were put.

    ``put`` may be called from any thread.
    """

    def __init__(
        self,
        dsn: str,
        wake: Callable[[], None],
        refuse: Callable[[SignalRefusal], None],
    ) -> None:
        """
        Start the thread; the connection is made when it is needed.

        Args:
            dsn: The source.
            wake: Called, from that thread, when something is durable.
            refuse: Told of signals that are refused, from any thread.
        """
        self._dsn = dsn
        self._wake = wake
        self._refuse = refuse
        self._durable: deque[str] = deque()
        self._numbers = iter(range(1 << 62))
        self._backoff = Backoff()
        self._stopping = threading.Event()
        self._lane: ConnectionWorker[tuple[str, ExternalSignal]] = ConnectionWorker(
            "signal-inbox", self._connect, self._insert, self._fail
        )

    def put(
        self, signal_id: str | None, kind: str | None, data: str | None, source: str
    ) -> str | None:
        """
        Take a signal; return the name under which ``durable`` will tell of it.

        None: it cannot be one, which was told to ``refuse``.
        """
        try:
            signal = external_signal(signal_id, kind, data, source)
        except SignalRejectedError as rejection:
            self._refuse(SignalRefusal(signal_id or "", str(rejection), source))
            return None
        # No signal can have it for an id, and none is held by it.
        name = f"\0{next(self._numbers)}"
        self._lane.submit((name, signal))
        return name

    def durable(self) -> Sequence[str]:
        """Hand over the names of what became durable, or was refused, since then."""
        names = []
        while self._durable:
            names.append(self._durable.popleft())
        return names

    def close(self) -> None:
        """Insert what was put, as far as time allows, and end. Never raises."""
        self._stopping.set()
        self._lane.close(_CLOSE_TIMEOUT_S, is_urgent=False)

    # In the thread ---------------------------------------------------------------

    def _connect(self) -> Connection:
        return connect_to_insert(self._dsn)

    def _insert(
        self,
        put: tuple[str, ExternalSignal],
        lane: ConnectionWorker[tuple[str, ExternalSignal]],
    ) -> None:
        """Insert one signal, as often as it takes."""
        name, signal = put
        attempt = 0
        while not self._try(signal, lane):
            if self._stopping.wait(self._backoff.delay_s(attempt)):
                return
            attempt += 1
        self._durable.append(name)
        self._wake()

    def _try(
        self, signal: ExternalSignal, lane: ConnectionWorker[tuple[str, ExternalSignal]]
    ) -> bool:
        try:
            is_new = insert_signal(lane.connection(), signal)
        except SignalRejectedError as rejection:
            self._refuse(SignalRefusal(signal.signal_id, str(rejection), signal.source))
        except (TowpathError, psycopg.Error) as error:
            if isinstance(error, psycopg.Error):
                error = failure(error, "leaving a signal")
                lane.mend()
            _LOG.warning("signal insert failed, retrying", reason=str(error))
            return False
        else:
            _log_result(signal, is_new=is_new)
        return True

    def _fail(self, error: BaseException) -> None:
        """Say that the thread is at its end; what it holds keeps the log back."""
        _LOG.error("signal inbox failed", reason=repr(error))


def connect_to_insert(dsn: str) -> Connection:
    """
    Open a session for inserting signals.

    Raises:
        TowpathError: It cannot be opened.
    """
    connection = connect(dsn)
    with translated_errors("preparing a session"):
        connection.execute(_SESSION)
    return connection


def _log_result(signal: ExternalSignal, *, is_new: bool) -> None:
    if is_new:
        _LOG.info(
            "signal left",
            signal_id=signal.signal_id,
            type=signal.type,
            at=signal.source,
        )


# Tables of snapshots on one page: more than anybody reads, and no burden.
MAX_LISTED: Final = 1_000


class SourceSignalService:
    """Leaves signals in the source, and tells what became of them."""

    def __init__(self, dsn: str, relay: str) -> None:
        """
        Describe the source; nothing is connected yet.

        Args:
            dsn: The source.
            relay: The relay that signals are for if they name none.
        """
        self._dsn = dsn
        self._relay = relay

    def leave(self, signal: ExternalSignal) -> None:
        """
        Insert a signal; one that is there already is let be.

        Raises:
            SignalRejectedError: Another signal has its id.
            TowpathError: The source is away, or not prepared.
        """
        with self._connected("leaving a signal") as connection:
            insert_signal(connection, signal._replace(relay=self._relay))

    def signal(self, signal_id: str) -> Any:  # noqa: ANN401 - JSON
        """
        Return a signal's row, or None.

        Raises:
            TowpathError: The source is away, or not prepared.
        """
        with self._connected("reading a signal") as connection:
            row = connection.execute(query("show_signal"), {"id": signal_id}).fetchone()
        return row[0] if row else None

    def snapshots(self, snapshot_id: str | None) -> list[Any]:
        """
        Return the tables of one snapshot, or of all that signals asked of this relay.

        Raises:
            TowpathError: The source is away, or not prepared.
        """
        names = {"id": snapshot_id, "limit": MAX_LISTED, "relay": self._relay}
        with self._connected("reading snapshots") as connection:
            return [
                row[0] for row in connection.execute(query("list_snapshots"), names)
            ]

    @contextmanager
    def _connected(self, doing: str) -> Iterator[Connection]:
        with connect_to_insert(self._dsn) as connection, translated_errors(doing):
            yield connection
