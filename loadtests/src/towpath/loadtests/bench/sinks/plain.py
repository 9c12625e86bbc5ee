"""
Beside the cache: plain writes of the same hashes, pipelined, without a guard.

A ceiling, and nobody's goal: the commands are packed before the clock runs, and answers
are counted, not parsed. So it is the server's own speed, its file included.
"""

import socket
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.plan import Bench
from towpath.loadtests.bench.sinks.rows import A_POSITION, COLUMNS, POSITION, pieces
from towpath.loadtests.bench.snapshot.source import ItemSource

_ROWS_AT_ONCE: Final = 10_000
# A ceiling needs no more, and each row takes as much of the memory as the sink's own.
_MOST_ROWS: Final = 500_000
_ANSWER_WITHIN_S: Final = 30.0
_ANSWER_ENDS: Final = b"\r\n"


def measure(bench: Bench, source: ItemSource, url: str) -> Figures:
    """
    Write the table's first rows beside the sink's, and return how fast that went.

    Raises:
        BenchError: The server refuses one, or does not answer.
    """
    rows = min(bench.options.rows, _MOST_ROWS)
    tell = bench.screen.begin("plain HSET", rows)
    address = urlsplit(url)
    elapsed_s, done = 0.0, 0
    place = (address.hostname or "", address.port or 0)
    with socket.create_connection(place, _ANSWER_WITHIN_S) as connection:
        for piece in pieces(source.texts(), _ROWS_AT_ONCE):
            packed = b"".join(map(command, piece))
            began_s = bench.clock.monotonic_s()
            connection.sendall(packed)
            _answers(connection, len(piece))
            elapsed_s += bench.clock.monotonic_s() - began_s
            done += len(piece)
            tell(done)
            if done >= rows:
                break
    return {"rows_per_s": done / elapsed_s}


def command(row: Sequence[str]) -> bytes:
    """Pack the HSET of one row, as the protocol has it on the wire."""
    named = zip((*COLUMNS, POSITION), (*row, A_POSITION), strict=True)
    fields = (word for pair in named for word in pair)
    return packed(("HSET", f"plain:{row[0]}", *fields))


def packed(words: Iterable[str]) -> bytes:
    """Pack one command."""
    raw = [word.encode() for word in words]
    body = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in raw)
    return b"*%d\r\n%b" % (len(raw), body)


def _answers(connection: socket.socket, count: int) -> None:
    while count:
        try:
            answer = connection.recv(1 << 16)
        except TimeoutError:
            answer = b""
        if not answer or b"-" in answer:
            message = f"the cache does not take plain writes: {answer[:200]!r}"
            raise BenchError(message)
        count -= answer.count(_ANSWER_ENDS)
