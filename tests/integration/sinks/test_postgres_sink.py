"""The Postgres sink: its tables, its guard against late writers, and its values."""

import random
import threading
from dataclasses import replace

import orjson
import psycopg
import pytest

from support import postgres_15
from support.postgres_15 import SecurePostgres
from support.postgres_tables import (
    COLUMNS,
    ID,
    ROUTE,
    TOPIC,
    Models,
    Requests,
    Shapes,
    change,
    document,
    event,
    plain,
    write,
)
from support.secure_kafka import write_certificates
from support.waiting import until
from towpath.deploy.local import postgres
from towpath.settings import RouteKind
from towpath.sinks.change import Floor, Origin, Refusal
from towpath.sinks.changes.relations import Column
from towpath.sinks.errors import BatchRefusedError, TargetUnavailableError
from towpath.sinks.fold import OTHER_PARTITION, newest_per_key
from towpath.sinks.targets.postgres import upkeep
from towpath.sinks.targets.postgres.client import StatementDeniedError, TargetSession
from towpath.testing.target import at

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """Provide a Postgres 15 server that requires TLS."""
    with postgres_15.serving() as addresses:
        yield SecurePostgres(addresses, tmp_path_factory.mktemp("tls"))


@pytest.fixture
def database_15(secure, unique):
    """Provide the address of a database on that server, with TLS."""
    postgres.create_database(secure.dsn("postgres"), unique)
    yield secure.dsn(unique)
    postgres.drop_database(secure.dsn("postgres"), unique)


@pytest.fixture(params=["database", "database_15"])
def target(request):
    """Provide the address of a database on the newest and on the oldest release."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def models(target):
    """Provide a database for the sink's tables."""
    made = Models(target)
    yield made
    made.close()


def floor(number):
    """Return a floor of the route."""
    origin = Origin(TOPIC, 0, number)
    return Floor(ROUTE, at(number), needs_all=False, origin=origin)


def row(key, value, note="n"):
    """Return a row."""
    return {"id": key, "v": value, "note": note}


# Values, as records have them, that the target must not alter.
VALUES = {
    "smallint": [-32768, 7],
    "oid": [4294967295],
    "real": [0.1, 1e20, "NaN", "-Infinity"],
    "double precision": [5e-324, 1.7976931348623157e308, "Infinity"],
    "numeric": ["1.000", "-0.00010", "NaN", "Infinity", "1" * 200 + ".5"],
    "money": ["-1234.56"],
    "boolean": [True, False],
    "text": ["", "\\N", "\\.", "a\tb\nc\rd\\", "NULL", "é😀", " \n\\.\n "],
    "character": ["ab  "],
    "shop.status": ["paid"],
    "uuid": ["6f2c1f9e-0000-4000-8000-00000000000a"],
    "bytea": ["AAH/", ""],
    "json": ['{"b" : 1.0,"a":"\\u0000"}'],
    "jsonb": ['{"a": 1.0, "b": [null]}'],
    "date": ["2026-02-28", "0044-03-15 BC", "20260-01-01", "infinity"],
    "time without time zone": ["24:00:00", "09:00:00.5"],
    "time with time zone": ["11:51:30.5Z"],
    "timestamp without time zone": [
        "0044-03-15T09:00:00.000001 BC",
        "20260-01-01T00:00:00.000000",
        "-infinity",
    ],
    "timestamp with time zone": [
        "0044-03-15T09:00:00.000001Z BC",
        "9999-12-31T23:59:59.999999Z",
        "infinity",
    ],
    "interval": ["P1Y2M3DT4H5M6.78S", "P0Y0M-3DT-4H-5M-6.78S", "P0Y0M0DT0H0M0S"],
    "inet": ["10.0.0.1", "10.0.0.0/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit": ["0101"],
    "int4range": ["[1,5)", "empty"],
    "tstzrange": ['["2026-01-01 00:00:00+00",)'],
    "tsvector": ["'a':1 'b':2"],
    "text[]": [["a", 'b "c', None], [], [["x"], ["y"]]],
    "shop.pair": [{"z": 1, "a": [0.5]}],
    "xml": ["<a> </a>"],
}


# Types whose values may be lists, objects or special floats are written as changes.
NOT_AS_COLUMNS = {"shop.pair", "text[]", "real", "double precision"}


def test_every_value_is_read_back_as_in_its_record(models):
    """
    Changes and columns keep infinite times, extreme years, escapes and nested values.
    """
    shape = [
        Column(f"c{n}", each, is_object=each == "shop.pair")
        for n, each in enumerate(VALUES)
    ]
    models.shapes = Shapes((ID, *shape))
    rows = [
        {"id": key, **{c.name: dict(enumerate(VALUES[c.type])).get(key) for c in shape}}
        for key in range(8)
    ]
    sink = models.sink()
    first = write(sink, *(change(each, 1) for each in rows))
    by_change = models.rows()
    models.sql("truncate models.orders")
    models.shapes.columns = tuple(
        c for c in models.shapes.columns if c.type not in NOT_AS_COLUMNS
    )
    flat = {column.name for column in models.shapes.columns}
    found = [({k: v for k, v in each.items() if k in flat}, 1) for each in rows]
    (columns,) = plain(models.sink_settings, found)
    taken = sink.apply_columns(columns)
    by_columns = models.rows()

    assert (8, (), 8) == (first.applied, first.refused, len(taken))
    for read, names in ((by_change, rows[0]), (by_columns, flat)):
        for each in rows:
            held = read[str(each["id"])].fields
            assert {n: written(each[n]) for n in names} == {
                n: written(held[n]) for n in names
            }


def written(value):
    """Return a value in the form in which the verifier compares it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return orjson.dumps(value).decode()
    return repr(float(value)) if isinstance(value, float) else str(value)


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_changes_and_columns_has_the_result_of_the_fold(models, seed):
    """
    The mix has whole rows, partial rows and deletes of a few keys, split and replayed.
    """
    rng = random.Random(seed)  # noqa: S311 - a repeatable test
    history = random_history(rng)
    sinks = models.sink(), models.sink()
    begin = 0
    while begin < len(history):
        end = begin + rng.randint(1, 12)
        deliver(rng.choice(sinks), models.sink_settings, history[begin:end], rng)
        # Sometimes a process ends before it has stored its offsets.
        begin = end if rng.random() < 0.7 else rng.randint(0, end)
    # Finally, an abandoned writer writes.
    begin = rng.randint(0, 40)
    deliver(sinks[0], models.sink_settings, history[begin : begin + 20], rng)

    held = {
        key: (each.position, None if each.is_deleted else each.fields)
        for key, each in models.rows().items()
    }

    assert held == reference(history)


def random_history(rng):
    """Return changes in order; each partial change is to a row that is then live."""
    history = []
    live = set()
    for number in range(1, 80):
        key, kind = rng.randint(1, 9), rng.random()
        if kind < 0.2:
            history.append(change(row(key, 0), number, deleted=True))
            live.discard(key)
        elif kind < 0.5 and key in live:
            some = {"id": key, "v": number}
            history.append(change(some, number, unchanged=["note"]))
        else:
            history.append(change(row(key, number, f"\\n{number}\t"), number))
            live.add(key)
    return history


def deliver(sink, sink_settings, changes, rng):
    """Apply changes; write some of the whole rows as columns, as slices do."""
    others = {c.key for c in changes if c.row is None or c.unchanged}
    others |= {c.key for c in changes if rng.random() < 0.3}
    found = [(dict(c.row), c.origin.offset) for c in changes if c.key not in others]
    for columns in plain(sink_settings, found):
        assert len(sink.apply_columns(columns)) == len(found)
    folded = newest_per_key(c for c in changes if c.key in others)
    assert () == write(sink, *folded.changes).refused
    assert () == write(sink, *folded.after).refused == folded.refused


def reference(history):
    """Fold a history in order, and return values as the reader does."""
    rows = {}
    for each in history:
        key = str(each.key[0])
        fields = None
        if each.row is not None:
            fields = {name: str(value) for name, value in each.row.items()}
            if each.unchanged:
                fields = {**rows[key][1], **fields}
        rows[key] = (each.position, fields)
    return rows


def test_a_value_that_does_not_fit_refuses_only_its_batch(models):
    """
    The batch writes no row, the error names the column, and columns are not applied.
    """
    sink = models.sink()
    with pytest.raises(BatchRefusedError, match=r"bigint.*column v"):
        write(sink, change(row(1, 1), 1), change(row(2, "x"), 2))
    (columns,) = plain(models.sink_settings, [(row(3, 2**62), 3)])
    models.sql("alter table models.orders add check (v < 100)")

    assert {} == models.rows()
    assert sink.apply_columns(columns) is None
    with pytest.raises(BatchRefusedError, match="check constraint"):
        write(sink, change(row(3, 100), 3))
    assert (1, ["1"]) == (write(sink, change(row(1, 1), 1)).applied, [*models.rows()])


def test_an_abandoned_writer_writes_nothing_below_a_floor(models):
    """
    The writer's sink was opened before a different process applied the floor.
    """
    late, driver = models.sink(), models.sink()
    write(driver, change(row(1, 1), 1))
    write(driver, floors=(floor(5),))
    by_change = write(late, change(row(1, 1), 1), change(row(2, 2), 6))
    (columns,) = plain(models.sink_settings, [(row(3, 3), 4), (row(4, 4), 7)])
    late.apply_columns(columns)
    by_columns = late.flush()
    absent = change({"id": 9, "v": 9}, 3, unchanged=["note"])
    partial = write(late, absent)

    assert ((1, 1), (1, 1), (0, 1, ())) == (
        (by_change.applied, by_change.stale),
        (by_columns.applied, by_columns.stale),
        (partial.applied, partial.stale, partial.refused),
    )
    assert {2: 2, 4: 4} == {key: each["v"] for key, each in models.live().items()}


def test_a_floor_waits_for_an_open_transaction_of_a_writer(models):
    """
    The floor then deletes the rows of that transaction, too.
    """
    late, driver = models.sink(), models.sink()
    write(driver, change(row(1, 1), 1))
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
    with psycopg.connect(models.dsn) as owner:
        owner.execute("select from models.orders where id = 1 for update")
        changes = (late, change(row(0, 0), 2), change(row(1, 2), 2))
        threads = [
            threading.Thread(target=write, args=changes),
            threading.Thread(target=write, args=(driver,), kwargs=FLOORS),
        ]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            until(lambda n=number: len(models.sql(waiting)) == n, "the thread waits")
    for thread in threads:
        thread.join()

    assert {} == models.rows()


FLOORS = {"floors": (floor(5),)}


def test_a_deleted_row_is_a_tombstone_until_no_replay_needs_it(models):
    """
    The view hides it; only tombstones below the safe position are removed.
    """
    sink = models.sink()
    write(sink, change(row(1, 1), 1), change(row(2, 2), 2), change(row(3, 3), 3))
    write(sink, change(row(1, 0), 4, deleted=True), change(row(2, 0), 6, deleted=True))
    before = models.rows()
    write(sink, safe=at(5))

    assert ({3}, {"1", "2", "3"}, {"2", "3"}) == (
        *(set(models.live()), set(before)),
        set(models.rows()),
    )


def test_keys_that_are_equal_only_in_the_target_are_one_row(models):
    """
    ``1.0`` and ``1.00`` are the same numeric: the newer row of a batch is written.
    """
    models.shapes = Shapes((Column("id", "numeric"), *COLUMNS[1:]))
    sink = models.sink()
    write(sink, change(row("1.00", 2), 2), change(row("1.0", 1), 1))

    assert [("1.00", "2")] == [
        (key, each.fields["v"]) for key, each in models.rows().items()
    ]


@pytest.mark.parametrize("order", ["together", "deleted-first", "deleted-last"])
def test_a_key_that_changes_to_an_equal_one_keeps_its_row(models, order):
    """
    The delete and the create have the same position, and may be in two partitions.
    """
    models.shapes = Shapes((Column("id", "numeric"), *COLUMNS[1:]))
    sink = models.sink()
    write(sink, change(row("1.0", 1), 1))
    deleted = change(row("1.0", 1), 2, deleted=True)
    created = change(row("1.00", 2), 2)
    if order == "together":
        write(sink, deleted, created)
    else:
        both = (deleted, created) if order == "deleted-first" else (created, deleted)
        for each in both:
            write(sink, each)
    held = models.rows()["1.00"]

    assert (at(2), False, "2") == (held.position, held.is_deleted, held.fields["v"])


def test_a_row_created_as_columns_outlives_the_delete_of_its_equal_key(models):
    """
    The changes of a batch are applied after its columns.
    """
    models.shapes = Shapes((Column("id", "numeric"), *COLUMNS[1:]))
    sink = models.sink()
    write(sink, change(row("1.0", 1), 1))
    (columns,) = plain(models.sink_settings, [(row("1.00", 2), 2)])
    sink.apply_columns(columns)
    write(sink, change(row("1.0", 1), 2, deleted=True))

    assert not models.rows()["1.00"].is_deleted


def test_a_delete_is_repeated_at_its_own_position(models):
    """
    A repeated batch applies its delete again.
    """
    sink = models.sink()
    deleted = change(row(1, 1), 2, deleted=True)
    write(sink, change(row(1, 1), 1), change(row(2, 2), 1))
    write(sink, deleted)

    again = write(sink, deleted)

    assert (1, 0, True) == (again.applied, again.stale, models.rows()["1"].is_deleted)


def test_partial_rows_of_equal_keys_are_not_merged_within_a_batch(models):
    """
    The older row is applied; the newer row is refetched.
    """
    models.shapes = Shapes((Column("id", "numeric"), *COLUMNS[1:]))
    sink = models.sink()
    write(sink, change(row("1.0", 1), 1))
    newer = change({"id": "1.00", "v": 3}, 3, unchanged=["note"])
    older = change({"id": "1.0", "v": 2}, 2, unchanged=["note"])
    found = write(sink, newer, older)
    (held,) = models.rows().values()
    refused = (Refusal(newer, OTHER_PARTITION, needs_refetch=True),)

    assert (1, 0, refused) == (found.applied, found.stale, found.refused)
    assert (at(2), "2", "n") == (held.position, held.fields["v"], held.fields["note"])


def test_a_table_follows_its_source_and_keeps_its_types(models):
    """
    Added columns reach dependent views; dropped ones are kept; types do not change.
    """
    sink = models.sink()
    write(sink, change(row(1, 1), 1))
    models.sql("create view public.mine as select id, v from models.orders_live")
    more = Column("ten%", "integer")
    models.shapes.columns = (ID, replace(COLUMNS[1], type="text"), more)
    checkpoint = write(sink, change({"id": 1, "v": "7", "ten%": 3}, 2))
    with pytest.raises(BatchRefusedError):
        write(sink, change({"id": 1, "v": "seven", "ten%": 3}, 3))
    partial = {"id": 1, "v": "8"}
    merged = write(sink, change(partial, 4, unchanged=["ten%"]))

    assert (1, 1, {1: {"id": 1, "v": 8, "note": "n", "ten%": 3}}) == (
        checkpoint.applied,
        merged.applied,
        models.live(),
    )


def test_a_foreign_table_or_a_different_key_holds_back_its_route(models):
    """
    Changes become dead letters with a remedy until the table fits.
    """
    models.sql("create schema models; create table models.orders (id text)")
    sink = models.sink()
    foreign = write(sink, change(row(1, 1), 1)).refused
    models.sql("drop table models.orders")
    fits = write(sink, change(row(1, 1), 1))
    models.shapes.key = ("v",)
    other = write(sink, change(row(1, 1), 2, key=("v",))).refused

    assert (1, 1, 1) == (len(foreign), fits.applied, len(other))
    assert "no sink has created it. Give the route" in foreign[0].reason
    assert "its key is id, the source's is v. Give" in other[0].reason


@pytest.mark.parametrize("key", [("v",), ()])
def test_a_floor_applies_to_a_route_that_is_held_back(models, key):
    """
    Rows below the floor are removed, and do not return once the route continues.
    """
    sink, fitting_key = models.sink(), models.shapes.key
    write(sink, change(row(1, 1), 1), change(row(2, 2), 7))
    models.shapes.key = key
    held_back = write(sink, change(row(3, 3), 8, key=("v",)), floors=(floor(5),))
    models.shapes.key = fitting_key
    late = write(models.sink(), change(row(1, 1), 1))

    assert (1, 1, {"2"}) == (len(held_back.refused), late.stale, set(models.rows()))


def test_a_floor_for_a_foreign_table_changes_nothing(models):
    """
    Only its owner may delete rows from a table that no sink has created.
    """
    columns = "id text, _position text"
    models.sql(f"create schema models; create table models.orders ({columns})")
    models.sql("insert into models.orders values ('a', '')")
    write(models.sink(), change(row(1, 1), 1), floors=(floor(5),))

    assert [("a", "")] == models.sql("select * from models.orders")


def test_a_dropped_table_is_recreated_and_its_rows_are_requested(models, tmp_path):
    """
    The open sink recreates the table; a restart does not request the rows again.
    """
    requests = Requests()
    parts = {"known": tmp_path / "postgres.json", "repairs": requests}
    sink = models.sink(**parts)
    write(sink, change(row(1, 1), 1))
    models.sql("drop table models.orders cascade")
    write(sink, change(row(2, 2), 2))
    models.sink(**parts)

    assert ([ROUTE], {2}) == (requests.routes, set(models.live()))


def test_a_table_that_was_replaced_while_the_sink_is_open_is_not_written(models):
    """
    A different process recreated the table: this sink looks it up before writing again.
    """
    late, driver = models.sink(), models.sink()
    models.sql("drop table models.orders cascade")
    other = models.sink()
    write(other, change(row(1, 1), 1))
    for sink in (late, driver):
        with pytest.raises(TargetUnavailableError, match="was replaced"):
            write(sink, change(row(2, 2), 2))
    write(late, change(row(2, 2), 2))

    assert {1, 2} == set(models.live())


def test_a_driver_detects_a_table_that_executors_have_recreated(models, tmp_path):
    """
    Executors write all rows of a batch; then the driver applies an empty batch.
    """
    requests = Requests()
    parts = {"known": tmp_path / "postgres.json", "repairs": requests}
    driver, executor = models.sink(**parts), models.sink()
    write(executor, change(row(1, 1), 1))
    write(driver)
    models.sql("drop table models.orders cascade")
    with pytest.raises(TargetUnavailableError):
        write(executor, change(row(2, 2), 2))
    write(executor, change(row(2, 2), 2))
    for _ in range(2):
        write(driver)

    assert [ROUTE] == requests.routes


@pytest.mark.parametrize("is_open", [True, False])
def test_a_table_that_its_owner_has_recreated_is_filled(models, tmp_path, is_open):
    """
    The registry still has the table's id, but it belongs to the dropped relation.
    """
    requests = Requests()
    parts = {"known": tmp_path / "postgres.json", "repairs": requests}
    sink = models.sink(**parts)
    write(sink, change(row(1, 1), 1))
    models.sql("create table models.copy (like models.orders including all)")
    models.sql("drop table models.orders cascade")
    models.sql("alter table models.copy rename to orders")
    for number in (2, 3):
        sink = sink if is_open else models.sink(**parts)
        write(sink, change(row(number, number), number))

    assert ([ROUTE], {2, 3}) == (requests.routes, set(models.live()))


def test_a_schema_dropped_while_a_driver_is_idle_is_recreated(models, tmp_path):
    """
    The registry was dropped with the schema.
    """
    requests = Requests()
    driver = models.sink(known=tmp_path / "postgres.json", repairs=requests)
    write(driver, change(row(1, 1), 1))
    models.sql("drop schema models cascade")
    with pytest.raises(TargetUnavailableError):
        write(driver)
    write(driver)

    assert ([ROUTE], {}) == (requests.routes, models.live())


def test_ids_stored_by_the_previous_release_are_accepted(models, tmp_path):
    """
    Those ids lack the relation's id, but no rows are requested.
    """
    requests, known = Requests(), tmp_path / "postgres.json"
    parts = {"known": known, "repairs": requests}
    write(models.sink(**parts), change(row(1, 1), 1))
    stored = orjson.loads(known.read_bytes())
    known.write_bytes(orjson.dumps({n: i.partition(" ")[0] for n, i in stored.items()}))
    models.sink(**parts)

    assert ([], stored) == (requests.routes, orjson.loads(known.read_bytes()))


def test_a_lost_session_is_opened_again(models):
    """
    The batch is applied again, and its rows count once.
    """
    sink = models.sink()
    write(sink, change(row(1, 1), 1))
    models.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where pid <> pg_backend_pid() and datname = current_database()"
    )
    with pytest.raises(TargetUnavailableError):
        write(sink, change(row(2, 2), 2))
    checkpoint = write(sink, change(row(2, 2), 2))

    assert (1, {1, 2}) == (checkpoint.applied, set(models.live()))


def test_a_suspended_writer_does_not_block_a_floor(models):
    """
    The server ends the writer's transaction; its next call fails as unavailable.
    """
    driver = models.sink()
    suspended = TargetSession(models.dsn, idle_limit="100ms")
    with pytest.raises(TargetUnavailableError), suspended.transaction() as connection:
        block_a_floor(connection, driver)

    assert {} == models.rows()


def block_a_floor(connection, driver):
    """Lock the floor's row, and apply a floor with a different session."""
    connection.execute("select floor from models.towpath_tables for share")
    write(driver, change(row(1, 1), 1), floors=(floor(5),))
    connection.execute("select 1")


def test_an_event_log_keeps_each_event_once(target):
    """
    An event is repeated neither within a batch nor across batches.
    """
    log = Models(target, RouteKind.EVENT_LOG)
    sink = log.sink()
    first = write(sink, events=(event("a", 1), event("b", 2), event("a", 1)))
    second = write(sink, events=(event("b", 2), event("c", 3)))
    rows = log.rows()
    log.close()

    assert ((2, 1), (1, 1), {"a", "b", "c"}, '{"total" : 1}') == (
        (first.applied, first.stale),
        (second.applied, second.stale),
        set(rows),
        rows["a"].fields["payload"],
    )


def test_an_aggregates_document_keeps_every_digit(target):
    """
    The newest state by id is kept exactly; a delete leaves a tombstone.
    """
    views = Models(target, RouteKind.AGGREGATE)
    sink = views.sink()
    exact = '{"total": 12345678901234567890.50, "lines": [{"n": 1}]}'
    write(sink, document("1", 1, '{"a": 1}'), document("2", 2, '{"b": 1}'))
    write(sink, document("1", 3, exact), document("2", 4, None))
    write(sink, document("1", 2, '{"old": 1}'))
    (stored,) = views.sql("select document::text from models.orders_live")
    rows = views.rows()
    views.close()

    assert ('{"lines": [{"n": 1}], "total": 12345678901234567890.50}',) == stored
    assert (True, False) == (rows["2"].is_deleted, rows["1"].is_deleted)
    assert "12345678901234567890.50" == str(rows["1"].fields["total"])


def test_keys_are_read_and_erased_by_their_text(models):
    """
    Keys of several columns may contain any characters.
    """
    columns = Column("id", "text"), Column("day", "timestamp with time zone")
    models.shapes = Shapes((*columns, *COLUMNS[1:]), ("id", "day"))
    sink = models.sink()
    names = ["a:b", "%", "", "quo'te", 'br{a}ce\\,"', "1"]
    day = "2026-01-01T00:00:00.500000Z"
    rows = [{"id": n, "day": day, "v": 1, "note": ""} for n in names]
    write(sink, *(change(each, 1, key=("id", "day")) for each in rows))
    every = sorted(models.rows())
    read = sorted(each.key for each in models.reader.at(ROUTE, every))
    sampled = list(models.reader.sample(ROUTE, 3))
    sink.erase(ROUTE, [*every[1:], "1:2:3", "none"])

    assert (6, every, 3) == (len(every), read, len(sampled))
    assert [every[0]] == list(models.rows())


def test_dropping_a_sink_keeps_tables_that_it_did_not_create(models):
    """
    Dropping twice is safe; a foreign table with a route's name is kept.
    """
    models.sql("create schema models; create table models.orders (id text)")
    upkeep.erase(models.sink_settings, "towpath")
    kept = models.sql("select count(*) from models.orders")
    models.sql("drop table models.orders")
    write(models.sink(), change(row(1, 1), 1), floors=(floor(1),))
    upkeep.erase(models.sink_settings, "towpath")
    upkeep.erase(models.sink_settings, "towpath")

    assert [(0,)] == kept
    assert [("towpath_tables",)] == models.sql(
        "select relname::text from pg_class join pg_namespace n on n.oid = relnamespace"
        " where nspname = 'models' and relkind in ('r', 'v')"
    )
    assert [] == models.sql("select * from models.towpath_tables")


def test_an_unknown_authority_and_a_session_without_tls_are_rejected(
    secure, database_15, tmp_path
):
    """
    The sink and its check fail with one line each; the correct authority is accepted.
    """
    write_certificates(tmp_path)
    name = psycopg.conninfo.conninfo_to_dict(database_15)["dbname"]
    messages = []
    for dsn in (secure.dsn(name, tmp_path / "ca.pem"), secure.plain(name)):
        stranger = Models(f"{dsn}{'' if '?' in dsn else '?sslmode=disable'}")
        with pytest.raises(TargetUnavailableError) as failure:
            stranger.sink()
        messages.append(str(failure.value))
        with pytest.raises(TargetUnavailableError):
            list(upkeep.missing_rights(stranger.sink_settings, "towpath"))
        stranger.close()
    known = Models(database_15)
    write(known.sink(), change(row(1, 1), 1))
    rows = known.rows()
    version = known.sql("show server_version_num")
    known.close()

    assert "SSL error" in messages[0]
    assert "no encryption" in messages[1]
    assert [1, 1] == [len(each.splitlines()) for each in messages]
    assert (["1"], "15") == ([*rows], version[0][0][:2])


def test_the_documented_rights_suffice_and_missing_ones_are_listed(models, unique):
    """
    A role is used first without rights, then with those in docs/rights.md.
    """
    models.sql(
        f"create role {unique} login; revoke temporary on database "
        f"{psycopg.conninfo.conninfo_to_dict(models.dsn)['dbname']} from public"
    )
    dsn = psycopg.conninfo.make_conninfo(models.dsn, user=unique)
    limited = Models(dsn)
    before = list(upkeep.missing_rights(limited.sink_settings, "towpath"))
    models.sql("create schema models; create table models.orders (id text)")
    between = list(upkeep.missing_rights(limited.sink_settings, "towpath"))
    with pytest.raises(StatementDeniedError):
        limited.sink()
    name = psycopg.conninfo.conninfo_to_dict(models.dsn)["dbname"]
    models.sql(
        f"drop schema models cascade; create schema models authorization {unique};"
        f" grant temporary on database {name} to {unique}"
    )
    after = list(upkeep.missing_rights(limited.sink_settings, "towpath"))
    write(limited.sink(), change(row(1, 1), 1))
    rows = limited.rows()
    limited.close()
    models.sql(f"drop owned by {unique} cascade; drop role {unique}")

    assert (["copy rows", "create the schema"], 3, [], ["1"]) == (
        [right for right in ("copy rows", "create the schema") if right in str(before)],
        *(len(between), after, list(rows)),
    )
