"""Changes to a table while a snapshot reads it: alterations, locks, lost sessions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from towpath.relay.postgres import chunk_reader
from towpath.relay.postgres.chunk_reader import ChunkReader
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot import protocol
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

CLOCK = SystemClock()
SLOW = "pg_sleep(0.02) is not null"


@pytest.fixture
def table(connection) -> psycopg.Connection:
    """Create a table with a hundred rows; provide a connection."""
    connection.execute("create table s.t (a int primary key, b int, c text)")
    connection.execute(
        "insert into s.t select g, g, 'c' from generate_series(1, 100) g"
    )
    return connection


def wait_for(connection: psycopg.Connection, statement: str) -> None:
    """Wait until a statement returns true."""
    deadline = Deadline(CLOCK, 20.0)
    while not connection.execute(statement).fetchone()[0]:
        assert not deadline.passed(), statement
        CLOCK.wait(0.01)


WAITS_FOR_LOCK = (
    "select exists (select from pg_locks where not granted and database ="
    " (select oid from pg_database where datname = current_database()))"
)
SLEEPS = (
    "select exists (select from pg_stat_activity where datname = current_database()"
    " and wait_event = 'PgSleep')"
)


@contextmanager
def in_background(call: Any) -> Iterator[list[protocol.WorkerFact]]:
    """Call a worker during the block; its result is in the list after the block."""
    results: list[protocol.WorkerFact] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    yield results
    thread.join()


# Alterations made after the first chunk, and the columns of the second chunk.
KEEPING = {
    "alter table s.t add d int default 5": ["a", "b", "c", "d"],
    "alter table s.t drop b": ["a", "c"],
    "alter table s.t rename b to z": ["a", "z", "c"],
    "alter table s.t alter b type bigint": ["a", "b", "c"],
    "alter table s.t alter c type varchar(100)": ["a", "b", "c"],
    "vacuum full s.t": ["a", "b", "c"],
    "alter table s.t rename constraint t_pkey to other": ["a", "b", "c"],
    "create table s.n (like s.t including all)": ["a", "b", "c"],
    "alter table s.t replica identity full": ["a", "b", "c"],
}


@pytest.mark.parametrize("alteration", KEEPING)
def test_an_alteration_that_keeps_the_key_loses_nothing(table, worker, alteration):
    """
    Later chunks have the new columns, and all rows are read (A31).
    """
    plan = worker.plan("s.t")
    first = worker.chunk(plan, max_rows=40).chunk
    table.execute(alteration)
    second = worker.chunk(plan, after_key=first.last_key, max_rows=100).chunk

    assert KEEPING[alteration] == [c.name for c in second.shape.relation.columns]
    assert 100 == len(first.rows) + len(second.rows)


FAILING = {
    "alter table s.t drop constraint t_pkey, add primary key (b)": "key changed",
    "alter table s.t drop a": "no primary key",
    "alter table s.t rename a to z": "key changed",
    "alter table s.t alter a type text": "key changed",
    "drop table s.t": "does not exist",
    "alter table s.t rename to gone": "does not exist",
    "drop schema s cascade": "does not exist",
    "drop table s.t; create table s.t (a int primary key, b int, c text)": "different",
    "create table s.n (like s.t including all); alter table s.t rename to old;"
    " alter table s.n rename to t": "a different table now",
    "alter table s.t set unlogged": "unlogged",
    "drop publication towpath": "not in the publication",
    "create view s.v as select * from s.t; alter table s.t rename to old;"
    " alter view s.v rename to t": "it is a view",
}


@pytest.mark.parametrize("alteration", FAILING)
def test_an_alteration_of_the_key_or_the_table_fails_the_chunk(
    table, worker, alteration
):
    """
    The chunk reports the reason, and never claims that no more rows follow (A31).
    """
    plan = worker.plan("s.t")
    first = worker.chunk(plan, max_rows=40).chunk
    table.execute(alteration)
    failure = worker.chunk(plan, after_key=first.last_key)

    assert not failure.may_recover
    assert FAILING[alteration] in failure.reason


def test_a_changed_order_of_the_key_fails_the_chunk(table, worker):
    """
    Different rows follow the last key, although the key's name and type are the same.
    """
    table.execute("create table s.w (k text primary key)")
    table.execute("insert into s.w values ('a'), ('b'), ('c')")
    plan = worker.plan("s.w")
    first = worker.chunk(plan, max_rows=1).chunk
    table.execute('alter table s.w alter k type text collate "C"')
    failure = worker.chunk(plan, after_key=first.last_key)

    assert ((b"a",), False) == (first.last_key, failure.may_recover)
    assert "key changed" in failure.reason


def test_a_truncated_table_has_no_more_rows(table, worker):
    """
    The stream has the truncate; the next chunk is empty, and is the last one.
    """
    plan = worker.plan("s.t")
    first = worker.chunk(plan, max_rows=40).chunk
    table.execute("truncate s.t")
    second = worker.chunk(plan, after_key=first.last_key).chunk

    assert (40, 0, True) == (len(first.rows), len(second.rows), second.is_last)


def test_the_lock_is_taken_before_the_database_snapshot(table, database, worker):
    """
    Chunks and plans that wait for a rewrite see the rewritten table (A31).
    """
    plan = worker.plan("s.t")
    calls = (
        lambda: worker.chunk(plan).chunk.rows,
        lambda: [worker.plan("s.t").maximum_key],
    )
    seen = []
    for call in calls:
        with psycopg.connect(database) as rewriting:
            rewriting.execute("alter table s.t alter b type bigint using b + 1")
            with in_background(call) as results:
                wait_for(table, WAITS_FOR_LOCK)
                rewriting.commit()
        seen += results

    assert [100, (b"100",)] == [len(seen[0]), seen[1][0]]


def test_a_snapshot_before_the_lock_would_see_an_empty_table(
    table, database, worker, monkeypatch
):
    """
    If the lock were taken after the first query, a rewrite would hide all rows.
    """
    plan = worker.plan("s.t")

    @contextmanager
    def late(self: ChunkReader, shape: Any, ask: Any) -> Iterator[None]:
        with chunk_reader._transaction(self._connection):
            self._connection.execute(query("read_visibility"))
            self._lock(shape, ask)
            yield

    monkeypatch.setattr(ChunkReader, "_snapshot", late)
    with psycopg.connect(database) as rewriting:
        rewriting.execute("alter table s.t alter b type bigint")
        with in_background(lambda: worker.chunk(plan).chunk) as results:
            wait_for(table, WAITS_FOR_LOCK)
            rewriting.commit()

    assert (0, True) == (len(results[0].rows), results[0].is_last)


def test_a_chunk_can_be_retried_after_a_long_alteration(table, database, worker):
    """
    A chunk stops waiting for its lock after two seconds; a later retry reads it.
    """
    plan = worker.plan("s.t")
    with psycopg.connect(database) as altering:
        altering.execute("alter table s.t add d int")
        failures = [worker.chunk(plan), worker.request_plan("s.t")]
    chunk = worker.chunk(plan).chunk

    assert [True, True] == [failure.may_recover for failure in failures]
    assert all("lock timeout" in failure.reason for failure in failures)
    assert (100, 4) == (len(chunk.rows), len(chunk.shape.relation.columns))
    assert 100 == table.execute("select count(*) from s.t").fetchone()[0]


def test_a_chunk_canceled_by_a_timeout_is_reported_as_timed_out(table, database, begin):
    """
    A smaller chunk may still be read (A32). The database's timeout is overridden.
    """
    name = table.info.dbname
    table.execute(f"alter database {name} set statement_timeout = '300ms'")
    worker = begin(database)
    plan = worker.plan("s.t")
    with in_background(lambda: worker.chunk(plan, condition=SLOW)) as results:
        wait_for(table, SLEEPS)
        table.execute(
            "select pg_cancel_backend(pid) from pg_stat_activity"
            " where datname = current_database() and wait_event = 'PgSleep'"
        )
    (failure,) = results
    chunk = worker.chunk(plan, condition=SLOW, max_rows=5).chunk

    assert (True, True) == (failure.may_recover, failure.has_timed_out)
    assert (5, False) == (len(chunk.rows), chunk.is_last)


def test_a_chunk_can_be_read_again_after_its_session_was_ended(table, worker):
    """
    The reader reconnects, and the chunk has all of its rows (A32).
    """
    plan = worker.plan("s.t")
    with in_background(lambda: worker.chunk(plan, condition=SLOW)) as results:
        wait_for(table, SLEEPS)
        table.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and wait_event = 'PgSleep'"
        )
    chunk = worker.chunk(plan).chunk

    assert (True, False) == (results[0].may_recover, results[0].has_timed_out)
    assert 100 == len(chunk.rows)


def test_no_transaction_is_open_longer_than_a_chunk(table, worker):
    """
    Between two chunks, no session blocks vacuum, and each chunk has a new xmin.
    """
    xmins = (
        "select array_agg(backend_xmin::text::bigint) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_xmin is not null and backend_type = 'client backend'"
    )
    plan = worker.plan("s.t")
    during, between = [], []
    for _ in range(3):
        fields = {"condition": SLOW, "max_rows": 10}
        with in_background(lambda fields=fields: worker.chunk(plan, **fields)):
            wait_for(table, SLEEPS)
            during.append(table.execute(xmins).fetchone()[0])
        between.append(table.execute(xmins).fetchone()[0])
        table.execute("update s.t set c = 'd' where a = 1")

    assert [None] * 3 == between
    assert sorted({xmin for [xmin] in during}) == [xmin for [xmin] in during]


def test_open_transactions_of_other_sessions_do_not_delay_a_chunk(
    table, database, worker
):
    """
    The chunk does not see the changes of idle and prepared transactions.
    """
    gid = table.info.dbname
    with psycopg.connect(database) as idle:
        idle.execute("update s.t set c = 'idle' where a = 1")
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("begin")
            other.execute("update s.t set c = 'prepared' where a = 2")
            other.execute(f"prepare transaction '{gid}'")
        rows = worker.rows(worker.plan("s.t"), max_rows=30)
        table.execute(f"rollback prepared '{gid}'")
        idle.rollback()

    assert [b"c"] * 100 == [row[2] for row in rows]
