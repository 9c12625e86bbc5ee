"""
The inbox: puts signals that were left elsewhere into ``towpath.signal``.

From there they come back through the log and are answered like any other. Whoever left
one may forget it (commit an offset, let a transaction be confirmed) once it is durable
here, so an insert is tried until it succeeds. One that comes twice, because a process
died in between, is let pass; another signal with a used id is refused.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
import structlog

from towpath.relay.addressing import address_of
from towpath.relay.postgres.connect import Connection, connect, failure, translated
from towpath.relay.postgres.lane import Lane
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.left import LeftSignal, Refusal, left_signal
from towpath.relay.snapshot.signals import SignalRejectedError
from towpath.schemas.backoff import Backoff
from towpath.schemas.failure import TowpathError

_LOG = structlog.get_logger("towpath.relay")

USED_ID: Final = "this id was used by an earlier signal; choose another"

# As with everything that the relay stores in the source: a standby that is away must
# not stop it.
_SESSION: Final = b"set synchronous_commit = local; set lock_timeout = '5s'"
_CLOSE_TIMEOUT_S: Final = 2.0


def insert(connection: Connection, signal: LeftSignal) -> bool:
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
        self, dsn: str, wake: Callable[[], None], refuse: Callable[[Refusal], None]
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
        self._lane: Lane[tuple[str, LeftSignal]] = Lane(
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
            signal = left_signal(signal_id, kind, data, source)
        except SignalRejectedError as rejection:
            self._refuse(Refusal(signal_id or "", str(rejection), source))
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
        self, put: tuple[str, LeftSignal], lane: Lane[tuple[str, LeftSignal]]
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

    def _try(self, signal: LeftSignal, lane: Lane[tuple[str, LeftSignal]]) -> bool:
        try:
            is_new = insert(lane.connection(), signal)
        except SignalRejectedError as rejection:
            self._refuse(Refusal(signal.signal_id, str(rejection), signal.source))
        except (TowpathError, psycopg.Error) as error:
            if isinstance(error, psycopg.Error):
                error = failure(error, "leaving a signal")
                lane.mend()
            _LOG.warning("trying again to leave a signal", reason=str(error))
            return False
        else:
            _tell(signal, is_new=is_new)
        return True

    def _fail(self, error: BaseException) -> None:
        """Say that the thread is at its end; what it holds keeps the log back."""
        _LOG.error("the signal inbox failed", reason=repr(error))


def connect_to_insert(dsn: str) -> Connection:
    """
    Open a session for inserting signals.

    Raises:
        TowpathError: It cannot be opened.
    """
    connection = connect(dsn)
    with translated("preparing a session"):
        connection.execute(_SESSION)
    return connection


def _tell(signal: LeftSignal, *, is_new: bool) -> None:
    if is_new:
        _LOG.info(
            "signal left",
            signal_id=signal.signal_id,
            type=signal.type,
            at=signal.source,
        )
