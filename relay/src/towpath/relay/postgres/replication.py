"""
The stream of a slot, over psycopg's raw copy interface.

``START_REPLICATION`` turns a connection in replication mode into a two-way copy, which
delivers frames and accepts status updates. Nothing is confirmed implicitly: the server
receives only the LSNs that are passed to ``confirm``.

The history file of the server's timeline has a line per fork: the timeline that was
left, the LSN at which it was left, and the reason.
"""

import os
import select
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import psycopg
import structlog
from psycopg import pq
from psycopg.errors import Diagnostic

from towpath.relay.errors import (
    PublicationYoungerError,
    SlotLostError,
    SourceUnavailableError,
)
from towpath.relay.postgres.connect import (
    Connection,
    connect,
    failure_of,
    quoted,
    translated_errors,
)
from towpath.relay.recovery.lineage import Fork
from towpath.relay.wal.pgoutput import status_update
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.schemas.position import parse_lsn

_LOG = structlog.get_logger("towpath.relay")


def read_forks(connection: Connection, timeline: int) -> tuple[Fork, ...]:
    """
    Return the forks that led to a timeline, the oldest first.

    Without a history file no fork is known.

    Args:
        connection: A connection in replication mode.
        timeline: The server's current timeline.
    """
    if timeline == 1:
        return ()
    try:
        row = connection.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    except psycopg.DatabaseError as error:
        if connection.broken:
            raise
        _LOG.warning(
            "timeline history cannot be read: no fork is known", reason=str(error)
        )
        return ()
    if row is None:
        return ()
    content = row[1]
    text = content.decode() if isinstance(content, bytes) else str(content)
    return tuple(_forks(text))


def _forks(text: str) -> Iterator[Fork]:
    """Parse a history file; comments begin with a number sign."""
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            yield Fork(int(fields[0]), parse_lsn(fields[1]))


# The bounds of one read: small enough that feedback and acknowledgements are processed
# every hundredth of a second, large enough that a backlog's records reach Kafka in few
# large batches. Halving these bounds raises the load on the broker by 50 %.
_MAX_BYTES: Final = 512 * 1024
_MAX_FRAMES: Final = 6144

# SQLSTATEs for a publication that does not exist at the position that is read: the
# server skips its changes and sends the first as a warning (18 and later), or ends the
# stream with the second.
_LEFT_OUT: Final = "55000"
_UNKNOWN: Final = "42704"
# From the stream, these SQLSTATEs mean that the slot needs log that was removed. Other
# statements fail with them for other reasons.
_LOST: Final = frozenset({"55000", "58P01"})

_WOULD_BLOCK: Final = 0
_COPY_ENDED: Final = -1


class Wakeup:
    """An event with which another thread, or a signal handler, ends the loop's wait."""

    def __init__(self) -> None:
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event_fd

    def wake(self) -> None:
        """End the current wait, or the next one."""
        os.eventfd_write(self._event_fd, 1)

    def wait(self, timeout_s: float) -> None:
        """Wait until woken, or until the timeout."""
        if select.select([self._event_fd], [], [], timeout_s)[0]:
            self.clear()

    def clear(self) -> None:
        """Reset the event."""
        os.eventfd_read(self._event_fd)


class SystemIdentity(NamedTuple):
    """The identity of one server's history."""

    system_identifier: str
    timeline: int


class SlotStream:
    """The open stream of one slot. Used by one thread."""

    def __init__(self, dsn: str, clock: Clock, wakeup: Wakeup) -> None:
        """
        Connect; the stream is not started yet.

        Raises:
            SourceUnavailableError: The server cannot be reached.
            SourceRefusedError: The server refuses the login.
        """
        self._connection: Connection = connect(dsn, replication=True)
        self._pgconn = self._connection.pgconn
        self._clock = clock
        self._wakeup = wakeup
        self._poll = select.poll()
        self._left_out: str | None = None
        # The stream's error, raised once the frames before it are returned.
        self._end: TowpathError | None = None
        self._connection.add_notice_handler(self._take_notice)

    @property
    def database(self) -> str:
        """The database's name."""
        return self._connection.info.dbname

    def identify(self) -> SystemIdentity:
        """
        Return the server's identity. Call order: before ``start``.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("identifying the system"):
            row = self._connection.execute("IDENTIFY_SYSTEM").fetchone()
        if row is None:
            reason = "the server does not identify itself"
            raise SourceUnavailableError(reason)
        return SystemIdentity(str(row[0]), int(row[1]))

    def forks(self, timeline: int) -> tuple[Fork, ...]:
        """
        Return the forks of a timeline. Call order: before ``start``.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("reading the timeline's history"):
            return read_forks(self._connection, timeline)

    def start(self, slot: str, publications: Sequence[str]) -> None:
        """
        Start streaming from the slot's confirmed position.

        Raises:
            SlotBusyError: Another process holds the slot.
            SlotLostError: The slot needs log that was removed.
            NotPreparedError: There is no such slot.
            SourceUnavailableError: The connection is lost.
        """
        names = ",".join(quoted(name) for name in publications).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{names}', messages 'true')"
        )
        with translated_errors("starting replication"):
            result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise stream_error(result, "starting replication")
        self._pgconn.nonblocking = 1
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._poll.register(self._wakeup.fileno(), select.POLLIN)

    def read(self, timeout_s: float) -> Sequence[bytes]:
        """
        Return the available frames; wait for the first.

        Raises:
            PublicationYoungerError: Changes were skipped; no frame after them is
                returned.
            SlotLostError: The slot needs log that was removed.
            SourceUnavailableError: The connection is lost.
        """
        frames: list[bytes] = []
        if self._end is not None:
            raise self._end
        with translated_errors("reading the stream"):
            if not self._take(frames) and not self._wait(timeout_s):
                return frames
            self._pgconn.consume_input()
            while self._take(frames) and len(frames) < _MAX_FRAMES:
                self._pgconn.consume_input()
        if self._left_out is not None:
            raise _newer_publication(self._left_out)
        return frames

    def confirm(self, lsn: int) -> None:
        """
        Confirm to the server that it may drop the log below ``lsn``.

        Raises:
            PublicationYoungerError: The stream has already ended with this error.
            SlotLostError: The stream has already ended with this error.
            SourceUnavailableError: The connection is lost.
        """
        if self._end is not None:
            raise self._end
        sent_us = int(self._clock.now().timestamp() * 1_000_000)
        with translated_errors("sending feedback"):
            self._pgconn.put_copy_data(status_update(lsn, sent_us))
            self._pgconn.flush()

    def close(self) -> None:
        """End the stream; confirmed LSNs have already been sent."""
        self._connection.close()

    def _take(self, frames: list[bytes]) -> int:
        """Append the frames that libpq holds; return their size in bytes."""
        get_copy_data = self._pgconn.get_copy_data
        taken = 0
        while taken < _MAX_BYTES and self._end is None:
            length, data = get_copy_data(1)
            if length <= 0:
                if length != _WOULD_BLOCK:
                    self._end = self._ended(length)
                    if not frames:
                        raise self._end
                break
            frames.append(bytes(data))
            taken += length
        return taken

    def _take_notice(self, notice: Diagnostic) -> None:
        """Record a warning from the server that libpq found in the stream."""
        if notice.sqlstate == _LEFT_OUT:
            self._left_out = notice.message_primary or "a publication is not known"

    def _wait(self, timeout_s: float) -> bool:
        """Wait for the socket or a wake-up; return whether the socket is readable."""
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            if descriptor == self._wakeup.fileno():
                self._wakeup.clear()
            else:
                return True
        return False

    def _ended(self, length: int) -> TowpathError:
        if length == _COPY_ENDED:
            result = self._pgconn.get_result()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                if result.error_field(pq.DiagnosticField.SQLSTATE) == _UNKNOWN.encode():
                    return _newer_publication(_server_reason(result))
                return stream_error(result, "reading the stream")
        reason = self._pgconn.get_error_message().strip()
        return SourceUnavailableError(f"the stream ended: {reason or 'server stopped'}")


def stream_error(result: pq.abc.PGresult, doing: str) -> TowpathError:
    """Return our error for a result that ends the stream, or refuses to start it."""
    field = result.error_field(pq.DiagnosticField.SQLSTATE)
    state = field.decode() if field else None
    message = f"{doing}: {_server_reason(result)}"
    return SlotLostError(message) if state in _LOST else failure_of(state, message)


def _server_reason(result: pq.abc.PGresult) -> str:
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"refused"
    return message.decode(errors="replace")


def _newer_publication(reason: str) -> PublicationYoungerError:
    return PublicationYoungerError(
        f"a publication is newer than the log that is to be read: {reason}"
    )
