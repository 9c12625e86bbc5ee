"""Captured tables that are dropped, renamed or recreated: no old row remains."""

import json

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def captured(followed):
    """Provide a relay that captures all of ``s`` and ``t``, and empty tables for it."""
    followed.tables = [r"s\..*", r"t\..*"]
    followed.excluded = [r".*_old"]
    for table in ("s.dropped", "s.again", "s.moved", "s.swapped", "s.shifted"):
        followed.execute(f"create table {table} (id int primary key, v int)")
    followed.execute("create schema gone")
    followed.execute("create schema t")
    return followed


def fill(followed, table: str) -> None:
    """Insert the first rows of a table: 1 and 2."""
    followed.execute(f"insert into {table} values (1, 1), (2, 2)")  # noqa: S608


def truncated(followed, table: str) -> set[int]:
    """Return the keys held by a reader that handles truncates but ignores sweeps."""
    held: dict[int, set[int]] = {}
    for partition, row, _ in followed.envelopes(table):
        keys = held.setdefault(partition, set())
        if row["op"] == "t":
            keys.clear()
        elif row["op"] in "cur":
            keys.add(row["after"]["id"])
    return set().union(*held.values())


def events(followed) -> dict[str, tuple[str, str]]:
    """Return the event and the on_drop policy of each notification, by table."""
    documents = [
        json.loads(record.value()) for record in followed.records("notifications")
    ]
    return {
        each["id"]: (each["type"], each["additional_data"]["on_drop"])
        for each in documents
        if each["aggregate_type"] == "Table"
    }


def test_a_recreated_table_keeps_no_old_row(captured):
    """After drop and create, rename, swap and SET SCHEMA, no name has an old row."""
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
    When it starts, the relay compares the stored tables with the catalog.
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


def test_a_dropped_table_is_emptied_if_that_is_configured(captured):
    """With on_drop = "truncate", the topic of a dropped table loses its rows.

    Rows that were kept before the setting was changed are removed at the next start.
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


def test_a_schema_rename_fails_a_running_snapshot_with_correct_counts(followed):
    """The answer has the number of delivered rows, the last key and the reason."""
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
    outcome = followed.one(answer)["tables"]["s.big"]
    ids = [row["after"]["id"] for _, row, _ in followed.envelopes("s.big")]

    assert len(ids) == outcome["rows"] > 0
    assert [str(max(ids))] == outcome["last_key"]
    assert "does not exist" in outcome["reason"]
