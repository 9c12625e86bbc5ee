"""
One connection to one server, with calls in flight while more are prepared.

The server answers calls in the order in which they were sent. A pipeline keeps its
connection from the first call to ``release``: if the server fails in between, the
connection breaks, an error is raised, and no call in flight counts as written.

Hot path: calls arrive packed; only small integers are parsed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, TypeVar

import redis
import structlog

from towpath.sinks.targets.cache.client import NO_FUNCTION

# Enough work for the server while the next slice of a batch is decoded, about 50 ms.
# Much more only costs memory; much less makes one side wait for the other.
BYTES_IN_FLIGHT: Final = 2 * 1024 * 1024

# Small calls are sent together: one system call per call would cost more than the call.
_BYTES_PER_SEND: Final = 64 * 1024

_log = structlog.get_logger("towpath.sinks.cache")

Context = TypeVar("Context")


class _SentCall(NamedTuple, Generic[Context]):
    packed: bytes
    context: Context
    is_resent: bool = False


class RedisPipeline(Generic[Context]):
    """Calls to the guard on one server, each with its caller's context."""

    def __init__(self, client: Any, load: Callable[[], None]) -> None:  # noqa: ANN401 - redis-py's
        """
        Store the parameters; nothing is opened yet.

        Args:
            client: The server's client.
            load: Loads the guard if the server has lost it.
        """
        self._client = client
        self._load = load
        self._connection: Any = None
        self._pending: deque[_SentCall[Context]] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._bytes_in_flight = 0

    def acquire(self) -> None:
        """Take a working connection, unless the pipeline already has one."""
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()

    def send(self, packed: bytes, context: Context) -> None:
        """Send a call; ``responses`` waits for its response."""
        self._enqueue(_SentCall(packed, context))

    def responses(self, leave_bytes: int = 0) -> Iterator[tuple[Context, Any]]:
        """Yield responses until at most ``leave_bytes`` are in flight."""
        unanswered: list[_SentCall[Context]] = []
        while self._pending and self._bytes_in_flight > leave_bytes:
            self._flush()
            sent = self._pending.popleft()
            self._bytes_in_flight -= len(sent.packed)
            response = self._response(sent)
            if response is None:
                unanswered.append(sent)
            else:
                yield sent.context, response
        if unanswered:
            yield from self._resend(unanswered)

    def release(self) -> None:
        """Return the connection to its pool; no call may be in flight."""
        if self._connection is not None:
            self._client.connection_pool.release(self._connection)
            self._connection = None

    def drop(self) -> None:
        """Close the connection, and discard all calls in flight."""
        if self._connection is not None:
            self._connection.disconnect()
        self.release()
        self._pending.clear()
        self._unsent.clear()
        self._unsent_bytes = self._bytes_in_flight = 0

    def _enqueue(self, sent: _SentCall[Context]) -> None:
        self._pending.append(sent)
        self._unsent.append(sent.packed)
        self._unsent_bytes += len(sent.packed)
        self._bytes_in_flight += len(sent.packed)
        if self._unsent_bytes >= _BYTES_PER_SEND:
            self._flush()

    def _flush(self) -> None:
        if self._unsent:
            with self._dropping_on_failure():
                self._connection.send_packed_command(
                    (b"".join(self._unsent),), check_health=False
                )
            self._unsent.clear()
            self._unsent_bytes = 0

    def _response(self, sent: _SentCall[Context]) -> Any:  # noqa: ANN401 - redis-py's
        """Read one response; ``None`` if the server does not know the guard."""
        with self._dropping_on_failure():
            try:
                return self._connection.read_response()
            except redis.ResponseError as error:
                if NO_FUNCTION not in str(error) or sent.is_resent:
                    raise
                return None

    def _resend(
        self, unanswered: Sequence[_SentCall[Context]]
    ) -> Iterator[tuple[Context, Any]]:
        _log.warning("cache lost its guard function: it is loaded again")
        with self._dropping_on_failure():
            self._load()
        for sent in unanswered:
            self._enqueue(sent._replace(is_resent=True))
        yield from self.responses()

    @contextmanager
    def _dropping_on_failure(self) -> Iterator[None]:
        """Drop the connection if anything fails: responses would be out of step."""
        try:
            yield
        except BaseException:
            self.drop()
            raise


def packed(function: str, keys: Sequence[str], arguments: Sequence[bytes]) -> bytes:
    """Return a call of a function in the server's protocol."""
    # A key of another program, as a scan returns it, need not be valid text.
    encoded = [key.encode(errors="surrogateescape") for key in keys]
    strings = b"".join([part for key in encoded for part in _bulk_string(key)])
    return packed_call(function, len(keys), strings, arguments)


def packed_call(
    function: str, count: int, keys: bytes, arguments: Sequence[bytes]
) -> bytes:
    """Return a call whose keys are already bulk strings of the protocol."""
    parts = [b"*%d\r\n" % (3 + count + len(arguments))]
    for text in (b"FCALL", function.encode(), b"%d" % count):
        parts += _bulk_string(text)
    parts.append(keys)
    for argument in arguments:
        parts += _bulk_string(argument)
    return b"".join(parts)


def _bulk_string(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a bulk string in parts, so that a long text is copied only once."""
    return b"$%d\r\n" % len(text), text, b"\r\n"
