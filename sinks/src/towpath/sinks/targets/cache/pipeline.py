"""
One connection to one server, with calls on their way while more are prepared.

The server answers in the order in which it was asked. A lane keeps its connection from
the first call to ``rest``: if the server goes away in between, the connection breaks,
the failure is told, and nothing that it may have lost counts as written.

Hot path: calls come packed; nothing is parsed but small integers.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, TypeVar

import redis
import structlog

from towpath.sinks.targets.cache.client import NO_FUNCTION

# The server has work while the next portion of a batch is decoded, some 50 ms. Much
# more only takes memory; much less has one side wait for the other.
BYTES_IN_FLIGHT: Final = 2 * 1024 * 1024

# Small calls go out together: a system call each would cost more than they do.
_BYTES_PER_SEND: Final = 64 * 1024

_log = structlog.get_logger("towpath.sinks.cache")

About = TypeVar("About")


class _Sent(NamedTuple, Generic[About]):
    packed: bytes
    about: About
    is_second: bool = False


class RedisPipeline(Generic[About]):
    """Calls of the guard to one server, and what they were about."""

    def __init__(self, client: Any, load: Callable[[], None]) -> None:  # noqa: ANN401 - redis-py's
        """
        Describe a lane; nothing is opened yet.

        Args:
            client: The server's client.
            load: Loads the guard, should the server have lost it.
        """
        self._client = client
        self._load = load
        self._connection: Any = None
        self._waiting: deque[_Sent[About]] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._flying_bytes = 0

    def begin(self) -> None:
        """Take a connection that works, unless there is one since the last ``rest``."""
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()

    def ask(self, packed: bytes, about: About) -> None:
        """Send a call; its answer is waited for later."""
        self._ask(_Sent(packed, about))

    def answers(self, leave_bytes: int = 0) -> Iterator[tuple[About, Any]]:
        """Wait for answers until no more than this is on its way."""
        unknown: list[_Sent[About]] = []
        while self._waiting and self._flying_bytes > leave_bytes:
            self._send()
            sent = self._waiting.popleft()
            self._flying_bytes -= len(sent.packed)
            answer = self._answer(sent)
            if answer is None:
                unknown.append(sent)
            else:
                yield sent.about, answer
        if unknown:
            yield from self._asked_again(unknown)

    def rest(self) -> None:
        """Give the connection back; everything was answered."""
        if self._connection is not None:
            self._client.connection_pool.release(self._connection)
            self._connection = None

    def drop(self) -> None:
        """Break the connection, with whatever is still on its way."""
        if self._connection is not None:
            self._connection.disconnect()
        self.rest()
        self._waiting.clear()
        self._unsent.clear()
        self._unsent_bytes = self._flying_bytes = 0

    def _ask(self, sent: _Sent[About]) -> None:
        self._waiting.append(sent)
        self._unsent.append(sent.packed)
        self._unsent_bytes += len(sent.packed)
        self._flying_bytes += len(sent.packed)
        if self._unsent_bytes >= _BYTES_PER_SEND:
            self._send()

    def _send(self) -> None:
        if self._unsent:
            with self._dropping():
                self._connection.send_packed_command(
                    (b"".join(self._unsent),), check_health=False
                )
            self._unsent.clear()
            self._unsent_bytes = 0

    def _answer(self, sent: _Sent[About]) -> Any:  # noqa: ANN401 - redis-py's
        """Read one answer; ``None`` if the server does not know the guard."""
        with self._dropping():
            try:
                return self._connection.read_response()
            except redis.ResponseError as error:
                if NO_FUNCTION not in str(error) or sent.is_second:
                    raise
                return None

    def _asked_again(
        self, unknown: Sequence[_Sent[About]]
    ) -> Iterator[tuple[About, Any]]:
        _log.warning("the cache lost its guard function: loading it again")
        with self._dropping():
            self._load()
        for sent in unknown:
            self._ask(sent._replace(is_second=True))
        yield from self.answers()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Give the connection up if anything fails: answers would be out of step."""
        try:
            yield
        except BaseException:
            self.drop()
            raise


def packed(function: str, keys: Sequence[str], arguments: Sequence[bytes]) -> bytes:
    """Write a call of a function as the server reads it."""
    words = b"".join([part for key in keys for part in _word(key.encode())])
    return packed_words(function, len(keys), words, arguments)


def packed_words(
    function: str, count: int, keys: bytes, arguments: Sequence[bytes]
) -> bytes:
    """Write a call of so many keys, which are words of the protocol already."""
    parts = [b"*%d\r\n" % (3 + count + len(arguments))]
    for word in (b"FCALL", function.encode(), b"%d" % count):
        parts += _word(word)
    parts.append(keys)
    for argument in arguments:
        parts += _word(argument)
    return b"".join(parts)


def _word(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Write a word, in parts: it may be long, and is copied once."""
    return b"$%d\r\n" % len(text), text, b"\r\n"
