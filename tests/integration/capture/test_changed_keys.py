"""Captured tables whose key changes: no row remains under the former key."""

import json
from typing import Any

import psycopg
import pytest

from towpath.relay.__main__ import init
from towpath.relay.commands.status import relay_status
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

# For each table: its replica identity, its primary key, and the statements that change
# the key.
CHANGES = {
    "s.other": ("full", "id", ["drop constraint other_pkey", "add primary key (b)"]),
    "s.added": ("full", None, ["add primary key (b)"]),
    "s.longer": (
        "full",
        "id",
        ["drop constraint longer_pkey", "add primary key (id, b)"],
    ),
    "s.renamed": ("full", "id", ["rename column id to number"]),
    "s.default": (
        "default",
        "id",
        ["drop constraint default_pkey", "add primary key (b)"],
    ),
}
KEYS = {
    "s.other": ["b"],
    "s.added": ["b"],
    "s.longer": ["id", "b"],
    "s.renamed": ["number"],
    "s.default": ["b"],
}
SAME = "s.same"


@pytest.fixture
def keyed(followed):
    """Provide a relay that closes gaps with snapshots, and empty tables for it."""
    followed.tables = [r"s\..*"]
    followed.on_gap = "snapshot"
    for table, (identity, key, _) in {**CHANGES, SAME: ("full", "id", [])}.items():
        primary = "" if key is None else f", primary key ({key})"
        quoted = f's."{table[2:]}"'
        followed.execute(
            f"create table {quoted} (id int not null, b int not null, v int{primary})"
        )
        followed.execute(f"alter table {quoted} replica identity {identity}")
    return followed


def alter(followed, table: str) -> None:
    """Change the key; update and delete rows before and after the change."""
    quoted = f's."{table[2:]}"'
    followed.execute(f"update {quoted} set v = 10 where b = 11")  # noqa: S608
    followed.execute(f"delete from {quoted} where b = 12")  # noqa: S608
    # With two statements, a running relay could find the table without a key.
    followed.execute(f"alter table {quoted} {', '.join(CHANGES[table][2])}")
    followed.execute(f"update {quoted} set v = 30 where b = 13")  # noqa: S608
    followed.execute(f"delete from {quoted} where b = 14")  # noqa: S608


def by_key(followed, table: str) -> dict[str, Any]:
    """Fold a topic by the keys of its records, as a sink does."""
    newest: dict[str, tuple[str, Any]] = {}
    floor = ""
    for record in followed.records(table):
        headers = {name: value.decode() for name, value in record.headers() or ()}
        floor = max(floor, headers.get("sweep", ""))
        if record.value() is None or "position" not in headers:
            continue
        row = json.loads(record.value())
        if row["op"] not in "crud":
            continue
        # Each record without a key is a separate row.
        raw = record.key() or headers["position"].encode()
        if raw not in newest or headers["position"] >= newest[raw][0]:
            newest[raw] = (headers["position"], row["after"])
    return {
        key: row
        for key, (position, row) in newest.items()
        if row is not None and position >= floor
    }


def expected(followed, table: str) -> dict[bytes, Any]:
    """Return a table's rows by its new key."""
    quoted = f's."{table[2:]}"'
    cursor = followed.connection.cursor(row_factory=psycopg.rows.dict_row)
    rows = cursor.execute(f"table {quoted}").fetchall()
    return {
        json.dumps({k: row[k] for k in KEYS[table]}, separators=(",", ":")).encode(): (
            row
        )
        for row in rows
    }


def changed(followed) -> dict[str, dict[str, str]]:
    """Return the details of the notifications of changed keys, by table."""
    sent = [json.loads(record.value()) for record in followed.records("notifications")]
    return {
        each["id"]: each["additional_data"]
        for each in sent
        if each["aggregate_type"] == "Table" and each["type"] == "KEY_CHANGED"
    }


def shown(followed) -> dict[str, Any]:
    """Return the output of towpath relay status."""
    return relay_status(load(followed.config, {}))


def begin(followed) -> None:
    """Start the relay, publish rows of every table, and wait for the stored keys."""
    followed.start()
    values = "(1, 11, 1), (2, 12, 2), (3, 13, 3), (4, 14, 4), (5, 15, 5)"
    for table in (*CHANGES, SAME):
        followed.execute(f'insert into s."{table[2:]}" values {values}')  # noqa: S608
    followed.confirm()
    wait_for_keys(followed)


def wait_for_keys(followed) -> None:
    """Wait until the relay has stored the key of every table."""
    wanted = len(CHANGES) + 1
    stored = (
        "select count(*) from towpath.captured c"
        " where to_jsonb(c) ->> 'key_columns' is not null"
    )
    followed.wait_for(lambda: followed.one(stored) == wanted)


@pytest.mark.parametrize("is_down", [True, False], ids=["down", "running"])
def test_no_row_remains_under_a_former_key(keyed, is_down):
    """The fold by key equals the table, even if the key changed during downtime."""
    keyed.prepare()
    begin(keyed)
    if is_down:
        keyed.stop()
    for table in CHANGES:
        alter(keyed, table)
    if is_down:
        keyed.start()
    for table in CHANGES:
        keyed.wait_for(
            lambda table=table: by_key(keyed, table) == expected(keyed, table)
        )
    keyed.wait_for(lambda: set(changed(keyed)) == set(CHANGES))

    assert "b" == changed(keyed)["s.other"]["key"]
    assert "id" == changed(keyed)["s.other"]["former_key"]
    assert {"s.other", "s.added"} <= {
        each["table"] for each in keyed.logged("table key changed")
    }


def test_keys_are_stored_for_tables_captured_by_an_older_release(keyed, capsys):
    """The relay, like relay init, adds the columns that towpath.captured lacks."""
    keyed.prepare()
    begin(keyed)
    keyed.stop()
    for column in ("key_columns", "former_key", "key_changed_at"):
        keyed.execute(f"alter table towpath.captured drop column {column}")
    init(keyed.config, dry_run=True)
    steps = capsys.readouterr().out
    before = shown(keyed)["changed_keys"]
    keyed.start()
    wait_for_keys(keyed)

    assert "creating table towpath.captured" in steps
    assert {} == before == shown(keyed)["changed_keys"]
    assert not keyed.logged("table key changed")


def test_a_changed_key_halts_or_plans_and_is_listed_until_the_snapshot_ends(keyed):
    """
    With on_gap = halt, the start is refused; with plan, the snapshot is only reported.

    The status lists the table until that snapshot has ended. A table that lost its key
    is listed as one that snapshots cannot read.
    """
    keyed.on_gap = "plan"
    keyed.prepare()
    begin(keyed)
    keyed.stop()
    alter(keyed, "s.other")
    keyed.execute("alter table s.same drop constraint same_pkey")
    keyed.on_gap = "halt"
    keyed.write()
    keyed.start()
    code = keyed.ended()
    keyed.on_gap = "plan"
    keyed.write()
    keyed.start()
    keyed.wait_for(lambda: {"s.other", "s.same"} == set(changed(keyed)))
    before = shown(keyed)
    keyed.execute(changed(keyed)["s.other"]["fill"])
    keyed.wait_for(lambda: by_key(keyed, "s.other") == expected(keyed, "s.other"))
    keyed.wait_for(lambda: "s.other" not in shown(keyed)["changed_keys"])

    assert 0 != code
    assert "the key of captured tables changed: s.other from (id) to (b)" in (
        keyed.printed()
    )
    assert {
        "s.other": "from (id) to (b)",
        "s.same": "from (id) to none",
    } == before["changed_keys"]
    assert "s.same" in before["tables_without_snapshot"]
    assert "fill" not in changed(keyed)["s.same"]
    assert "no primary key" in changed(keyed)["s.same"]["reason"]
