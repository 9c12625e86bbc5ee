"""Tables created while the relay runs are captured and filled without a restart."""

import threading

import psycopg
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def published(followed) -> set[str]:
    """Return the tables of the publication, without the relay's own tables."""
    rows = followed.execute(
        "select schemaname || '.' || tablename from pg_publication_tables"
        " where pubname = 'towpath'"
    )
    return {name for (name,) in rows} - {"towpath.signal"}


def refused(followed) -> dict[str, str]:
    """Return the tables that are not captured, with the reasons."""
    log_records = followed.logged("table not captured")
    return {each["table"]: each["reason"] for each in log_records}


def filled(followed, table: str) -> str:
    """Wait until a new table is filled; return the signal's id."""
    statement = (
        "select id from towpath.signal where status = 'completed'"
        " and starts_with(id, 'towpath-new-') and data like %s"
    )
    followed.wait_for(lambda: followed.one(statement, f"%{table}%") is not None)
    return followed.one(statement, f"%{table}%")


@pytest.fixture
def patterned(followed):
    """
    Provide a running relay that captures all of ``s`` except names that end in x.
    """
    followed.tables = [r"s\..*", "named.later"]
    followed.excluded = [r"s\..*x"]
    followed.execute("create table s.first (id int primary key, v int)")
    followed.execute("insert into s.first values (1, 1)")
    followed.execute("create schema named")
    followed.tables.remove("named.later")
    followed.prepare()
    followed.tables.append("named.later")
    followed.write()
    followed.start()
    followed.confirm()
    followed.wait_for_log("table not captured")
    return followed


def test_a_table_created_under_load_loses_nothing(patterned):
    """
    A24, B30: the fold has all rows from before, during and after the capture.
    """
    patterned.execute("create table s.orders (id serial primary key, v int)")
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(patterned.dsn, autocommit=True) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                with connection.transaction():
                    connection.execute("insert into s.orders (v) values (%s)", [number])
                    connection.execute(
                        "update s.orders set v = v + 1 where id = %s", [number // 2]
                    )
                    connection.execute(
                        "delete from s.orders where id = %s", [number // 3]
                    )

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    filled(patterned, "s.orders")
    stop.set()
    for writer in writers:
        writer.join()
    patterned.execute("insert into s.orders (v) values (-1)")
    patterned.confirm()

    assert patterned.rows("s.orders") == patterned.fold("s.orders")


def test_the_capture_of_a_table_waits_for_open_writers(patterned):
    """
    A transaction that is open while its table is captured is published completely.
    """
    with psycopg.connect(patterned.dsn) as writer:
        patterned.execute("create table s.slow (id int primary key, v int)")
        writer.execute("insert into s.slow values (1, 1)")
        # If the table were captured during the write, a snapshot would miss these rows.
        read = "select 1 from towpath.signal where id like %s and status = 'completed'"
        patterned.wait_for(
            lambda: (
                "s.slow" in refused(patterned)
                or patterned.one(read, "towpath-new-s.slow%") is not None
            )
        )
        writer.execute("insert into s.slow values (3, 3)")
        before = published(patterned)
    patterned.execute("insert into s.slow values (2, 2)")
    filled(patterned, "s.slow")
    patterned.confirm()

    assert {1, 2, 3} == set(patterned.fold("s.slow"))
    assert "s.slow" not in before


def test_a_table_is_filled_once(patterned):
    """
    A captured table is not filled again when the relay restarts.
    """
    patterned.execute("create table s.once (id int primary key)")
    patterned.execute("insert into s.once select generate_series(1, 10)")
    filled(patterned, "s.once")
    patterned.stop()
    patterned.start()
    patterned.execute("insert into s.once values (11)")
    patterned.execute("create table s.witness (id int primary key)")
    filled(patterned, "s.witness")
    patterned.confirm()
    operations = [envelope["op"] for _, envelope, _ in patterned.envelopes("s.once")]

    assert sorted("r" * 10 + "c") == sorted(operations)


def test_a_table_removed_from_the_publication_is_filled_again(patterned):
    """
    A snapshot with a sweep makes up for changes that the publication did not send.
    """
    patterned.execute("create table s.back (id int primary key)")
    first = filled(patterned, "s.back")
    with patterned.connection.transaction():
        patterned.execute("alter publication towpath drop table s.back")
        patterned.execute("insert into s.back values (7)")
    statement = "select data from towpath.signal where id = %s and status = 'completed'"
    patterned.wait_for(lambda: patterned.one(statement, f"{first}-2") is not None)

    assert ({7}, True) == (
        set(patterned.fold("s.back")),
        '"sweep": true' in patterned.one(statement, f"{first}-2"),
    )


def test_a_table_that_cannot_be_captured_is_refused_until_it_is_repaired(patterned):
    """
    I7: the reason is reported once; a repaired table needs no other step.
    """
    patterned.execute("create unlogged table s.loose (id int primary key)")
    patterned.execute("create table s.keyless (v int)")
    patterned.execute("create table s.leftx (id int primary key)")
    patterned.wait_for(lambda: len(refused(patterned)) == 3)
    reasons = refused(patterned)
    patterned.execute("insert into s.loose values (1)")
    patterned.execute("alter table s.loose set logged")
    filled(patterned, "s.loose")
    patterned.confirm()

    assert {"s.loose", "s.keyless", "named.later"} == set(reasons)
    assert "not logged" in reasons["s.loose"]
    assert "cannot be identified" in reasons["s.keyless"]
    assert {1} == set(patterned.fold("s.loose"))
    assert {"s.first", "s.loose"} == published(patterned)


def test_a_named_table_may_be_created_later_and_recreated(patterned):
    """
    A table named in the file is filled once it exists; a recreated one is filled again.
    """
    patterned.execute("create table named.later (id int primary key)")
    patterned.execute("insert into named.later values (1)")
    first = filled(patterned, "named.later")
    patterned.execute("drop table named.later")
    patterned.wait_for_log("table dropped")
    patterned.execute("create table named.later (id int primary key)")
    patterned.execute("insert into named.later values (2)")
    second = (
        "select count(*) from towpath.signal where starts_with(id, 'towpath-new-named')"
        " and status = 'completed'"
    )
    patterned.wait_for(lambda: patterned.one(second) == 2)
    patterned.confirm()

    assert {2} == set(patterned.fold("named.later"))
    assert first.startswith("towpath-new-named.later-")


def test_a_swap_of_names_is_reported_and_the_new_table_is_captured(patterned):
    """
    B30: the renamed table and the table that takes its name are both reported.
    """
    patterned.execute("create table s.swapx (id int primary key)")
    patterned.execute("insert into s.swapx values (50)")
    with patterned.connection.transaction():
        patterned.execute("alter table s.first rename to firstx")
        patterned.execute("alter table s.swapx rename to first")
    recreated = patterned.wait_for_log("table recreated")
    foreign = patterned.wait_for_log("publication sends a table that is not captured")
    filled(patterned, "s.first")
    patterned.confirm()

    assert ("s.first", "s.firstx", "s.firstx") == (
        recreated["table"],
        recreated["renamed_to"],
        foreign["table"],
    )
    assert {50} == set(patterned.fold("s.first"))


def test_rows_of_partitions_created_later_arrive_through_the_root(patterned):
    """
    A partition is neither captured nor filled separately from its root.
    """
    patterned.execute(
        "create table s.parts (id int, day date, primary key (id, day))"
        " partition by range (day)"
    )
    patterned.execute(
        "create table s.parts_1 partition of s.parts"
        " for values from ('2026-01-01') to ('2026-02-01')"
    )
    patterned.execute("insert into s.parts values (1, '2026-01-05')")
    filled(patterned, "s.parts")
    patterned.execute(
        "create table s.parts_2 partition of s.parts"
        " for values from ('2026-02-01') to ('2026-03-01')"
    )
    patterned.execute("insert into s.parts values (2, '2026-02-05')")
    patterned.confirm()

    assert {1, 2} == set(patterned.fold("s.parts"))
    assert {"s.first", "s.parts"} == published(patterned)


def test_new_tables_are_not_filled_if_that_is_disabled(followed):
    """
    With fill_new_tables = false, only changes made after the capture are published.
    """
    followed.tables = [r"s\..*"]
    followed.snapshot = {"fill_new_tables": False}
    followed.prepare()
    followed.start()
    followed.execute("create table s.late (id int primary key)")
    followed.execute("insert into s.late values (1)")
    followed.wait_for_log("table captured")
    followed.execute("insert into s.late values (2)")
    followed.confirm()

    assert [2] == [row["after"]["id"] for _, row, _ in followed.envelopes("s.late")]
