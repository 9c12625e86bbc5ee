"""Incremental snapshots of a relay process, with a real Postgres and a real Kafka."""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.invisible_commits import late_commits, wait_for_standby
from support.snapshots import SnapshotRig
from support.topics import headers_of, read_to_end
from support.writers import RandomWriters

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

CHUNK_ROWS = 100


@dataclass
class Fold:
    """The rows of a sink that has read a topic, and counts of the records it read."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    snapshots: Counter[str] = field(default_factory=Counter)
    partial: set[str] = field(default_factory=set)
    stale: list[str] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)

    def take(self, key: str, value: bytes | None, headers: dict[str, str]) -> None:
        """Apply one record, guarded by its position; collect stale READ rows."""
        if value is None:
            return
        envelope = json.loads(value)
        operation, after = envelope["op"], envelope["after"]
        self.operations[operation] += 1
        if "snapshot" in headers:
            self.snapshots[headers["snapshot"]] += 1
        if operation == "r":
            self.reads[key] += 1
            if int(after["v"]) < self.newest.get(key, -1):
                self.stale.append(key)
        elif after is not None:
            self.newest[key] = int(after["v"])
        position = headers["position"][:27]
        if position >= self.positions.get(key, ""):
            self.positions[key] = position
            self.apply(key, after, is_partial="unchanged" in headers)

    def apply(self, key: str, after: dict[str, Any] | None, *, is_partial: bool):
        """Apply the newest change of a key."""
        self.partial.discard(key)
        if after is None:
            self.rows.pop(key, None)
        elif is_partial and key not in self.rows:
            self.partial.add(key)
        else:
            self.rows[key] = {**self.rows.get(key, {}), **after}


class Source(SnapshotRig):
    """A database, a relay that captures its table ``s.a``, and the relay's topics."""

    def prepare(self, *tables: str) -> None:
        """Write the configuration, and prepare the database with relay init."""
        self.configure(
            f"""
[relay.snapshot]
chunk_rows = {CHUNK_ROWS}
[[sink]]
name = "search2"
kind = "search"
url = "http://127.0.0.1:1"
[[sink.route]]
topic = "{self.prefix}.s.a"
name = "a-2"
""",
            tables=tables,
        )
        self.init()

    def handled_rows(self) -> int:
        """Return the number of rows that the snapshot has delivered or dropped."""
        statement = (
            "select coalesce(sum(rows + dropped), 0) from towpath.snapshot"
            " where snapshot_id = 's1'"
        )
        return self.connection.execute(statement).fetchone()[0]

    def table(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the table, by key."""
        rows = self.connection.execute("select to_jsonb(a) from s.a a").fetchall()
        return {json.dumps({"id": row["id"]}): row for (row,) in rows}

    def fold(self, topic: str | None = None) -> Fold:
        """Read a topic from its beginning to its current end."""
        fold = Fold()
        for record in read_to_end(self.kafka, topic or self.topic("s.a")):
            key = json.dumps(json.loads(record.key()))
            fold.take(key, record.value(), headers_of(record))
        return fold

    def requests(self) -> list[tuple[str, str, int]]:
        """Return the relay's own key requests: id, state, number of keys."""
        statement = (
            "select snapshot_id, state, asked_keys from towpath.snapshot"
            " where asked_until is not null order by asked_until"
        )
        return self.connection.execute(statement).fetchall()


@pytest.fixture
def source(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Source]:
    """Provide a source with a table in which each write sets a higher ``v``."""
    stack.up("postgres", "kafka")
    source = Source(database, stack.kafka, unique, tmp_path)
    source.connection.execute("create schema s")
    source.connection.execute("create sequence s.v")
    source.connection.execute(
        "create table s.a (id int primary key, v bigint default nextval('s.v'),"
        " note text, large text)"
    )
    # Out of line and uncompressed: updates to other columns do not stream the value.
    source.connection.execute("alter table s.a alter large set storage external")
    yield source
    source.close()


def fill(source: Source, count: int) -> None:
    """Insert rows before the slot exists, so that the stream does not have them."""
    source.connection.execute(
        "insert into s.a (id, note, large) select g, 'old',"
        " case when g %% 10 = 0 then repeat(md5(g::text), 100) end"
        " from generate_series(1, %s) g",
        (count,),
    )


class Writers(RandomWriters):
    """
    Sessions that write at random until they are stopped.

    The stream does not have the large value of a row whose key changes.
    """

    def change(self, connection: psycopg.Connection, rng: random.Random) -> None:
        with (
            contextlib.suppress(
                psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected
            ),
            connection.transaction(),
        ):
            for _ in range(rng.randint(1, 3)):
                self._change(connection, rng)

    def _change(self, connection: psycopg.Connection, rng: random.Random) -> None:
        key, other = (rng.randint(1, self.highest * 11 // 10) for _ in range(2))
        statements = [
            "update s.a set v = nextval('s.v'), note = 'u' where id = %(key)s",
            "update s.a set v = nextval('s.v'), note = 'u' where id = %(key)s",
            "update s.a set v = nextval('s.v'), large = 'x' where id = %(key)s",
            "delete from s.a where id = %(key)s",
            "insert into s.a (id, note) values (%(key)s, 'i')",
            "update s.a set v = nextval('s.v'), id = %(other)s where id = %(key)s",
        ]
        connection.execute(rng.choice(statements), {"key": key, "other": other})


def test_the_topic_of_a_snapshot_during_writes_folds_to_the_table(source: Source):
    """
    With updates, deletes, inserts and key changes, no row is stale or lost (A1-A4).
    """
    fill(source, 3_000)
    source.prepare("s.a")
    source.start()
    with Writers(source.dsn, 3_000) as writers:
        source.wait_for(lambda: writers.writes > 50)
        source.signal("s1", data_collections=["s.a"], max_rows_per_second=2_000)
        detail = source.wait_for_answer("s1")
    source.catch_up()
    fold = source.fold()

    assert [] == fold.stale
    assert detail["rows"] == fold.snapshots["s1"]
    assert source.table() == fold.rows


def test_a_killed_relay_continues_after_the_last_stored_chunk(source: Source):
    """
    A kill during a snapshot repeats at most the chunks in flight (A5).
    """
    fill(source, 20_000)
    source.prepare("s.a")
    source.start()
    # Progress is stored faster than this even if the disk is busy. Delivered chunks
    # whose progress is not stored yet are repeated, too.
    source.signal("s1", data_collections=["s.a"], max_rows_per_second=3_000)
    kills = 0
    with Writers(source.dsn, 20_000, count=1):
        for goal in (2_000, 9_000):
            source.wait_for(lambda goal=goal: source.handled_rows() >= goal)
            source.kill()
            source.start()
            kills += 1
        detail = source.wait_for_answer("s1")
    source.catch_up()
    fold = source.fold()

    assert [] == fold.stale
    assert fold.snapshots["s1"] - detail["rows"] <= kills * 3 * CHUNK_ROWS
    assert source.table() == fold.rows


def test_invalid_signals_are_answered_and_the_stream_continues(source: Source):
    """
    Malformed data and unknown names are rejected with a reason (A29, A40).
    """
    source.connection.execute("create table s.keyless (x int)")
    source.prepare("s.a")
    source.start()
    source.connection.execute(
        "insert into towpath.signal values ('broken', 'execute-snapshot', '{oops')"
    )
    source.signal("unknown", data_collections=["s.b"])
    source.signal("nowhere", data_collections=["s.a"], target="nobody")
    source.signal("type", kind="dance")
    source.signal("log", kind="log", message="hello")
    fill(source, 10)
    source.signal("good", data_collections=["s.a", "s.b"])
    good = source.wait_for_answer("good", "failed")
    wrong = ("broken", "unknown", "nowhere", "type")
    answers = {name: source.wait_for_answer(name, "rejected") for name in wrong}
    source.wait_for_answer("log")
    source.catch_up()

    assert all(answer["reason"] for answer in answers.values())
    assert ("completed", "failed") == (
        good["tables"]["s.a"]["state"],
        good["tables"]["s.b"]["state"],
    )
    assert source.table() == source.fold().rows


def test_a_target_gets_its_rows_on_a_separate_topic(source: Source):
    """
    READ rows for one sink are not sent to all sinks (B33).

    The sink may be declared while the relay is running.
    """
    fill(source, 250)
    source.prepare("s.a")
    source.start()
    source.signal("early", data_collections=["s.a"], target="search3")
    source.wait_for_answer("early", "rejected")
    block = source.config.read_text().partition("[[sink]]")[2]
    source.config.write_text(
        source.config.read_text()
        + "[[sink]]"
        + block.replace("-2", "-3").replace("search2", "search3")
    )
    source.signal("s1", data_collections=["s.a"], target="search3")
    source.wait_for_answer("s1")
    shared = source.fold()
    own = source.fold(f"{source.prefix}.s.a.backfill.search3")

    assert ({}, source.table()) == (shared.rows, own.rows)


def test_a_row_whose_key_changes_is_completed_without_a_signal(source: Source):
    """
    A key change that lacks the large column is followed by the whole row.

    This holds even if the key changes twice; a row deleted afterwards remains deleted.
    """
    fill(source, 0)
    source.prepare("s.a")
    source.start()
    source.connection.execute(
        "insert into s.a (id, large) select g, repeat(md5(g::text), 100)"
        " from generate_series(1, 4) g"
    )
    for statement in (
        "update s.a set id = 101 where id = 1",
        "update s.a set id = 102 where id = 2",
        "update s.a set id = 202 where id = 102",
        "update s.a set id = 103 where id = 3",
        "delete from s.a where id = 103",
        "update s.a set id = 104, note = 'moved' where id = 4",
        "update s.a set note = 'again' where id = 104",
    ):
        source.connection.execute(statement)
    source.catch_up()
    fold = source.fold()
    states = {state for _, state, _ in source.requests()}

    assert {101, 104, 202} == {row["id"] for row in fold.rows.values()}
    assert (set(), {"completed"}, []) == (fold.partial, states, fold.stale)
    assert source.table() == fold.rows


@pytest.mark.parametrize("when", ["incomplete", "stored", "running"])
def test_a_killed_relay_completes_rows_whose_key_has_changed(source: Source, when: str):
    """
    A kill right after the change loses no key request, and repeats none.
    """
    fill(source, 500)
    source.prepare("s.a")
    source.start()
    source.signal("s1", data_collections=["s.a"])
    source.wait_for_answer("s1")
    moments = {
        "incomplete": lambda: '{"id": 1010}' in source.fold().positions,
        "stored": lambda: bool(source.requests()),
        "running": lambda: any(s != "queued" for _, s, _ in source.requests()),
    }
    source.connection.execute(
        "update s.a set id = id + 1000, v = nextval('s.v') where large is not null"
    )
    source.wait_for(moments[when])
    source.kill()
    source.start()
    source.catch_up()
    fold = source.fold()
    requests = source.requests()

    assert {"completed"} == {state for _, state, _ in requests}
    assert (50, []) == (sum(keys for _, _, keys in requests), fold.stale)
    assert source.table() == fold.rows


def test_a_mass_change_of_keys_causes_few_requests(source: Source):
    """
    A transaction that changes 5,000 keys causes few requests; all rows are completed.
    """
    source.prepare("s.a")
    source.start()
    source.connection.execute(
        "insert into s.a (id, large) select g, repeat(md5(g::text), 100)"
        " from generate_series(1, 5000) g"
    )
    source.connection.execute("update s.a set id = id + 10000, v = nextval('s.v')")
    source.catch_up()
    fold = source.fold()
    requests = source.requests()

    assert 5_000 == sum(keys for _, _, keys in requests)
    assert len(requests) <= 3
    assert (set(), []) == (fold.partial, fold.stale)
    assert source.table() == fold.rows


def test_a_signal_may_list_keys(source: Source):
    """
    Only those rows are read; a key without a row gives a delete and a tombstone.
    """
    fill(source, 250)
    source.prepare("s.a")
    source.start()
    source.signal("wrong", data_collections=["s.a"], keys=[["seven"]])
    source.signal("wide", data_collections=["s.a"], keys=[[7, 8]])
    source.signal("two", data_collections=["s.a", "s.b"], keys=[[7]])
    source.signal("s1", data_collections=["s.a"], keys=[["007"], [201], [999]])
    reasons = [
        source.wait_for_answer(name, "rejected")["reason"]
        for name in ("wrong", "wide", "two")
    ]
    detail = source.wait_for_answer("s1")
    source.signal("s2", data_collections=["s.a"], keys=[[8], [998]], target="search2")
    source.wait_for_answer("s2")
    shared = source.fold()
    own = source.fold(f"{source.prefix}.s.a.backfill.search2")

    assert ["invalid input syntax", "does not fit", "name that table only"] == [
        part
        for part, reason in zip(
            ("invalid input syntax", "does not fit", "name that table only"),
            reasons,
            strict=True,
        )
        if part in reason
    ]
    assert (3, 3) == (detail["rows"], shared.snapshots["s1"])
    assert ({7, 201}, {"r": 2, "d": 1}) == (
        {row["id"] for row in shared.rows.values()},
        shared.operations,
    )
    assert ({'{"id": 8}'}, {"r": 1, "d": 1}) == (set(own.rows), own.operations)


def test_a_filter_chooses_the_rows_to_read(source: Source):
    """
    Only matching rows are delivered (A7).
    """
    fill(source, 250)
    source.prepare("s.a")
    source.start()
    condition = {"data-collection": "s.a", "filter": "id = 7 or id = 201 or id = 250"}
    source.signal("s1", data_collections=["s.a"], additional_conditions=[condition])
    source.wait_for_answer("s1")

    assert {7, 201, 250} == {row["id"] for row in source.fold().rows.values()}


def test_columns_may_be_added_and_dropped_during_a_snapshot(source: Source):
    """
    Later chunks have the new columns, and no row is missing (A31).
    """
    fill(source, 3_000)
    source.prepare("s.a")
    source.start()
    source.signal("s1", data_collections=["s.a"], max_rows_per_second=3_000)
    started = "select coalesce(max(rows), 0) > 300 from towpath.snapshot"
    source.wait_for(lambda: source.connection.execute(started).fetchone()[0])
    source.connection.execute("alter table s.a add added int default 5")
    source.connection.execute("alter table s.a drop note")
    source.connection.execute("alter table s.a alter v type numeric")
    detail = source.wait_for_answer("s1")
    rows = source.fold().rows

    assert (3_000, 3_000) == (detail["rows"], len(rows))
    assert {"id", "v", "large", "added"} == rows['{"id": 3000}'].keys()
    assert {"id", "v", "large", "note"} == rows['{"id": 1}'].keys()


def test_a_dropped_key_fails_the_snapshot_with_its_last_key(source: Source):
    """
    The snapshot of a table that loses its key is not completed (A31).
    """
    fill(source, 3_000)
    source.prepare("s.a")
    source.start()
    source.signal("s1", data_collections=["s.a"], max_rows_per_second=1_000)
    started = "select coalesce(max(rows), 0) > 300 from towpath.snapshot"
    source.wait_for(lambda: source.connection.execute(started).fetchone()[0])
    source.connection.execute("alter table s.a drop constraint a_pkey")
    detail = source.wait_for_answer("s1", "failed")["tables"]["s.a"]
    state, last_key = source.connection.execute(
        "select state, last_key from towpath.snapshot"
    ).fetchone()

    assert "it has no primary key" in detail["reason"]
    assert ("failed", detail["last_key"]) == (state, last_key)
    assert 300 <= int(last_key[0]) < 3_000


def test_a_stopped_snapshot_is_answered_as_stopped(source: Source):
    """
    A stop ends the snapshot; a new signal causes the table to be read again (A13).
    """
    fill(source, 2_000)
    source.prepare("s.a")
    source.start()
    source.signal("s1", data_collections=["s.a"], max_rows_per_second=200)
    source.wait_for(lambda: source.answer("s1")[0] == "running")
    source.signal("s2", kind="stop-snapshot")
    stopped = source.wait_for_answer("s2")["stopped"]
    detail = source.wait_for_answer("s1", "failed")
    source.signal("s3", data_collections=["s.a"])
    again = source.wait_for_answer("s3")

    assert (["s.a"], "stopped") == (stopped, detail["tables"]["s.a"]["state"])
    assert 2_000 == again["rows"]


@pytest.fixture
def late(source: Source) -> Iterator[Callable[[str], None]]:
    """Provide a function whose commits are in the WAL, but not yet visible."""
    with late_commits(source) as commit:
        yield commit


def test_stale_rows_of_commits_that_are_not_visible_yet_are_dropped(
    source: Source, late: Callable[[str], None]
):
    """
    Rows that a streamed but invisible commit has changed are not delivered (B17).
    """
    fill(source, 2_000)
    source.prepare("s.a")
    source.start()
    source.signal("s1", data_collections=["s.a"], max_rows_per_second=400)
    started = "select coalesce(max(rows), 0) > 100 from towpath.snapshot"
    source.wait_for(lambda: source.connection.execute(started).fetchone()[0])
    late("update s.a set v = nextval('s.v'), note = 'new' where id = 1995")
    late("delete from s.a where id = 1996")
    source.wait_for(lambda: {"u", "d"} <= source.fold().operations.keys())
    seen = source.connection.execute(
        "select count(*) from s.a where id = 1996 or (id = 1995 and note = 'old')"
    ).fetchone()
    detail = source.wait_for_answer("s1")
    fold = source.fold()

    assert (2,) == seen
    assert 2 == detail["dropped"]
    assert (0, 0, []) == (
        fold.reads['{"id": 1995}'],
        fold.reads['{"id": 1996}'],
        fold.stale,
    )
    assert "new" == fold.rows['{"id": 1995}']["note"]


def test_composite_keys_are_recognized_in_key_order(
    source: Source, late: Callable[[str], None]
):
    """
    Stream and chunk agree on a key, whatever the order of the table's columns (A19).
    """
    source.connection.execute(
        "create table s.lines (line int, v bigint, ord int, primary key (ord, line))"
    )
    source.connection.execute(
        "insert into s.lines select l, 0, o from generate_series(1, 400) o,"
        " generate_series(1, 5) l"
    )
    source.prepare("s.a", "s.lines")
    source.start()
    source.signal("s1", data_collections=["s.lines"], max_rows_per_second=400)
    started = "select coalesce(max(rows), 0) > 100 from towpath.snapshot"
    source.wait_for(lambda: source.connection.execute(started).fetchone()[0])
    topic = f"{source.prefix}.s.lines"
    late("update s.lines set v = 1 where ord = 399 and line = 2")
    source.wait_for(lambda: source.fold(topic).operations["u"] == 1)
    detail = source.wait_for_answer("s1")
    fold = source.fold(topic)

    assert (1, 1_999, []) == (detail["dropped"], fold.reads.total(), fold.stale)
    assert 1 == fold.rows['{"ord": 399, "line": 2}']["v"]


def test_nothing_is_read_before_earlier_commits_are_visible(
    source: Source, late: Callable[[str], None]
):
    """
    A snapshot waits until earlier streamed commits are visible; the WAL is retained.
    """
    fill(source, 100)
    source.prepare("s.a")
    source.start()
    late("update s.a set v = nextval('s.v'), note = 'new' where id = 5")
    late("delete from s.a where id = 6")
    source.wait_for(lambda: {"u", "d"} <= source.fold().operations.keys())
    source.kill()
    source.start()
    source.signal("s1", data_collections=["s.a"])
    source.wait_for(lambda: source.answer("s1")[0] == "running")
    source.connection.execute("insert into s.a (id, note) values (101, 'later')")
    source.wait_for(lambda: '{"id": 101}' in source.fold().rows)
    early = source.fold()
    wait_for_standby(source, "")
    source.wait_for_answer("s1")
    source.catch_up()
    fold = source.fold()

    assert 0 == early.reads.total()
    assert (0, []) == (fold.reads['{"id": 6}'], fold.stale)
    assert source.table() == fold.rows
