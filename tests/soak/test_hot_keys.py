"""
Snapshots of hot keys under pgbench deliver no stale row (B17).

A commit is normally visible microseconds after it is in the WAL. To provoke late
visibility, pgbench writes a few keys as fast as the server can, while snapshots of the
table run without a pause. Every delivered row is compared with the events delivered
before it, by position and by a counter that rises for each key; at the end, the result
is compared with the table. The soak test delivers five million rows; a smaller load
runs for half a minute as an integration test.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from towpath.deploy.local import postgres
from towpath.loadtests.chaos.fold import Fold, differences
from towpath.loadtests.chaos.observers import TopicReader
from towpath.loadtests.chaos.requests import ENDED, answers, send
from towpath.relay.__main__ import init
from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
SMALL = (pytest.mark.integration, pytest.mark.timeout(180))
LARGE = (pytest.mark.soak, pytest.mark.timeout(3600))
WITHIN_S = 100.0
QUEUED = 3

# A writer that inserts or deletes a row locks its key before it draws a counter value.
SCRIPTS = {
    "update.sql@16": """
\\set k random(1, :keys)
update hot.k set v = nextval('hot.v'), note = md5(random()::text) where id = :k;
""",
    "delete.sql@1": """
\\set k random(1, :keys)
begin;
select pg_advisory_xact_lock(:k);
delete from hot.k where id = :k;
end;
""",
    "insert.sql@3": """
\\set k random(1, :keys)
begin;
select pg_advisory_xact_lock(:k);
insert into hot.k (id) values (:k) on conflict do nothing;
end;
""",
}
TABLE = """
create schema hot; create sequence hot.v;
create table hot.k (id int primary key, v bigint not null default nextval('hot.v'),
  note text default 'new') with (fillfactor = 50)
"""
CONFIGURATION = """
version = 1
[[source]]
dsn = "{dsn}"
prefix = "{prefix}"
slot = "{prefix}"
tables = ["hot.k"]
[kafka]
bootstrap_servers = "{kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 3
"""


class Load(NamedTuple):
    """The number of keys, the writers and their duration, and the rows to deliver."""

    keys: int
    clients: int
    per_s: int
    for_s: float
    reads: int = 1
    within_s: float = 0.0


LOADS = [
    pytest.param(Load(2_000, 40, 3000, 5.0), marks=SMALL, id="small"),
    pytest.param(Load(200, 40, 4000, 120.0), marks=LARGE, id="200"),
    pytest.param(Load(2_000, 80, 4000, 120.0), marks=LARGE, id="2000"),
    pytest.param(
        Load(20_000, 20, 2000, 60.0, 5_000_000, 3000.0), marks=LARGE, id="20000"
    ),
]


@contextlib.contextmanager
def pgbench(programs: Path, folder: Path, dsn: str, load: Load) -> Iterator[None]:
    """Write with pgbench during the block."""
    scripts = []
    for name, script in SCRIPTS.items():
        path = folder / name.partition("@")[0]
        path.write_text(script, encoding="utf-8")
        scripts += ["-f", f"{path}@{name.partition('@')[2]}"]
    numbers = ["-c", load.clients, "-j", 2, "-T", 36_000, "-R", load.per_s]
    with subprocess.Popen(
        [
            *(str(programs / "bin" / "pgbench"), "-n", "-D", f"keys={load.keys}"),
            *(*map(str, numbers), *scripts, dsn),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield
            assert process.poll() is None, process.stderr.read()
        finally:
            process.kill()


@contextlib.contextmanager
def relay(config: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the relay during the block."""
    with (
        (folder / "relay.log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "towpath.relay", str(config)],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def read_repeatedly(
    session, topics: TopicReader, fold: Fold, load: Load, is_running: Callable[[], bool]
) -> None:
    """Keep snapshots queued until the time is up and enough rows are delivered."""
    minimum, maximum = Deadline(CLOCK, load.for_s), Deadline(CLOCK, load.within_s)
    number = 0
    while not minimum.passed() or (fold.reads < load.reads and not maximum.passed()):
        open_count = sum(not answer.has_ended for answer in answers(session))
        for _ in range(QUEUED - open_count):
            number += 1
            send(session, f"h{number}", "execute-snapshot", data_collections=["hot.k"])
        topics.poll(0.1)
        assert is_running(), "the relay has ended"


def until_delivered(session, topics: TopicReader, slot: str) -> None:
    """Wait until all snapshots have ended and all WAL is confirmed; read the topics."""
    session.execute("select pg_logical_emit_message(true, 'test', 'x')")
    [lsn] = session.execute("select pg_current_wal_lsn()::text").fetchone()
    query = (
        "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
        " where slot_name = %s"
    )
    deadline = Deadline(CLOCK, WITHIN_S)

    def is_delivered() -> bool:
        [is_confirmed] = session.execute(query, (lsn, slot)).fetchone()
        return is_confirmed and all(answer.has_ended for answer in answers(session))

    while not is_delivered():
        assert not deadline.passed(), json.dumps(answers(session)[-3:], default=str)
        topics.poll(0.1)
    topics.read_to_end(WITHIN_S)


@pytest.mark.parametrize("load", LOADS)
def test_hot_keys_are_never_delivered_stale(
    stack, database: str, unique: str, tmp_path: Path, load: Load
):
    """
    No READ row is older than an event delivered before it; no deleted row reappears.
    """
    stack.up("postgres", "kafka")
    programs = postgres.home_of(stack.stack.state).programs
    config = tmp_path / "towpath.toml"
    values = {"dsn": database, "kafka": stack.kafka, "prefix": unique}
    config.write_text(CONFIGURATION.format(**values), encoding="utf-8")
    fold = Fold("hot.k")
    with (
        psycopg.connect(database, autocommit=True) as session,
        TopicReader(stack.kafka, CLOCK) as topics,
    ):
        session.execute(TABLE)
        session.execute(
            "insert into hot.k select g from generate_series(1, %s) g", (load.keys,)
        )
        with contextlib.redirect_stdout(None):
            init(config, dry_run=False)
        topics.follow(f"{unique}.hot.k", fold)
        began_s = CLOCK.monotonic_s()
        with relay(config, tmp_path) as process:
            with pgbench(programs, tmp_path, database, load):
                read_repeatedly(
                    session, topics, fold, load, lambda: process.poll() is None
                )
            elapsed_s = CLOCK.monotonic_s() - began_s
            until_delivered(session, topics, unique)
        statuses = {answer.status for answer in answers(session)}
        rows = session.execute("select id::text, v::text, note from hot.k").fetchall()
    table = {(r[0],): dict(zip(("id", "v", "note"), r, strict=True)) for r in rows}
    print(_line(load, fold, elapsed_s))  # noqa: T201 - shown with -s or -rP

    assert statuses <= set(ENDED)
    assert fold.reads >= load.reads
    assert ({}, [], []) == (
        dict(fold.wrong),
        fold.findings,
        differences(fold.rows(), table)[:5],
    )


def _line(load: Load, fold: Fold, elapsed_s: float) -> str:
    changes = fold.counts.total() - fold.reads
    return (
        f"{load.keys:,} keys: {fold.reads:,} READ rows and {changes:,} changes in"
        f" {elapsed_s:,.0f} s; wrong: {dict(fold.wrong) or 'none'}"
    )
