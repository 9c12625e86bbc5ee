"""The snapshot worker on a real server: plans, chunks, refusals and stored answers."""
# ruff: noqa: ISC004 - SQL in strings over several lines

import threading

import psycopg
import pytest
from structlog.testing import capture_logs

from support.copying import replace
from towpath.relay.errors import NotPreparedError
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.shape import key_of
from towpath.relay.snapshot.sql import decode_lines
from towpath.relay.snapshot.stored import StoredTable
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

KEYS = {
    "integer": ("bigint", "select g from generate_series(-20, 20) g"),
    "uuid": ("uuid", "select md5(g::text)::uuid from generate_series(1, 41) g"),
    "text": (
        'text collate "C"',
        "select chr(g) || 'x''\\\t' from generate_series(60, 100) g",
    ),
    "default collation": (
        "text",
        "select repeat('aB-é ', g) || g from generate_series(1, 41) g",
    ),
    "padded": ("char(8)", "select 'k' || g from generate_series(1, 41) g"),
    "enum": ("s.mood", "select unnest(enum_range(null::s.mood))"),
    "numeric": (
        "numeric",
        "select g / 3.0 from generate_series(-19, 19) g"
        " union values ('NaN'::numeric), ('Infinity'), ('-Infinity')",
    ),
    "timestamps": (
        "timestamptz",
        "select '2026-03-29 00:30Z'::timestamptz + g * interval '25 min 0.000001 s'"
        " from generate_series(1, 39) g"
        " union values ('infinity'::timestamptz), ('-infinity')",
    ),
    "double": (
        "double precision",
        "select g / 7.0 from generate_series(-19, 19) g"
        " union values ('NaN'::float8), ('-Infinity')",
    ),
    "bytea": (
        "bytea",
        "select decode(md5(g::text), 'hex') from generate_series(1,41)g",
    ),
    "libc": (
        'varchar(30) collate "C.utf8"',
        "select substr('aAbBäÄßz-_ 9', 1 + g % 12, 1) || g"
        " from generate_series(1, 41) g",
    ),
    "dates": (
        "date",
        "select '2026-01-01'::date + g from generate_series(1, 39) g"
        " union values ('infinity'::date), ('-infinity')",
    ),
    "array": ("int[]", "select array[g % 3, g, null] from generate_series(1, 41) g"),
    "inet": ("inet", "select '10.0.0.0'::inet + g * 77 from generate_series(1, 41) g"),
    "domain": ("s.code", "select 'c' || g from generate_series(1, 41) g"),
    "boolean": ("boolean", "values (true), (false)"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type_are_read_in_their_own_order(connection, worker, kind):
    """
    In chunks of three, every row appears once, in the server's key order (B21, B23).
    """
    connection.execute("create type s.mood as enum ('z', 'b', 'a', 'y', 'x')")
    connection.execute("create domain s.code as text check (value like 'c%')")
    type_name, rows = KEYS[kind]
    connection.execute(f"create table s.t (k {type_name} primary key)")
    connection.execute(f"insert into s.t {rows}")
    plan = worker.plan("s.t")
    with connection.cursor().copy("copy (select k from s.t order by k) to stdout") as c:
        expected = decode_lines(bytes(line) for line in c)
    found = worker.rows(plan, max_rows=3)

    assert expected == found


def test_composite_keys_are_compared_as_rows(connection, worker):
    """
    All rows are read, even if key columns are not in the table's order (A19, B22).
    """
    connection.execute("create table s.t (v text, b int, a text, primary key (a, b))")
    connection.execute(
        "insert into s.t select 'v', b, a from generate_series(1, 9) b,"
        " unnest(array['x', 'y', 'z']) a"
    )
    plan = worker.plan("s.t")
    rows = worker.rows(plan, max_rows=4)

    assert (b"z", b"9") == plan.maximum_key
    assert [(a, b"%d" % b) for a in (b"x", b"y", b"z") for b in range(1, 10)] == [
        key_of(row, plan.shape.relation.key) for row in rows
    ]


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["create table s.t (a int)"], "no primary key"),
        (["create unlogged table s.t (a int primary key)"], "unlogged"),
        (["create view s.t as select 1 as a"], "it is a view"),
        (
            [
                "create table s.t (a int primary key)",
                "alter table s.t replica identity nothing",
            ],
            "replica identity",
        ),
        (
            [
                "create table s.t (a int primary key, b int not null unique)",
                "alter table s.t replica identity using index t_b_key",
            ],
            "replica identity",
        ),
        (
            [
                "create table s.t (a int primary key)",
                "drop publication towpath",
                "create publication towpath for table towpath.signal",
            ],
            "not in the publication",
        ),
        (["create table s.other (a int primary key)"], "no such table"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(connection, worker, statements, reason):
    """
    Each kind of table that a snapshot cannot read is refused with a reason.
    """
    for statement in statements:
        connection.execute(statement)
    inspected = worker.request(protocol.InspectTables("s", ("s.t",)))

    assert {} == inspected.shapes
    assert reason in inspected.refusals["s.t"]


def test_a_chunk_has_the_columns_of_the_stream(connection, worker):
    """
    Generated, dropped and unpublished columns are not read.
    """
    connection.execute(
        "create table s.t (gone int, a int primary key, b text, c text,"
        " g int generated always as (a * 2) stored)"
    )
    connection.execute("alter table s.t drop column gone")
    connection.execute("drop publication towpath")
    connection.execute("create publication towpath for table s.t (a, b)")
    plan = worker.plan("s.t")

    assert ["a", "b"] == [column.name for column in plan.shape.relation.columns]


def test_values_are_read_in_their_text_form(connection, worker):
    """
    NULL, empty strings, control characters and backslashes are as in the stream.
    """
    connection.execute("create table s.t (a int primary key, b text, c bytea)")
    connection.execute(
        "insert into s.t values (1, null, null), (2, '', ''), (3, %s, %s)",
        ("\\N\ttab\nline \\ é", b"\x00\xff\\"),
    )
    chunk = worker.chunk(worker.plan("s.t")).chunk

    assert [
        (b"1", None, None),
        (b"2", b"", b"\\x"),
        (b"3", "\\N\ttab\nline \\ é".encode(), b"\\x00ff5c"),
    ] == chunk.rows


def test_partitions_are_read_with_their_root(connection, worker):
    """
    A partitioned table is one table; a child by plain inheritance is separate (B32).
    """
    connection.execute(
        "create table s.t (a int, b int, primary key (a, b)) partition by list (b)"
    )
    connection.execute("create table s.t1 partition of s.t for values in (1)")
    connection.execute("create table s.t2 partition of s.t default")
    connection.execute("insert into s.t select g, g % 3 from generate_series(1, 9) g")
    connection.execute("create table s.parent (a int primary key)")
    connection.execute("create table s.child () inherits (s.parent)")
    connection.execute("insert into s.parent values (1)")
    connection.execute("insert into s.child values (2)")
    connection.execute("alter publication towpath set (publish_via_partition_root)")
    counts = [
        len(worker.chunk(worker.plan(name)).chunk.rows) for name in ("s.t", "s.parent")
    ]

    assert [9, 1] == counts


def test_a_chunk_ends_at_its_byte_limit(connection, begin):
    """
    Large rows make a chunk shorter instead of using more memory; none is lost (B31).
    """
    connection.execute("create table s.t (a int primary key, b text)")
    connection.execute(
        "insert into s.t select g, repeat('x', 100000) from generate_series(1, 200) g"
    )
    worker = begin(max_chunk_bytes=1_000_000)
    plan = worker.plan("s.t")
    first = worker.chunk(plan).chunk
    rows = worker.rows(plan, max_rows=1000)

    assert (10, False, 200) == (len(first.rows), first.is_last, len(rows))


def test_listed_keys_are_read_anywhere_in_the_table(connection, worker):
    """
    The chunk has the rows that exist, and is the last one.
    """
    connection.execute("create table s.t (a int primary key)")
    connection.execute("insert into s.t select generate_series(1, 9)")
    keys = ((b"7",), (b"70",), (b"2",))
    chunk = worker.chunk(worker.plan("s.t"), keys=keys, after_key=(b"8",)).chunk

    assert ([(b"2",), (b"7",)], True) == (chunk.rows, chunk.is_last)


def test_listed_composite_keys_are_looked_up_as_rows(connection, worker):
    """
    Each column is compared with its own type and collation.
    """
    connection.execute(
        'create table s.t (b char(3), a text collate "C", n numeric, v int,'
        " primary key (a, b, n))"
    )
    connection.execute(
        "insert into s.t select 'k' || g, 'A' || g, g / 4.0, g"
        " from generate_series(1, 9) g"
    )
    found = (b"A5", b"k5 ", b"1.2500000000000000")
    keys = (found, (b"a5", b"k5", b"1.25"), (b"A5", b"k6", b"1.25"))
    chunk = worker.chunk(worker.plan("s.t"), keys=keys).chunk

    assert [found] == [key_of(row, (1, 0, 2)) for row in chunk.rows]


KEYS_OF_TABLE = [
    ("bigint", [["007"], [8], ["8"]], [b"7", b"8"]),
    ("numeric(9,2)", [["1.5"]], [b"1.50"]),
    ("char(4)", [["ab"]], [b"ab  "]),
    ("boolean", [["yes"], [False]], [b"t", b"f"]),
    ("timestamptz", [["2026-03-29T02:30+02:00"]], [b"2026-03-29 00:30:00+00"]),
    ("uuid", [["A" * 32]], ["-".join("a" * n for n in (8, 4, 4, 4, 12)).encode()]),
    ('text collate "C"', [["it's\\\t"]], [b"it's\\\t"]),
    ("bytea", [["\\x0aFF"]], [b"\\x0aff"]),
]


@pytest.mark.parametrize(("kind", "listed", "keys"), KEYS_OF_TABLE)
def test_listed_keys_get_the_text_form_of_the_stream(
    connection, worker, kind, listed, keys
):
    """
    The values in a signal are converted to the text that the stream has for the key.
    """
    connection.execute(f"create table s.t (a {kind} primary key)")
    requested = tuple((str(value).encode(),) for (value,) in listed)
    inspected = worker.request(protocol.InspectTables("s", ("s.t",), requested))

    assert ({}, tuple((key,) for key in keys)) == (inspected.refusals, inspected.keys)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ((b"1",), r"its key is (b, a), which ['1'] does not fit"),
        ((b"1", b"x", b"y"), "does not fit"),
        ((b"1", b"x"), 'invalid input syntax for type integer: "x"'),
        ((b"happy", b"1"), "does not fit this table"),
        ((b"2", b"-1"), "violates check constraint"),
    ],
)
def test_invalid_listed_keys_are_refused(connection, worker, key, reason):
    """
    Wrong numbers of columns and invalid values are reported up front.
    """
    connection.execute("create domain s.small as int check (value > 0)")
    connection.execute("create table s.t (a s.small, b int, primary key (b, a))")
    inspected = worker.request(protocol.InspectTables("s", ("s.t",), (key,)))

    assert {} == inspected.shapes
    assert reason in inspected.refusals["s.t"]


def test_a_key_request_is_stored_and_read_back(connection, worker):
    """
    Its keys are kept until they are read; a repeated request is stored once.
    """
    connection.execute("create table s.t (a int primary key)")
    oid = worker.plan("s.t").shape.relation.oid
    table = StoredTable(
        "towpath-keys-1",
        "s.t",
        0,
        "queued",
        oid,
        pending_keys=((b"7",), (b"8",)),
        estimated_rows=2,
        asked_keys=2,
        asked_until="0000000000000010.0000000004",
    )
    stored = [
        worker.request(protocol.StoreKeys(table.snapshot_id, (table,), 0)) for _ in "12"
    ]
    running = replace(table, state="running", pending_keys=None, error="away")
    worker.request(protocol.SaveProgress(1, running))
    effect = protocol.ReadPlan(2, "s.t", oid, keys_of="towpath-keys-1")
    plan = worker.request(effect).plan
    resumed = worker.worker.read_stored()

    assert [protocol.KeysStored("towpath-keys-1")] * 2 == stored
    assert (((b"7",), (b"8",)), None) == (plan.keys, plan.maximum_key)
    assert protocol.UnfinishedRead((running,), table.asked_until) == resumed


def test_a_position_of_a_different_server_hides_no_key_requests(connection, worker):
    """
    A dump copies stored requests, too; a position beyond the end of the WAL is ignored.

    The request itself is kept. Positions that precede the end of the WAL count.
    """
    connection.execute(
        "insert into towpath.snapshot (snapshot_id, collection, ordinal, state,"
        " asked_keys, asked_until, pending_keys, relay) values"
        " ('towpath-keys-1', 's.t', 0, 'queued', 1,"
        " '0ffffffffffffff8.0000000003', '[[\"7\"]]', 'towpath'),"
        " ('towpath-keys-2', 's.t', 0, 'completed', 1,"
        " '0000000000000010.0000000004', '[]', 'towpath')"
    )
    read = worker.worker.read_stored()

    assert ("0000000000000010.0000000004", ["towpath-keys-1"]) == (
        read.asked_until,
        [table.snapshot_id for table in read.tables],
    )
    assert read == worker.worker.read_stored()


def test_a_late_key_request_of_a_dead_process_is_replaced(connection, worker):
    """
    A dead process may store a request late, under the same id, with different keys.
    """
    connection.execute("create table s.t (a int primary key)")
    oid = worker.plan("s.t").shape.relation.oid
    dead = StoredTable(
        "towpath-keys-1", "s.t", 0, "queued", oid, pending_keys=((b"1",),), asked_keys=1
    )
    ours = replace(dead, pending_keys=((b"1",), (b"2",)), asked_keys=2)
    worker.request(protocol.StoreKeys("towpath-keys-1", (dead,), 0))
    worker.request(protocol.SaveProgress(1, replace(dead, state="completed", chunks=1)))
    worker.request(protocol.StoreKeys("towpath-keys-1", (ours,), 0))
    plan = worker.request(
        protocol.ReadPlan(2, "s.t", oid, keys_of="towpath-keys-1")
    ).plan
    state = connection.execute("select state, chunks from towpath.snapshot").fetchone()

    assert (ours.pending_keys, ("queued", 0)) == (plan.keys, state)


def test_stored_keys_that_no_longer_fit_the_table_fail(connection, worker):
    """
    After a change of the primary key, values of the old key are refused.
    """
    connection.execute("create table s.t (a int, b int, primary key (a, b))")
    oid = worker.plan("s.t").shape.relation.oid
    table = StoredTable(
        "towpath-keys-1", "s.t", 0, "queued", oid, pending_keys=((b"7",),), asked_keys=1
    )
    worker.request(protocol.StoreKeys(table.snapshot_id, (table,), 0))
    failure = worker.request(protocol.ReadPlan(2, "s.t", oid, keys_of="towpath-keys-1"))

    assert not failure.may_recover
    assert "does not fit" in failure.reason


def test_old_key_requests_are_deleted_except_the_newest(connection, worker):
    """
    Old completed requests are deleted, except the one with the newest position.

    Completed requests are old after an hour. Requests that failed more than a week ago
    are deleted, except the newest of each table.
    """
    connection.execute(
        "insert into towpath.snapshot (snapshot_id, collection, ordinal, state,"
        " asked_until, completed_at, updated_at, relay, table_oid)"
        " select 'towpath-keys-' || n, 's.t', 0, state,"
        " lpad(asked_until, 16, '0') || '.0000000000',"
        " now() - age, now() - age, 'towpath', oid from (values"
        " (1, 'completed', '1', interval '2 h', 1),"
        " (2, 'failed', '2', interval '2 h', 1),"
        " (3, 'completed', '3', interval '1 min', 1),"
        " (4, 'completed', null, '2 h', 1), (5, 'completed', '9', '2 h', 1),"
        " (6, 'failed', '1', '8 d', 1), (7, 'running', '2', '8 d', 1),"
        " (8, 'failed', '1', '8 d', 2)) v (n, state, asked_until, age, oid)"
    )
    last = f"{8:016x}.{0:010x}"
    table = StoredTable("x", "s.t", 0, "queued", 1, asked_keys=1, asked_until=last)
    worker.request(protocol.StoreKeys("x", (table,), 0))
    rows = connection.execute("select snapshot_id from towpath.snapshot order by 1")
    names = [name.removeprefix("towpath-keys-") for (name,) in rows]
    failed = worker.worker.read_stored().failed_requests

    assert ["2", "3", "4", "5", "7", "8", "x"] == names
    assert {(1, f"{2:016x}.{0:010x}"), (2, f"{1:016x}.{0:010x}")} == set(failed)


def test_a_filter_keeps_its_precedence(connection, worker):
    """
    A filter with OR does not widen the bounds of the chunk (A7).
    """
    connection.execute("create table s.t (a int primary key)")
    connection.execute("insert into s.t select generate_series(1, 9)")
    condition = "a = 1 or a = 8 or a = 9 -- all"
    chunk = worker.chunk(
        worker.plan("s.t"), after_key=(b"1",), maximum_key=(b"8",), condition=condition
    ).chunk

    assert [(b"8",)] == chunk.rows


@pytest.mark.parametrize(
    ("alteration", "reason"),
    [
        ("drop table s.t", "does not exist"),
        ("alter table s.t rename to u", "does not exist"),
        ("alter table s.t rename a to c", "its key changed"),
        ("alter table s.t alter a type bigint", "its key changed"),
        ("alter table s.t drop constraint t_pkey", "it has no primary key"),
        ("alter table s.t replica identity nothing", "replica identity"),
        (
            "drop table s.t; create table s.t (a int primary key, b text)",
            "it is a different table now",
        ),
    ],
)
def test_a_changed_table_fails_its_chunk(connection, worker, alteration, reason):
    """
    A chunk of a table that differs from its plan cannot recover (A31).
    """
    connection.execute("create table s.t (a int primary key, b text)")
    plan = worker.plan("s.t")
    connection.execute(alteration)
    failure = worker.chunk(plan, maximum_key=(b"9",))

    assert not failure.may_recover
    assert reason in failure.reason


def test_a_chunk_has_the_current_columns_of_its_table(connection, worker):
    """
    Columns added or dropped between chunks change the relation; no row is lost (A31).
    """
    connection.execute("create table s.t (a int primary key, b text)")
    connection.execute("insert into s.t select g, 'b' from generate_series(1, 4) g")
    plan = worker.plan("s.t")
    connection.execute("alter table s.t add c int default 5")
    connection.execute("alter table s.t drop b")
    chunk = worker.chunk(plan).chunk

    assert ["a", "c"] == [column.name for column in chunk.shape.relation.columns]
    assert [(b"1", b"5"), (b"4", b"5")] == [chunk.rows[0], chunk.rows[-1]]


def test_the_lock_is_taken_before_the_database_snapshot(connection, database, worker):
    """
    A chunk that waits for a rewrite sees the rewritten table, not an empty one.
    """
    connection.execute("create table s.t (a int primary key, b int)")
    connection.execute("insert into s.t select g, g from generate_series(1, 100) g")
    plan = worker.plan("s.t")
    with psycopg.connect(database) as rewriting:
        rewriting.execute("alter table s.t alter b type bigint")
        results: list[protocol.WorkerFact] = []
        reading = threading.Thread(target=lambda: results.append(worker.chunk(plan)))
        reading.start()
        _wait_for_lock(connection, worker.deadline)
        rewriting.commit()
        reading.join()

    assert 100 == len(results[0].chunk.rows)


def test_a_chunk_that_gets_no_lock_in_time_may_recover(connection, database, worker):
    """
    A chunk does not wait for a lock forever, and can be read again (A32).
    """
    connection.execute("create table s.t (a int primary key)")
    connection.execute("insert into s.t values (1)")
    plan = worker.plan("s.t")
    with psycopg.connect(database) as holder:
        holder.execute("lock table s.t in access exclusive mode")
        failure = worker.chunk(plan)
    chunk = worker.chunk(plan)

    assert (True, 1) == (failure.may_recover, len(chunk.chunk.rows))


def test_a_chunk_of_a_killed_backend_may_recover(connection, worker):
    """
    The reader reconnects after its connection has been ended (A32).
    """
    connection.execute("create table s.t (a int primary key)")
    connection.execute("insert into s.t values (1)")
    plan = worker.plan("s.t")
    connection.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    failure = worker.chunk(plan)
    chunk = worker.chunk(plan)

    assert (True, 1) == (failure.may_recover, len(chunk.chunk.rows))


def test_a_chunk_with_an_invalid_filter_cannot_recover(connection, worker):
    """
    A filter that the server refuses fails the table with the server's reason.
    """
    connection.execute("create table s.t (a int primary key)")
    shape = worker.plan("s.t").shape
    effect = protocol.ReadPlan(1, "s.t", shape.relation.oid, condition="nonsense > 1")
    failure = worker.request(effect)

    assert not failure.may_recover
    assert "nonsense" in failure.reason


def test_row_security_gives_an_error_instead_of_fewer_rows(connection, database, begin):
    """
    A policy that would hide rows from the relay's role fails the chunk.
    """
    connection.execute("create table s.t (a int primary key)")
    connection.execute("insert into s.t values (1)")
    connection.execute("alter table s.t enable row level security")
    role = f"r_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    connection.execute(f"create role {role} login")
    connection.execute(f"grant usage on schema s to {role}")
    connection.execute(f"grant select on s.t to {role}")
    try:
        worker = begin()
        other = begin(psycopg.conninfo.make_conninfo(database, user=role))
        failure = other.chunk(worker.plan("s.t"))
        other.worker.close()
    finally:
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")

    assert not failure.may_recover
    assert "row-level security" in failure.reason


def test_saved_progress_is_read_back_unchanged(connection, worker):
    """
    Keys are stored as lists of strings, and read back as the same bytes.
    """
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    queued = StoredTable("s1", "s.t", 0, "queued", 4711, target="search2")
    stored = worker.request(
        protocol.StoreSignal("s1", "accepted", {"tables": ["s.t"]}, (queued,))
    )
    running = replace(
        queued,
        state="running",
        last_key=("é'\"".encode(), b"7"),
        maximum_key=(b"z", b"9"),
        pending_keys=((b"a", b"1"), (b"b", b"2")),
        rows=5,
        dropped=2,
        chunks=3,
        estimated_rows=14,
        key_columns=("a text 100", "b int 0"),
    )
    saved = worker.request(protocol.SaveProgress(9, running))
    row = connection.execute(
        "select last_key, percent, state, started_at is null from towpath.snapshot"
    ).fetchone()

    assert (protocol.SignalStored("s1", is_new=True), protocol.ProgressSaved(9)) == (
        stored,
        saved,
    )
    assert (["é'\"", "7"], 50, "running", False) == row
    assert protocol.UnfinishedRead((running,)) == worker.worker.read_stored()


def test_the_status_running_means_that_the_start_was_announced(connection, worker):
    """
    The table of the signal may have been paused before it was planned.
    """
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    table = StoredTable("s1", "s.t", 0, "queued", 4711)
    worker.request(protocol.StoreSignal("s1", "accepted", {}, (table,)))
    queued = worker.worker.read_stored()
    worker.worker.submit(protocol.AnswerSignal("s1", "running", {}))
    worker.request(protocol.SaveProgress(1, replace(table, state="paused")))
    [paused] = worker.worker.read_stored().tables

    assert protocol.UnfinishedRead((table,)) == queued
    assert ("paused", (), True) == (
        paused.state,
        paused.key_columns,
        paused.is_announced,
    )


def test_a_signal_is_answered_once(connection, worker):
    """
    A repeated signal is not new, nor is one whose row already has an answer.

    Only stored answers are logged.
    """
    connection.execute(
        "insert into towpath.signal (id, type, status)"
        " values ('s1', 'execute-snapshot', null), ('s2', 'x', 'rejected')"
    )
    table = StoredTable("s1", "s.t", 0, "queued", 4711)
    effects = [
        protocol.StoreSignal("s1", "accepted", {}, (table,)),
        protocol.StoreSignal("s1", "accepted", {}, (table,)),
        protocol.StoreSignal("s2", "accepted", {}),
        protocol.StoreSignal("gone", "accepted", {}),
    ]

    with capture_logs() as logged:
        are_new = [worker.request(effect).is_new for effect in effects]

    assert [True, False, False, True] == are_new
    assert [("s1", True), ("s1", False), ("s2", False), ("gone", True)] == [
        (record["signal_id"], record["event"] == "signal answered") for record in logged
    ]


def test_an_id_is_not_used_twice(connection, worker):
    """
    A new signal with an id that is already used is rejected, and starts no snapshot.
    """
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    table = StoredTable("s1", "s.t", 0, "queued", 4711)
    effect = protocol.StoreSignal("s1", "accepted", {}, (table,))
    worker.request(effect)
    connection.execute("delete from towpath.signal")
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    again = worker.request(effect)
    status, reason = connection.execute(
        "select status, detail ->> 'reason' from towpath.signal"
    ).fetchone()

    assert (False, "rejected") == (again.is_new, status)
    assert "choose another" in reason


def test_later_answers_are_merged_with_earlier_ones(connection, worker):
    """
    The final answer has its counts and the reasons of the first answer.
    """
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    worker.request(protocol.StoreSignal("s1", "accepted", {"refused": {"a": "b"}}))
    worker.worker.submit(protocol.AnswerSignal("s1", "completed", {"rows": 5}))
    worker.request(protocol.ProbeVisibility())
    row = connection.execute(
        "select status, detail, updated_at is null from towpath.signal"
    ).fetchone()

    assert ("completed", {"refused": {"a": "b"}, "rows": 5}, False) == row


def test_a_stopped_table_remains_stopped(connection, worker):
    """
    Progress saved after the stop does not restart the table.
    """
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    table = StoredTable("s1", "s.t", 0, "running", 4711)
    worker.request(protocol.StoreSignal("s1", "accepted", {}, (table,)))
    stopped = replace(table, state="stopped")
    worker.request(protocol.StoreSignal("s2", "completed", {}, changed=(stopped,)))
    worker.request(protocol.SaveProgress(1, replace(table, rows=7, chunks=1)))
    row = connection.execute("select state, rows from towpath.snapshot").fetchone()

    assert ("stopped", 7) == row


@pytest.mark.parametrize(
    ("state", "order_by", "last_key"),
    [("paused", ("b",), ["7"]), ("stopped", ("b",), None), ("stopped", (), ["7"])],
)
def test_a_surrogate_key_keeps_its_last_key_only_while_its_table_is_open(
    connection, worker, state, order_by, last_key
):
    """
    While a table is stopped, a row may move below the last key without a key request.

    So the last key is cleared immediately: the relay may die before it plans the table.
    """
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    table = StoredTable("s1", "s.t", 0, "running", 4711, order_by=order_by)
    worker.request(protocol.StoreSignal("s1", "accepted", {}, (table,)))
    keys = {"last_key": (b"7",), "key_columns": ("a",)}
    known = replace(table, state=state, chunks=1, rows=7, dropped=2, **keys)
    worker.request(protocol.SaveProgress(1, known))
    connection.execute("insert into towpath.signal values ('s2', 'resume-snapshot')")
    queued = replace(known, state="queued")
    worker.request(protocol.StoreSignal("s2", "completed", {}, changed=(queued,)))
    row = connection.execute(
        "select state, last_key, key_columns, rows, dropped from towpath.snapshot"
    ).fetchone()
    counts = (7, 2) if last_key else (0, 0)

    assert ("queued", last_key, last_key and ["a"], *counts) == row


def test_a_missing_table_ends_the_worker_and_is_named(connection, worker):
    """
    A failed write is reported to the loop, and not retried forever.
    """
    connection.execute("drop table towpath.snapshot")
    worker.worker.submit(
        protocol.SaveProgress(1, StoredTable("s1", "s.t", 0, "running", 4711))
    )
    with pytest.raises(NotPreparedError) as failure:
        worker.request(protocol.ProbeVisibility())

    assert "towpath.snapshot" in str(failure.value)


def _wait_for_lock(connection: psycopg.Connection, deadline: Deadline) -> None:
    """Wait until a session is waiting for a lock in this database."""
    clock = SystemClock()
    waiting = (
        "select exists (select from pg_locks where not granted and database ="
        " (select oid from pg_database where datname = current_database()))"
    )
    while not connection.execute(waiting).fetchone()[0]:
        assert not deadline.passed()
        clock.wait(0.01)
