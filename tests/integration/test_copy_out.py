"""The relay's COPY reader: its lines, its errors, and the connection afterwards."""

from collections.abc import Iterator

import psycopg
import pytest

from towpath.relay.postgres.chunk_reader import copy_out
from towpath.relay.postgres.connect import Connection, connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

MANY = (
    b"copy (select n, repeat('x', n % 500) from generate_series(1, 20000) n) to stdout"
)
MANY_LINES = [b"%d\t%b\n" % (n, b"x" * (n % 500)) for n in range(1, 20_001)]
FAILING = b"copy (select 1 / (500 - n) from generate_series(1, 1000) n) to stdout"


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """Provide a connection of the relay's own type."""
    made = connect(database)
    yield made
    made.close()


def query_result(connection: Connection) -> object:
    """Run a query, to check that the connection can still be used."""
    row = connection.execute("select 42").fetchone()
    return row and row[0]


def test_all_lines_arrive_in_order(connection: Connection):
    """
    Each batch has whole lines, and the connection can be used afterwards.
    """
    batches = list(copy_out(connection, MANY))

    assert len(batches) > 1
    assert (MANY_LINES, 42) == (
        [line for lines in batches for line in lines],
        query_result(connection),
    )


def test_a_line_of_megabytes_arrives_in_one_piece(connection: Connection):
    """
    The reader joins a line from many reads of the socket.
    """
    statement = b"copy (select repeat('ab', 4000000)) to stdout"

    assert [[b"ab" * 4_000_000 + b"\n"]] == list(copy_out(connection, statement))


def test_a_statement_of_megabytes_is_sent_completely(connection: Connection):
    """
    The statement is larger than the socket's buffer.
    """
    keys = b",".join(b"%d" % n for n in range(1_500_000))
    statement = b"copy (select 7 where 7 in (%b)) to stdout" % keys

    assert [[b"7\n"]] == list(copy_out(connection, statement))


def test_an_empty_result_gives_no_lines(connection: Connection):
    """
    A query without rows yields nothing, and the connection can be used afterwards.
    """
    statement = b"copy (select 1 where false) to stdout"

    assert ([], 42) == (list(copy_out(connection, statement)), query_result(connection))


def test_a_late_error_is_raised_after_the_preceding_lines(connection: Connection):
    """
    The error has the class of its SQLSTATE; the connection can be used afterwards.
    """
    lines: list[bytes] = []
    with pytest.raises(psycopg.errors.DivisionByZero):
        lines.extend(line for some in copy_out(connection, FAILING) for line in some)

    assert (499, 42) == (len(lines), query_result(connection))


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (b"copy nothing to stdout", psycopg.errors.UndefinedTable),
        (b"select 1", psycopg.ProgrammingError),
    ],
)
def test_a_statement_without_copy_is_refused(
    connection: Connection, statement: bytes, error: type[psycopg.Error]
):
    """
    Either the server refuses the statement, or it sends no COPY data.
    """
    with pytest.raises(error):
        list(copy_out(connection, statement))

    assert 42 == query_result(connection)


def test_a_copy_can_be_canceled(connection: Connection):
    """
    The reader raises ``QueryCanceled``, and the connection can be used afterwards.
    """
    statement = b"copy (select generate_series(1, 100000000)) to stdout"
    reading = copy_out(connection, statement)
    next(reading)
    connection.cancel_safe()
    with pytest.raises(psycopg.errors.QueryCanceled):
        list(reading)

    assert 42 == query_result(connection)


def test_a_reader_that_ends_early_closes_its_connection(connection: Connection):
    """
    Otherwise the remaining rows would be mistaken for the result of the next query.
    """
    for _ in copy_out(connection, MANY):
        break

    assert connection.closed


def test_a_terminated_session_raises_an_error(connection: Connection, database: str):
    """
    The reader is waiting on the socket when the server ends the session.
    """
    # The server has sent the first line when it sleeps before the third.
    statement = (
        b"copy (select repeat('x', 100000), pg_sleep(case n when 3 then 30 else 0 end)"
        b" from generate_series(1, 3) n) to stdout"
    )
    pid = connection.info.backend_pid
    reading = copy_out(connection, statement)
    next(reading)
    with connect(database) as other:
        other.execute("select pg_terminate_backend(%s)", (pid,))
    with pytest.raises(psycopg.OperationalError):
        list(reading)
