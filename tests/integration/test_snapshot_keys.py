"""Keys on a real server: identifying keys, ordering keys, and ranges of keys."""
# ruff: noqa: ISC004 - SQL in strings over several lines

from itertools import pairwise

import psycopg
import pytest

from towpath.relay.encode.relations import bind
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.shape import key_of
from towpath.relay.wal.messages import RelationShape
from towpath.relay.wal.pgoutput import parse_message
from towpath.schemas.clock import Deadline, SystemClock
from towpath.schemas.table_name import TableName
from towpath.settings.outbox import AggregateView
from towpath.settings.relay import Watermarks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

VIEW = AggregateView(aggregate_type="order", view="s.orders_now")


def create(connection: psycopg.Connection, *statements: str) -> None:
    """Run statements one after the other."""
    for statement in statements:
        connection.execute(statement)


IDENTITIES = {
    "primary key": ["create table s.t (b int, a int, primary key (a, b))"],
    "full with primary key": [
        "create table s.t (b int, a int, primary key (a, b))",
        "alter table s.t replica identity full",
    ],
    "full with a unique index": [
        "create table s.t (a int not null, b int not null, c int unique)",
        "create unique index t_b on s.t (b, a)",
        "create unique index t_a on s.t (a)",
        "alter table s.t replica identity full",
    ],
    "identity index": [
        "create table s.t (a int not null, b int not null)",
        "create unique index t_a on s.t (a)",
        "create unique index t_b on s.t (b)",
        "alter table s.t replica identity using index t_b",
    ],
    "identity index over the primary key's columns": [
        "create table s.t (a int, b int, primary key (b, a))",
        "create unique index t_a on s.t (a, b)",
        "alter table s.t replica identity using index t_a",
    ],
    "inserted only": [
        "create table s.t (a int not null, b int not null)",
        "create unique index t_b on s.t (b) include (a)",
    ],
    "full root, plain partitions": [
        "create table s.t (a int, b int, primary key (b, a)) partition by list (a)",
        "create table s.t1 partition of s.t default",
        "alter table s.t replica identity full",
        "alter publication towpath set (publish_via_partition_root)",
    ],
}


def streamed_shape(connection, slot):
    """Return the last relation of the stream."""
    messages = connection.execute(
        "select data from pg_logical_slot_get_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', 'towpath')",
        (slot,),
    )
    return [
        message
        for (data,) in messages.fetchall()
        if isinstance(message := parse_message(data), RelationShape)
    ][-1]


@pytest.mark.parametrize("kind", IDENTITIES)
def test_the_key_of_a_chunk_is_the_key_of_the_stream(connection, worker, unique, kind):
    """
    The same columns identify the rows of a chunk and the changes of the stream (A17).
    """
    create(connection, *IDENTITIES[kind])
    connection.execute(
        "select pg_create_logical_replication_slot(%s, 'pgoutput')", (unique,)
    )
    connection.execute(
        "insert into s.t (a, b) select g, -g from generate_series(1, 5) g"
    )
    found = streamed_shape(connection, unique)
    facts = PostgresCatalog(connection).describe(found.oid, TableName("s", "t"), [23])
    plan = worker.plan("s.t")
    rows = worker.rows(plan, max_rows=2)

    assert bind(found, facts).key_names == plan.shape.relation.key_names
    assert 5 == len(rows)


def test_the_key_of_a_table_that_was_replaced_keeps_its_order(connection, unique):
    """
    Later stream changes have the same keys as rows read from the new table.
    """
    statement = "create table s.t (a int, b int, primary key (b, a))"
    create(connection, statement)
    connection.execute(
        "select pg_create_logical_replication_slot(%s, 'pgoutput')", (unique,)
    )
    connection.execute("insert into s.t (a, b) values (1, 2)")
    connection.execute("drop table s.t")
    connection.execute(statement)
    found = streamed_shape(connection, unique)
    facts = PostgresCatalog(connection).describe(found.oid, TableName("s", "t"), [23])

    assert ("b", "a") == bind(found, facts).key_names


REFUSALS = {
    "no key": (["create table s.t (a int)"], "no primary key and no unique index"),
    "nullable": (
        ["create table s.t (a int unique, b int)"],
        "index t_a_key: a may be null (alter column ... set not null)",
    ),
    "partial": (
        [
            "create table s.t (a int not null)",
            "create unique index t_a on s.t (a) where a > 0",
        ],
        "index t_a: it is partial",
    ),
    "expression": (
        [
            "create table s.t (a text not null)",
            "create unique index t_a on s.t (lower(a))",
        ],
        "index t_a: it contains an expression",
    ),
    "deferrable": (
        ["create table s.t (a int primary key deferrable)"],
        "no usable primary key, and no other usable unique index: index t_pkey: it is"
        " deferrable",
    ),
    "unlogged": (
        ["create unlogged table s.t (a int primary key)"],
        'alter table "s"."t" set logged',
    ),
    "collation": (
        [
            # This resembles an ICU collation; not every server is built with ICU.
            "create collation s.loose (provider = libc, locale = 'C.utf8')",
            "create table s.t (a text collate s.loose primary key)",
            "update pg_collation set collisdeterministic = false"
            " where collname = 'loose'",
        ],
        "the collation of key column a is not deterministic",
    ),
    "another identity": (
        [
            "create table s.t (a int primary key, b int not null unique)",
            "alter table s.t replica identity using index t_b_key",
        ],
        "the replica identity of s.t is not its primary key: alter table s.t replica"
        " identity default",
    ),
    "identity of a partition": (
        [
            "create table s.t (a int, b int, primary key (b, a)) partition by list (a)",
            "create table s.t1 partition of s.t default",
            "alter table s.t1 replica identity nothing",
            "alter publication towpath set (publish_via_partition_root)",
        ],
        "the replica identity of s.t1 is nothing",
    ),
    "nothing": (
        [
            "create table s.t (a int primary key)",
            "alter table s.t replica identity nothing",
        ],
        "the replica identity of s.t is nothing",
    ),
    "a partition": (
        [
            "create table s.root (a int primary key) partition by list (a)",
            "create table s.t partition of s.root default",
            "alter publication towpath set (publish_via_partition_root)",
        ],
        "it is a partition of s.root",
    ),
    "view": (["create view s.t as select 1 as a"], "it is a view"),
    "materialized view": (
        ["create materialized view s.t as select 1 as a"],
        "it is a materialized view",
    ),
    "foreign table": (
        [
            "create foreign data wrapper nowhere",
            "create server nowhere foreign data wrapper nowhere",
            "create foreign table s.t (a int) server nowhere",
        ],
        "it is a foreign table",
    ),
    "another schema": (
        [
            "create table s.t (a int primary key)",
            "drop publication towpath",
            "create publication towpath for tables in schema towpath",
        ],
        "it is not in the publication towpath",
    ),
    "column list": (
        [
            "create table s.t (a int primary key, b int not null unique)",
            "drop publication towpath",
            "create publication towpath for table s.t (b) with (publish = 'insert')",
        ],
        "key column a is not in the publication's columns",
    ),
    "not published": (
        [
            "create table s.t (a int primary key)",
            "drop publication towpath",
            "create publication towpath for table towpath.signal",
        ],
        "it is not in the publication towpath: add it to [source] tables",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_tables_without_a_usable_key_are_refused(connection, worker, kind):
    """
    Each is refused up front, with the reason and a remedy if there is one.
    """
    statements, reason = REFUSALS[kind]
    create(connection, *statements)

    assert reason in worker.refusal("s.t")


def test_a_table_that_the_role_may_not_read_is_refused(connection, database, begin):
    """
    Missing rights and policies that hide rows are reported before any row is read.
    """
    create(
        connection,
        "create table s.bare (a int primary key)",
        "create table s.guarded (a int primary key)",
        "alter table s.guarded enable row level security",
    )
    role = f"r_{connection.info.dbname}"
    create(
        connection,
        f"create role {role} login",
        f"grant usage on schema s to {role}",
        f"grant select on s.guarded to {role}",
    )
    try:
        other = begin(psycopg.conninfo.make_conninfo(database, user=role))
        reasons = [other.refusal("s.bare"), other.refusal("s.guarded")]
        other.worker.close()
    finally:
        create(connection, f"drop owned by {role}", f"drop role {role}")

    assert 'this role may not read it: grant select on "s"."bare"' == reasons[0]
    assert "row-level security" in reasons[1]


def test_every_collation_provider_of_the_server_gives_an_order(connection, worker):
    """
    Only the server compares strings, with whichever library it uses (B21).
    """
    collations = connection.execute(
        "select distinct on (collprovider) quote_ident(collname) from pg_collation"
        " where collprovider <> 'd' and collisdeterministic and collencoding in"
        " (-1, pg_char_to_encoding('UTF8')) and collname not in ('C', 'POSIX')"
        " order by collprovider, collname desc"
    ).fetchall()
    usable = [name for (name,) in collations if _is_built_in(connection, name)]
    for number, collation in enumerate(usable):
        name = f"s.t{number}"
        create(
            connection,
            f"create table {name} (k text collate pg_catalog.{collation} primary key)",
            f"insert into {name} select substr('aAbBäÄßz-_ 9', 1 + g % 12, 1) || g"  # noqa: S608 - the case's own
            " from generate_series(1, 200) g",
        )
        rows = worker.rows(worker.plan(name), max_rows=7)
        expected = connection.execute(f"select k from {name} order by k").fetchall()  # noqa: S608 - the case's own

        assert [key.encode() for (key,) in expected] == [key for (key,) in rows]
    assert usable


def _is_built_in(connection: psycopg.Connection, collation: str) -> bool:
    """Return whether the server was built with a collation's library."""
    try:
        connection.execute(f"select 'a' collate pg_catalog.{collation} < 'b'")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def test_a_surrogate_key_orders_rows_and_the_primary_key_identifies_them(
    connection, worker
):
    """
    The surrogate gives bounds and order; listed keys are primary keys (A29).
    """
    create(
        connection,
        "create table s.t (v text, a int primary key, b int not null, c uuid not null)",
        "create unique index t_cb on s.t (c, b)",
        "insert into s.t select 'v', g, g % 7, md5(g::text)::uuid"
        " from generate_series(1, 41) g",
    )
    plan = worker.plan("s.t", order_by=("b", "c"))
    rows = worker.rows(plan, max_rows=4)
    listed = worker.chunk(plan, keys=((b"7",), (b"3",))).chunk
    expected = connection.execute("select a::text from s.t order by c, b").fetchall()

    assert [a.encode() for (a,) in expected] == [row[1] for row in rows]
    assert key_of(rows[-1], (3, 2)) == plan.maximum_key
    assert ((1,), (3, 2)) == (plan.shape.relation.key, plan.shape.order_key)
    assert {b"3", b"7"} == {row[1] for row in listed.rows}


@pytest.mark.parametrize(
    ("order_by", "reason"),
    [
        (("b",), "(b) has no unique index on just these columns"),
        (("nonsense",), "(nonsense) has no unique index"),
        (("a", "b"), "(a, b) has no unique index"),
        (("c",), "does not identify all rows: index t_c_key: c may be null"),
        (("d",), "does not identify all rows: index t_d: it is partial"),
        (("e",), "does not identify all rows: index t_e_key: it is deferrable"),
    ],
)
def test_an_unsuitable_surrogate_key_is_refused(connection, worker, order_by, reason):
    """
    Rows that the key does not distinguish could be skipped (A29).
    """
    create(
        connection,
        "create table s.t (a int primary key, b int not null, c int unique,"
        " d int not null, e int not null unique deferrable)",
        "create unique index t_d on s.t (d) where d > 0",
    )

    assert reason in worker.refusal("s.t", *order_by)


def test_a_chunk_fails_if_the_index_of_its_surrogate_key_is_dropped(connection, worker):
    """
    Without the index, rows with equal keys could be skipped.
    """
    create(
        connection,
        "create table s.t (a int primary key, b int not null unique)",
        "insert into s.t values (1, 2)",
    )
    plan = worker.plan("s.t", order_by=("b",))
    connection.execute("alter table s.t drop constraint t_b_key")
    failure = worker.chunk(plan)

    assert not failure.may_recover
    assert "the surrogate key (b) has no unique index" in failure.reason


def test_the_publications_filter_applies_to_chunks(connection, worker):
    """
    Chunks, maximum key and estimate leave out the rows that the stream leaves out.
    """
    create(
        connection,
        "create table s.t (a int primary key, b text)",
        "insert into s.t select g, 'b' from generate_series(1, 2000) g",
        "analyze s.t",
        "drop publication towpath",
        "create publication towpath for table s.t where (a % 2 = 1 and a < 100)",
    )
    plan = worker.plan("s.t")
    rows = worker.rows(plan, max_rows=7, condition="a > 50 or a > 60")
    listed = worker.chunk(plan, keys=((b"2",), (b"3",))).chunk

    assert [b"%d" % a for a in range(51, 100, 2)] == [row[0] for row in rows]
    assert ((b"99",), [b"3"]) == (plan.maximum_key, [row[0] for row in listed.rows])
    assert plan.estimated_rows < 500


RANGES = {
    "integer": ("bigint primary key", "g * 3"),
    "skewed": ("bigint primary key", "g::bigint * g"),
    "text": ('text collate "C.utf8" primary key', "md5(g::text)"),
    "composite": ("int, b int generated always as identity, primary key (k, b)", "g/9"),
}


@pytest.mark.parametrize("kind", RANGES)
def test_a_table_is_split_into_ranges_of_similar_size(connection, worker, kind):
    """
    The boundaries are in the key's own order, and the ranges cover the whole table.
    """
    columns, value = RANGES[kind]
    create(
        connection,
        # With narrow rows, few pages are sampled, and range sizes may differ by half.
        f"create table s.t (wide char(200) default '', k {columns})",
        f"insert into s.t (k) select {value} from generate_series(1, 60000) g",  # noqa: S608 - the case's own
        "analyze s.t",
    )
    plan = worker.plan("s.t", parts=4)
    cuts = [None, *plan.boundaries, plan.maximum_key]
    parts = [
        worker.rows(plan, 20_000, after_key=after, maximum_key=last)
        for after, last in pairwise(cuts)
    ]
    whole = worker.rows(plan, 60_000)

    assert 3 == len(plan.boundaries)
    assert [row for part in parts for row in part] == whole
    assert all(10_000 < len(part) < 20_000 for part in parts)


def test_a_partitioned_table_is_split_into_ranges_as_a_whole(connection, worker):
    """
    The ranges use the key of the root, whatever the partition key is (B32).
    """
    create(
        connection,
        "create table s.t (a uuid, b int, primary key (a, b)) partition by hash (b)",
        "create table s.t0 partition of s.t for values with (modulus 2, remainder 0)",
        "create table s.t1 partition of s.t for values with (modulus 2, remainder 1)",
        "insert into s.t select md5(g::text)::uuid, g from generate_series(1, 60000) g",
        "analyze s.t",
        "alter publication towpath set (publish_via_partition_root)",
    )
    plan = worker.plan("s.t", parts=3)
    cuts = [None, *plan.boundaries, plan.maximum_key]
    sizes = [
        len(worker.rows(plan, 30_000, after_key=after, maximum_key=last))
        for after, last in pairwise(cuts)
    ]

    assert (3, 60_000) == (len(sizes), sum(sizes))
    assert min(sizes) > 15_000


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        (10_000, {"parts": 4}),
        (60_000, {"parts": 1}),
        (60_000, {"parts": 4, "condition": "a < 100"}),
        (60_000, {"parts": 4, "select": "select * from s.t", "view": "f"}),
        (0, {"parts": 4}),
    ],
)
def test_small_or_filtered_tables_are_not_split(connection, worker, count, fields):
    """
    One reader finishes them before a second reader would have started.
    """
    create(
        connection,
        "create table s.t (a int primary key)",
        f"insert into s.t select generate_series(1, {count})",
        "analyze s.t",
    )

    assert () == worker.plan("s.t", **fields).boundaries


def test_several_readers_read_at_the_same_time(connection, database, begin):
    """
    A chunk that waits for its table's lock does not delay chunks of other tables.
    """
    create(
        connection,
        "create table s.t (a int primary key)",
        "create table s.u (a int primary key)",
        "insert into s.t values (1)",
        "insert into s.u values (1), (2)",
    )
    worker = begin(readers=2)
    plans = [worker.plan(name) for name in ("s.t", "s.u")]
    with psycopg.connect(database) as holder:
        holder.execute("lock table s.t in access exclusive mode")
        for number, plan in enumerate(plans):
            worker.worker.submit(worker.chunk_of(plan, chunk_id=number))
        [first] = worker.take(1)
    [second] = worker.take(1)

    assert (1, 2) == (first.chunk_id, len(first.chunk.rows))
    assert 0 == getattr(second, "chunk_id", 0)


@pytest.fixture
def view(connection) -> None:
    """Create a view of orders with their lines."""
    create(
        connection,
        "create table s.orders (id int primary key)",
        "create table s.lines (order_id int, line int, primary key (order_id, line))",
        "insert into s.orders select generate_series(1, 9)",
        "insert into s.lines select o, l from generate_series(1, 9) o,"
        " generate_series(1, 2) l",
        "create view s.orders_now as select o.id as aggregate_id, 'OrderNow' as type,"
        " (select json_agg(l.line order by l.line) from s.lines l"
        " where l.order_id = o.id) as payload from s.orders o",
    )


def test_a_view_is_read_by_its_aggregate_ids(view, connection, begin):
    """
    Rows of a view are read in chunks or by key, under the name of its collection.
    """
    assert view is None
    worker = begin(views=(VIEW,))
    plan = worker.plan("outbox.order")
    rows = worker.rows(plan, max_rows=3)
    listed = worker.chunk(plan, keys=((b"7",), (b"70",))).chunk
    last = worker.chunk(plan, max_rows=9).chunk

    assert [(b"%d" % n, b"OrderNow", b"[1, 2]") for n in range(1, 10)] == rows
    assert ([b"7"], True) == ([row[0] for row in listed.rows], listed.is_last)
    assert (9, True) == (len(last.rows), last.is_last)
    assert 9 == connection.execute("select count(*) from s.orders").fetchone()[0]


@pytest.mark.parametrize("max_rows", [2, 3, 100])
def test_two_rows_for_one_aggregate_are_refused(view, connection, begin, max_rows):
    """
    They are refused even if one row ends a chunk and the other begins the next one.
    """
    assert view is None
    create(
        connection,
        "create or replace view s.orders_now as select o.id as aggregate_id,"
        " 'OrderNow' as type, to_json(l.line) as payload"
        " from s.orders o join s.lines l on l.order_id = o.id"
        " where o.id = 3 or l.line = 1",
    )
    worker = begin(views=(VIEW,))
    plan = worker.plan("outbox.order")
    chunks = [
        worker.chunk(plan, after_key=(b"%d" % after,), max_rows=max_rows)
        for after in (0, 1)
    ]
    failed = [fact for fact in chunks if hasattr(fact, "reason")]

    assert all("two rows with the key ['3']" in each.reason for each in failed)
    assert (2 if max_rows > 2 else 1) == len(failed)


def test_large_rows_of_a_view_are_split_into_chunks_and_none_is_skipped(
    view, connection, begin
):
    """
    Rows beyond a chunk's byte limit are in the next chunk.
    """
    assert view is None
    create(
        connection,
        "create or replace view s.orders_now as select o.id as aggregate_id,"
        " 'OrderNow' as type, to_json(repeat('x', 100000)) as payload from s.orders o",
    )
    sizes = [
        [row[0] for row in worker.rows(worker.plan("outbox.order"), max_rows=100)]
        for bound in (250_000, 50_000)
        for worker in (begin(views=(VIEW,), max_chunk_bytes=bound),)
    ]

    assert [[b"%d" % n for n in range(1, 10)]] * 2 == sizes


def test_a_row_of_a_view_without_an_id_is_refused(view, connection, begin):
    """
    Otherwise, its aggregate would be unknown.
    """
    assert view is None
    create(
        connection,
        "create or replace view s.orders_now as select nullif(o.id, 5)"
        " as aggregate_id, 'OrderNow' as type, '{}'::json as payload from s.orders o",
    )
    failure = begin(views=(VIEW,)).request_plan("outbox.order")

    assert not failure.may_recover
    assert "a row has no key" in failure.reason


def test_listed_keys_beyond_the_byte_limit_do_not_count_as_absent(connection, begin):
    """
    A truncated chunk is not the last one, so its missing keys are read again.
    """
    create(
        connection,
        "create table s.t (a int primary key, b text)",
        "insert into s.t select g, repeat(md5(g::text), 4096)"
        " from generate_series(1, 3) g",
    )
    worker = begin(max_chunk_bytes=150_000)
    keys = ((b"1",), (b"2",), (b"3",))
    chunk = worker.chunk(worker.plan("s.t"), keys=keys, max_rows=10).chunk

    assert (True, False) == (0 < len(chunk.rows) < len(keys), chunk.is_last)


def test_memory_is_bounded_by_bytes_and_not_by_rows(connection, begin):
    """
    Two hundred rows of a megabyte each are never in memory together (B31).
    """
    import tracemalloc  # noqa: PLC0415 - it slows down everything after it

    create(
        connection,
        "create table s.t (a int primary key, b text)",
        "insert into s.t select g, repeat(md5(g::text), 32768)"
        " from generate_series(1, 200) g",
    )
    worker = begin(max_chunk_bytes=4_000_000)
    plan = worker.plan("s.t")
    count, after_key = 0, None
    tracemalloc.start()
    try:
        while True:
            chunk = worker.chunk(plan, after_key=after_key, max_rows=10_000).chunk
            count, after_key = count + len(chunk.rows), chunk.last_key
            assert chunk.size_bytes < 6_000_000
            if chunk.is_last:
                break
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 200 == count
    assert peak_bytes < 40_000_000


def test_a_chunk_has_its_size_and_its_duration(connection, worker):
    """
    Both are measured, as they determine the size of the next chunk.
    """
    create(
        connection,
        "create table s.t (a int primary key, b text)",
        "insert into s.t values (1, 'x'), (2, 'yy')",
    )
    plan = worker.plan("s.t")
    slow = worker.chunk(plan, condition="pg_sleep(0.05) is not null").chunk

    assert len("1\tx\n2\tyy\n") == slow.size_bytes
    assert 0.1 <= slow.elapsed_s < 5


@pytest.mark.parametrize(
    ("form", "count"), [(Watermarks.ROWS, 2), (Watermarks.ROWS_DELETED, 0)]
)
def test_watermarks_can_be_rows_of_the_signal_table(
    connection, begin, unique, form, count
):
    """
    Each is one row, streamed with its content, and kept or deleted right away (A28).
    """
    create(
        connection,
        "create table s.t (a int primary key)",
        "insert into s.t values (1)",
        f"select pg_create_logical_replication_slot('{unique}', 'test_decoding')",
    )
    worker = begin(watermarks=form)
    worker.chunk(worker.plan("s.t"))
    streamed = connection.execute(
        "select data from pg_logical_slot_get_changes(%s, null, null)"
        " where data like '%%signal: INSERT%%'",
        (unique,),
    ).fetchall()
    kinds = ["snapshot-window-open", "snapshot-window-close"]
    kept = connection.execute("select count(*) from towpath.signal").fetchone()[0]

    assert count == kept
    assert [True, True] == [
        f"type[character varying]:'{kind}'" in data and '"mark":"' in data
        for kind, (data,) in zip(kinds, streamed, strict=True)
    ]


@pytest.mark.parametrize("may_monitor", [True, False])
def test_active_sessions_of_other_clients_are_counted(
    connection, database, begin, may_monitor
):
    """
    Idle sessions and our own are left out; even a role without pg_monitor can count.
    """
    clock, deadline = SystemClock(), Deadline(SystemClock(), 20.0)
    role = f"r_{connection.info.dbname}"
    grants = ("grant pg_monitor to {}",) if may_monitor else ()
    create(connection, f"create role {role} login", *(g.format(role) for g in grants))
    worker = begin(psycopg.conninfo.make_conninfo(database, user=role))
    try:
        before = worker.request(protocol.ProbeLoad()).active_sessions
        with psycopg.connect(database, autocommit=True) as busy:
            busy.pgconn.send_query(b"select pg_sleep(60)")
            while worker.request(protocol.ProbeLoad()).active_sessions <= before:
                assert not deadline.passed()
                clock.wait(0.02)
            busy.close()
    finally:
        worker.worker.close()
        connection.execute(f"drop role {role}")

    assert before >= 0
