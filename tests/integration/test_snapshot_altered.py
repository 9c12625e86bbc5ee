"""Alterations and accidents during a snapshot of a real relay."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.snapshots import SnapshotRig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 1_000
RATE = 1_000


class Source(SnapshotRig):
    """A database with tables ``s.t1`` to ``s.t9``, a relay, and its topics."""

    def prepare(self) -> None:
        """Create the tables, and start the relay."""
        tables = [f"s.t{number}" for number in range(1, 10)]
        self.execute("create schema s")
        for table in tables:
            self.execute(
                f"create table {table} (id int primary key, b int not null, c text)"
            )
            self.execute(
                f"insert into {table} select g, -g, 'c'"  # noqa: S608 - our own names
                f" from generate_series(1, {ROWS}) g"
            )
        self.configure(
            "admin_port = 0\n[relay.snapshot]\nchunk_rows = 50",
            tables=tables,
            partitions=1,
        )
        self.init()
        self.start()

    def execute(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a separate session."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def begin(self, table: str, **data: Any) -> None:
        """Request a snapshot of a table, with its name as id; wait for some rows."""
        requested = {"data_collections": [table], "max_rows_per_second": RATE}
        self.signal(table, **requested | data)
        self.wait_for(lambda: self.progress(table)[1] >= ROWS // 10)

    def progress(self, table: str) -> tuple[str, int, list[str], str]:
        """Return a table's state, rows, last key and error."""
        found = self.execute(
            "select state, rows, last_key, error from towpath.snapshot"
            " where snapshot_id = %s",
            table,
        )
        return found[0] if found else ("", 0, [], "")

    def end(self, table: str) -> str:
        """Wait until a table's snapshot has ended, and return its state."""
        self.wait_for(lambda: self.progress(table)[0] in {"completed", "failed"})
        return self.progress(table)[0]

    def latest(self, table: str) -> dict[str, dict[str, Any]]:
        """Return the rows that a sink of a table's topic would hold, by key."""
        rows: dict[str, dict[str, Any]] = {}
        for record in self.records(table):
            after = json.loads(record.value() or b"{}").get("after")
            if record.key() is not None:
                [key] = map(str, json.loads(record.key()).values())
                rows.pop(key, None)
                if after is not None:
                    rows[key] = after
        return rows


@pytest.fixture
def source(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Source]:
    """Provide a source whose relay is running."""
    stack.up("postgres", "kafka")
    source = Source(database, stack.kafka, unique, tmp_path)
    source.prepare()
    yield source
    source.close()


def test_alterations_during_a_snapshot_lose_nothing(source: Source):
    """
    The snapshot completes with every row; later rows have the new columns (A31).
    """
    alterations = {
        "s.t1": ("alter table s.t1 add d int default 5", {"id", "b", "c", "d"}),
        "s.t2": ("alter table s.t2 drop c", {"id", "b"}),
        "s.t3": ("alter table s.t3 rename b to z", {"id", "z", "c"}),
        "s.t4": ("alter table s.t4 alter b type text using b || '!'", {"id", "b", "c"}),
        "s.t5": ("alter table s.t5 alter c type varchar(99)", {"id", "b", "c"}),
        "s.t6": ("vacuum full s.t6", {"id", "b", "c"}),
    }
    for table, (alteration, _) in alterations.items():
        source.begin(table)
        source.execute(alteration)
    ends = {table: source.end(table) for table in alterations}
    found = {table: source.latest(table) for table in alterations}

    assert dict.fromkeys(alterations, "completed") == ends
    assert dict.fromkeys(alterations, ROWS) == {t: len(r) for t, r in found.items()}
    assert {table: columns for table, (_, columns) in alterations.items()} == {
        table: set(rows[str(ROWS)]) for table, rows in found.items()
    }
    assert f"{-ROWS}!" == found["s.t4"][str(ROWS)]["b"]


def test_alterations_of_the_key_or_the_table_fail_the_snapshot(source: Source):
    """
    The failed table is reported with its last key (A31).
    """
    alterations = {
        "s.t1": "alter table s.t1 drop constraint t1_pkey, add primary key (b)",
        "s.t2": "alter table s.t2 alter id type text",
        "s.t3": "drop table s.t3",
        "s.t4": "drop table s.t4; create table s.t4 (id int primary key)",
        "s.t5": "alter table s.t5 rename to gone",
        "s.t6": "create table s.n (like s.t6 including all);"
        " alter table s.t6 rename to old; alter table s.n rename to t6",
    }
    for table, alteration in alterations.items():
        source.begin(table)
        source.execute(alteration)
    values = {
        table: (source.end(table), *source.progress(table)[2:]) for table in alterations
    }
    source.begin("s.t7")

    assert dict.fromkeys(alterations, "failed") == {
        t: end for t, (end, *_) in values.items()
    }
    assert all(ROWS // 10 <= int(last) < ROWS for _, [last], _ in values.values())
    assert all(error for _, _, error in values.values())
    assert "completed" == source.end("s.t7")


def test_a_truncate_during_a_snapshot_removes_the_rows_read_before_it(source: Source):
    """
    The streamed truncate removes rows read before it, and none reappears (A31).
    """
    source.begin("s.t1")
    source.execute("truncate s.t1")
    source.execute("insert into s.t1 values (7, 7, 'new')")
    ended = source.end("s.t1")
    rows = source.latest("s.t1")

    assert ("completed", "new") == (ended, rows["7"]["c"])


def test_locks_and_open_transactions_only_delay_a_snapshot(source: Source):
    """
    A snapshot waits for an open ALTER, but not for idle or prepared transactions.
    """
    gid = source.prefix
    with (
        psycopg.connect(source.dsn) as idle,
        psycopg.connect(source.dsn, autocommit=True) as preparing,
        psycopg.connect(source.dsn) as altering,
    ):
        idle.execute("update s.t1 set c = 'idle' where id = 900")
        preparing.execute("begin")
        preparing.execute("update s.t1 set c = 'prepared' where id = 901")
        preparing.execute(f"prepare transaction '{gid}'")
        source.begin("s.t1")
        source.begin("s.t2")
        altering.execute("alter table s.t2 add d int default 5")
        first = source.end("s.t1")
        source.wait_for(lambda: "lock timeout" in source.printed())
        altering.commit()
        second = source.end("s.t2")
        preparing.execute(f"commit prepared '{gid}'")
        idle.commit()
    source.wait_for(
        lambda: (
            ["idle", "prepared"]
            == [source.latest("s.t1")[key]["c"] for key in ("900", "901")]
        )
    )

    assert ["completed"] * 2 == [first, second]
    assert [ROWS] * 2 == [len(source.latest(table)) for table in ("s.t1", "s.t2")]


def test_a_crash_of_the_server_only_delays_a_snapshot(source: Source, stack):
    """
    Readers, commands and stream reconnect, and the snapshot continues (A32).
    """
    source.begin("s.t1")
    [(folder,)] = source.execute("show data_directory")
    before = source.progress("s.t1")[1]
    pid = (Path(folder) / "postmaster.pid").read_text(encoding="utf-8").split()[0]
    os.kill(int(pid), signal.SIGQUIT)
    stack.stack.up(["postgres"])
    ended = source.end("s.t1")
    rows = source.latest("s.t1")

    assert ("completed", ROWS) == (ended, len(rows))
    assert before >= ROWS // 10
