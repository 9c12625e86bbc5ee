"""One exported snapshot of the database for all chunks, on a real server."""

import psycopg
import pytest

from towpath.relay.snapshot import protocol
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

FROZEN = {"view": "view-1"}
HOLDERS = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and state = 'idle in transaction' and pid <> pg_backend_pid()"
)


@pytest.fixture
def table(connection) -> psycopg.Connection:
    """Create two tables with nine rows each; provide a connection."""
    for statement in (
        "create table s.t (a int primary key, b text)",
        "insert into s.t select g, 'b' from generate_series(1, 9) g",
        "create table s.u (a int primary key)",
        "insert into s.u select generate_series(1, 9)",
    ):
        connection.execute(statement)
    return connection


def test_every_chunk_shows_the_state_at_the_first_plan(table, begin):
    """
    No reader sees later changes, and no watermark is written.
    """
    worker = begin(readers=2)
    plan = worker.plan("s.t", **FROZEN)
    table.execute("update s.t set b = 'new'")
    table.execute("insert into s.t values (0, 'new'), (10, 'new')")
    table.execute("delete from s.u")
    [before] = table.execute("select pg_current_wal_insert_lsn()").fetchone()
    marks = {"low_token": None, "high_token": ""}
    rows = worker.rows(plan, max_rows=2, **marks, **FROZEN)
    other = worker.rows(worker.plan("s.u", **FROZEN), max_rows=5, **marks, **FROZEN)
    [written] = table.execute(
        "select pg_current_wal_insert_lsn() - %s::pg_lsn", (before,)
    ).fetchone()

    assert [(b"%d" % a, b"b") for a in range(1, 10)] == rows
    assert (9, True) == (len(other), written < 200)


def test_a_released_snapshot_is_lost_for_good(table, begin):
    """
    A session holds the snapshot until its release; no newer snapshot replaces it.
    """
    worker = begin()
    plan = worker.plan("s.t", **FROZEN)
    held = table.execute(HOLDERS).fetchall()
    worker.worker.submit(protocol.ReleaseSnapshot("view-1"))
    worker.request(protocol.ProbeVisibility())
    clock, deadline = SystemClock(), Deadline(SystemClock(), 20.0)
    while table.execute(HOLDERS).fetchall():
        assert not deadline.passed()
        clock.wait(0.02)
    failure = worker.chunk(plan, **FROZEN)

    assert 1 == len(held)
    assert (True, True) == (failure.may_recover, failure.has_lost_view)


def test_a_snapshot_whose_session_was_ended_is_lost(table, begin):
    """
    The remaining rows are read incrementally.

    A new snapshot would show a different state.
    """
    worker = begin(readers=2)
    plan = worker.plan("s.t", **FROZEN)
    table.execute(f"select pg_terminate_backend(pid, 5000) from ({HOLDERS}) h")  # noqa: S608 - our own
    failures = [worker.chunk(plan, **FROZEN) for _ in range(2)]
    chunk = worker.chunk(plan).chunk

    assert [(True, True)] * 2 == [(f.may_recover, f.has_lost_view) for f in failures]
    assert 9 == len(chunk.rows)


def test_a_reader_that_was_ended_continues_in_the_same_snapshot(table, begin):
    """
    A separate session holds the snapshot, so a reader's session can be recreated.
    """
    worker = begin()
    plan = worker.plan("s.t", **FROZEN)
    table.execute("delete from s.t")
    table.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
        " and state = 'idle'"
    )
    failure = worker.chunk(plan, **FROZEN)
    chunk = worker.chunk(plan, **FROZEN).chunk

    assert (True, False) == (failure.may_recover, failure.has_lost_view)
    assert 9 == len(chunk.rows)


ALTERATIONS = (
    "alter table s.t alter b type varchar(10)",
    "alter table s.t alter b type int using 1",
    "alter table s.t add c int",
    "alter table s.t drop b",
    "alter table s.t rename b to c",
    "truncate s.t",
    "drop table s.t",
    "alter table s.t rename to v",
    "drop table s.t; create table s.t (a int primary key, b text)",
    "alter table s.t rename to old; alter table s.u rename to t",
    "vacuum full s.t",
)


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_altered_table_is_no_longer_in_the_snapshot(table, begin, alteration):
    """
    A rewritten table would appear empty, and a new table did not exist at that time.
    """
    worker = begin()
    plan = worker.plan("s.t", **FROZEN)
    table.execute(alteration)
    failure = worker.chunk(plan, **FROZEN)
    others = worker.request_plan("s.t" if "old" in alteration else "s.u", **FROZEN)

    assert (True, True) == (failure.may_recover, failure.has_lost_view)
    assert ("old" in alteration) == getattr(others, "has_lost_view", False)


@pytest.mark.parametrize(
    "alteration",
    [
        "analyze s.t",
        "vacuum s.t",
        "create index on s.t (b)",
        "comment on table s.t is 'kept'",
    ],
)
def test_maintenance_leaves_a_table_in_the_snapshot(table, begin, alteration):
    """
    An alteration that was rolled back before the export has no effect, either.
    """
    worker = begin()
    table.execute("begin; alter table s.t add c int; rollback")
    plan = worker.plan("s.t", **FROZEN)
    table.execute("delete from s.t where a = 5")
    table.execute(alteration)
    chunk = worker.chunk(plan, **FROZEN).chunk

    assert 9 == len(chunk.rows)


PARTITIONS = {
    "truncate s.p1": True,
    "drop table s.p1": True,
    "alter table s.p detach partition s.p1": True,
    "create table s.p3 partition of s.p for values in (3)": True,
    "vacuum full s.p1": True,
    "insert into s.p values (4, 2)": False,
}


@pytest.mark.parametrize("alteration", PARTITIONS)
def test_an_altered_partition_removes_its_table_from_the_snapshot(
    table, begin, alteration
):
    """
    Otherwise, rows of the altered partition would be missing.
    """
    for statement in (
        "create table s.p (a int, b int, primary key (a, b)) partition by list (b)",
        "create table s.p1 partition of s.p for values in (1)",
        "create table s.p2 partition of s.p for values in (2)",
        "insert into s.p select g, 1 + g % 2 from generate_series(1, 9) g",
        "alter publication towpath set (publish_via_partition_root)",
    ):
        table.execute(statement)
    worker = begin()
    plan = worker.plan("s.p", **FROZEN)
    table.execute(alteration)
    fact = worker.chunk(plan, **FROZEN)

    assert PARTITIONS[alteration] == getattr(fact, "has_lost_view", False)
    assert PARTITIONS[alteration] or 9 == len(fact.chunk.rows)


@pytest.mark.parametrize("terms", [FROZEN, {}])
def test_a_select_needs_no_lock_on_a_partition_that_it_does_not_read(
    table, begin, terms
):
    """
    The server locks partitions that a SELECT may read; a detached one is detected.
    """
    for statement in (
        "create table s.p (a int, b int) partition by list (b)",
        "create table s.p1 partition of s.p for values in (1)",
        "create table s.p2 partition of s.p for values in (2)",
        "insert into s.p select g, 1 + g % 2 from generate_series(1, 9) g",
    ):
        table.execute(statement)
    worker = begin()
    select = "select p.a, 'b' as b from s.p p where p.b = 2"
    plan = worker.plan("s.t", select=select, **terms)
    chunk = worker.chunk(plan, select=select, **terms).chunk
    table.execute("alter table s.p detach partition s.p2")
    after = worker.chunk(plan, select=select, **terms)

    assert [(b"%d" % a, b"b") for a in (1, 3, 5, 7, 9)] == list(chunk.rows)
    if terms:
        assert after.has_lost_view
    else:
        assert [] == list(after.chunk.rows)


def test_a_snapshot_of_a_different_session_can_be_adopted(table, database, begin):
    """
    A reader can also use the snapshot that the creation of a slot exports.
    """
    worker = begin()
    with psycopg.connect(database) as exporter:
        exporter.execute("set transaction isolation level repeatable read")
        [name] = exporter.execute("select pg_export_snapshot()").fetchone()
        worker.worker.adopt("view-1", name)
        table.execute("delete from s.t")
        plan = worker.plan("s.t", **FROZEN)
        chunk = worker.chunk(plan, **FROZEN).chunk
    lost = worker.chunk(plan, **FROZEN)

    assert (9, True) == (len(chunk.rows), lost.has_lost_view)


def test_a_configured_select_is_read_instead_of_the_table(table, worker):
    """
    The rows have the table's columns; the SELECT may end with a comment.
    """
    select = (
        "select t.a, upper(t.b) as b from s.t t join s.u u on u.a = t.a - 2"
        " where t.a < 8 -- few"
    )
    plan = worker.plan("s.t", select=select, **FROZEN)
    rows = worker.rows(plan, max_rows=2, select=select, **FROZEN)

    assert ((b"7",), [(b"%d" % a, b"B") for a in range(3, 8)]) == (
        plan.maximum_key,
        rows,
    )
    assert 9 == table.execute("select count(*) from s.t").fetchone()[0]


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("select a from", "syntax error"),
        ("select a from s.nonsense", 'relation "s.nonsense" does not exist'),
        ("select b from s.t", 'column "a" does not exist'),
        ("select null::int as a, b from s.t", "a row has no key"),
    ],
)
def test_an_invalid_select_is_refused(table, worker, select, reason):
    """
    The failure has the server's reason.
    """
    assert 9 == table.execute("select count(*) from s.t").fetchone()[0]
    failure = worker.request_plan("s.t", select=select, **FROZEN)

    assert (False, False) == (failure.may_recover, failure.has_lost_view)
    assert reason in failure.reason


def test_a_select_that_returns_a_key_twice_is_refused(table, worker):
    """
    Otherwise, chance would decide whether the second row is skipped.
    """
    select = "select t.a, t.b from s.t t, s.u u where u.a < 3"
    plan = worker.plan("s.t", select=select, **FROZEN)
    failure = worker.chunk(plan, select=select, max_rows=1, **FROZEN)

    assert not failure.may_recover
    assert "two rows with the key ['1']" in failure.reason
    assert 9 == table.execute("select count(*) from s.t").fetchone()[0]


def test_a_select_that_makes_a_key_column_null_is_refused(table, begin):
    """
    The highest composite key does not reveal the row; its record would have no key.
    """
    for statement in (
        "create table s.k (a int, b int, primary key (a, b))",
        "insert into s.k select g, g from generate_series(1, 3) g",
    ):
        table.execute(statement)
    worker = begin()
    select = "select a, nullif(b, 2) as b from s.k"
    plan = worker.plan("s.k", select=select, **FROZEN)
    failure = worker.chunk(plan, select=select, **FROZEN)

    assert not failure.may_recover
    assert "a row has no key" in failure.reason


@pytest.mark.parametrize("terms", [FROZEN, {}])
def test_a_select_that_lacks_a_column_is_refused(table, worker, terms):
    """
    Its result would not be a row of the table.
    """
    plan = worker.plan("s.t", select="select a from s.t", **terms)
    failure = worker.chunk(plan, select="select a from s.t", **terms)

    assert not failure.may_recover
    assert 'column "b" does not exist' in failure.reason
    assert 9 == table.execute("select count(*) from s.t").fetchone()[0]


def test_a_rewrite_of_a_joined_table_of_a_select_loses_the_snapshot(table, begin):
    """
    Otherwise, the rows of the SELECT would disappear.
    """
    worker = begin()
    select = "select t.* from s.t t join s.u u using (a)"
    plan = worker.plan("s.t", select=select, **FROZEN)
    before = worker.chunk(plan, select=select, **FROZEN).chunk
    table.execute("alter table s.u alter a type bigint")
    failure = worker.chunk(plan, select=select, **FROZEN)

    assert (9, True) == (len(before.rows), failure.has_lost_view)
