"""
COPY to us: the lines of one statement, as libpq has them. Hot path.

Whatever has arrived is taken at once, and while nothing has the thread sleeps on the
socket: a Python call per line through the driver costs more than the line does.
"""

import select
from collections.abc import Iterator
from typing import Final

import psycopg
from psycopg import pq

from towpath.relay.postgres.connect import Connection

_COPY_ENDED: Final = -1


def copy_out(connection: Connection, statement: bytes) -> Iterator[list[bytes]]:
    """
    Run ``copy ... to stdout``; give its lines, those that arrived together at a time.

    Whoever ends early leaves the connection of no use: it is closed.

    Raises:
        psycopg.Error: The server refuses, cancels, or is gone.
    """
    pgconn = connection.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    has_ended = False
    try:
        pgconn.send_query(statement)
        result = _result(pgconn, poll)
        if result is not None and result.status == pq.ExecStatus.COPY_OUT:
            yield from _batches(pgconn, poll)
            result = _result(pgconn, poll)
        _read_to_the_end(pgconn, poll)
        has_ended = True
    finally:
        if not has_ended:
            connection.close()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise _error(result)


def _batches(pgconn: pq.abc.PGconn, poll: select.poll) -> Iterator[list[bytes]]:
    get_copy_data = pgconn.get_copy_data
    while True:
        lines: list[bytes] = []
        add = lines.append
        length, data = get_copy_data(1)
        while length > 0:
            add(bytes(data))
            length, data = get_copy_data(1)
        if lines:
            yield lines
        if length == _COPY_ENDED:
            return
        poll.poll()
        pgconn.consume_input()


def _result(pgconn: pq.abc.PGconn, poll: select.poll) -> pq.abc.PGresult | None:
    """Return the next result, asleep until it is there; None after the last."""
    while pgconn.is_busy():
        poll.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def _read_to_the_end(pgconn: pq.abc.PGconn, poll: select.poll) -> None:
    while _result(pgconn, poll) is not None:
        pass


def _error(result: pq.abc.PGresult | None) -> psycopg.Error:
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return psycopg.ProgrammingError("the statement is no copy to us")
    return psycopg.errors.error_from_result(result)
