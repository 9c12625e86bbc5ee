"""Captured tables that are dropped, renamed and made again: no old row stays."""

import json

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def captured(followed):
    """Provide a relay that captures all of ``s`` and ``t``, with rows in each table."""
    followed.tables = [r"s\..*", r"t\..*"]
    followed.excluded = [r".*_old"]
    for table in ("s.dropped", "s.again", "s.moved", "s.swapped", "s.shifted"):
        followed.execute(f"create table {table} (id int primary key, v int)")
    followed.execute("create schema gone")
    followed.execute("create schema t")
    return followed


def fill(followed, table: str) -> None:
    """Make and fill a table's first rows: 1, 2."""
    followed.execute(f"insert into {table} values (1, 1), (2, 2)")  # noqa: S608


def truncated(followed, table: str) -> set[int]:
    """Return the keys that a reader has who knows truncates and no sweeps."""
    held: dict[int, set[int]] = {}
    for partition, row, _ in followed.envelopes(table):
        keys = held.setdefault(partition, set())
        if row["op"] == "t":
            keys.clear()
        elif row["op"] in "cur":
            keys.add(row["after"]["id"])
    return set().union(*held.values())


def events(followed) -> dict[str, tuple[str, str]]:
    """Return what the notifications say of tables: event and policy, by table."""
    documents = [
        json.loads(record.value()) for record in followed.records("notifications")
    ]
    return {
        each["id"]: (each["type"], each["additional_data"]["on_drop"])
        for each in documents
        if each["aggregate_type"] == "Table"
    }


def test_a_table_made_again_keeps_no_old_row(captured):
    """After drop and create, rename, swap and SET SCHEMA no name has a former row."""
    captured.prepare()
    for table in ("s.dropped", "s.again", "s.moved", "s.swapped", "s.shifted"):
        fill(captured, table)
    captured.start()
    captured.confirm()
    captured.wait_for(
        lambda: captured.one("select count(*) from towpath.captured") == 5
    )
    captured.execute("drop table s.dropped")
    with captured.connection.transaction():
        captured.execute("drop table s.again")
        captured.execute("create table s.again (id int primary key, v int)")
        captured.execute("insert into s.again values (3, 3)")
    captured.execute("alter table s.moved rename to moved_to")
    captured.execute("create table s.new (id int primary key, v int)")
    captured.execute("insert into s.new values (4, 4)")
    with captured.connection.transaction():
        captured.execute("alter table s.swapped rename to swapped_old")
        captured.execute("alter table s.new rename to swapped")
    captured.execute("alter table s.shifted set schema t")
    captured.wait_for(lambda: set(captured.fold("s.again")) == {3})
    captured.wait_for(lambda: set(captured.fold("s.swapped")) == {4})
    captured.wait_for(lambda: set(captured.fold("s.moved_to")) == {1, 2})
    captured.wait_for(lambda: set(captured.fold("t.shifted")) == {1, 2})
    captured.confirm()

    assert {3} == truncated(captured, "s.again")
    assert {4} == truncated(captured, "s.swapped")
    assert {
        "s.again": ("RECREATED", "keep"),
        "s.dropped": ("DROPPED", "keep"),
        "s.moved": ("RENAMED", "keep"),
        "s.shifted": ("RENAMED", "keep"),
        "s.swapped": ("RECREATED", "keep"),
    } == events(captured)


def test_a_table_recreated_while_the_relay_is_down_keeps_no_old_row(captured):
    """
    The stored captured tables are compared with the catalog at the start.
    """
    captured.prepare()
    fill(captured, "s.again")
    fill(captured, "s.dropped")
    captured.start()
    captured.confirm()
    captured.wait_for(
        lambda: captured.one("select count(*) from towpath.captured") == 5
    )
    captured.stop()
    captured.execute("drop table s.again, s.dropped")
    captured.execute("create table s.again (id int primary key, v int)")
    captured.execute("insert into s.again values (3, 3)")
    captured.start()
    captured.wait_for(lambda: set(captured.fold("s.again")) == {3})

    assert {1, 2} == set(captured.fold("s.dropped"))
    assert "s.dropped" in captured.wait_for_log("table dropped")["table"]


def test_a_dropped_table_is_emptied_where_that_is_wanted(captured):
    """With on_drop = "truncate" each name without a table loses its rows, and no other.

    The names whose rows were kept until then are emptied at the next start.
    """
    captured.execute("create table gone.one (id int primary key, v int)")
    captured.tables.append(r"gone\..*")
    captured.prepare()
    for table in ("s.dropped", "s.moved", "s.shifted", "gone.one"):
        fill(captured, table)
    captured.start()
    captured.confirm()
    captured.wait_for(
        lambda: captured.one("select count(*) from towpath.captured") == 6
    )
    captured.execute("drop table s.dropped")
    captured.wait_for_log("table dropped")
    captured.stop()
    kept = set(captured.fold("s.dropped"))
    captured.on_drop = "truncate"
    captured.write()
    captured.start()
    captured.execute("drop schema gone cascade")
    captured.execute("alter table s.moved rename to moved_to")
    for table in ("s.dropped", "gone.one", "s.moved"):
        captured.wait_for(lambda table=table: not captured.fold(table))
    captured.wait_for(lambda: set(captured.fold("s.moved_to")) == {1, 2})
    operations = [row["op"] for _, row, _ in captured.envelopes("gone.one")]

    assert {1, 2} == kept == set(captured.fold("s.shifted"))
    assert ["c", "c", "t", "t"] == sorted(operations)
    assert ("DROPPED", "truncate") == events(captured)["gone.one"]
    assert 0 == captured.one(
        "select count(*) from towpath.captured where gone_at is not null"
    )


def test_a_schema_renamed_in_mid_snapshot_fails_with_the_true_counts(followed):
    """The answer has the rows that the topic has, the last key and the reason."""
    followed.tables = ["s.big"]
    followed.snapshot = {"chunk_rows": 50}
    followed.execute("create table s.big (id int primary key, v int)")
    followed.execute("insert into s.big select g, g from generate_series(1, 5000) g")
    followed.prepare()
    followed.start()
    followed.execute(
        "insert into towpath.signal (id, type, data) values ('all', 'execute-snapshot',"
        """ '{"data-collections": ["s.big"], "max-rows-per-second": 500}')"""
    )
    progress = "select coalesce(max(chunks), 0) from towpath.snapshot"
    followed.wait_for(lambda: followed.one(progress) > 0)
    followed.execute("alter schema s rename to s2")
    answer = "select detail from towpath.signal where id = 'all' and status = 'failed'"
    followed.wait_for(lambda: followed.one(answer) is not None)
    account = followed.one(answer)["tables"]["s.big"]
    ids = [row["after"]["id"] for _, row, _ in followed.envelopes("s.big")]

    assert len(ids) == account["rows"] > 0
    assert [str(max(ids))] == account["last_key"]
    assert "does not exist" in account["reason"]
