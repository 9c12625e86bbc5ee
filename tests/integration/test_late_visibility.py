"""
Snapshots on a real server while commits are streamed but not yet visible (B17).

A commit that waits for a missing standby is decoded and streamed, but no query sees it.
Each rule of the relay is shown to matter: without it, the same test finds stale, lost
or resurrected rows.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.forked import Forked
from support.waiting import stretched
from towpath.loadtests.chaos.fold import Fold, differences
from towpath.loadtests.chaos.observers import TopicReader
from towpath.relay.__main__ import init
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

CLOCK = SystemClock()
TIMEOUT_S = stretched(40.0)
RUNNER = Path(__file__).with_name("relay_with_defect.py")
SOUND = ""
ROWS = 400
COLUMNS = "id int primary key, v bigint default nextval('s.v'), note text, large text"


def soak_only(defect: str) -> Any:
    """Return the parameter for a defect, marked for soak runs only."""
    return pytest.param(defect, marks=pytest.mark.soak)


class Rig:
    """A database with a table ``s.a``, its relay, and readers of the relay's topics."""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        self.dsn = dsn
        self.prefix = prefix
        self.folder = folder
        self.session = psycopg.connect(dsn, autocommit=True)
        self.fold = Fold("s.a")
        self.own = Fold("s.a for search2", is_ordered=False)
        self._config = folder / "towpath.toml"
        self._topics = TopicReader(kafka, CLOCK)
        self._topics.follow(f"{prefix}.s.a", self.fold)
        self._topics.follow(f"{prefix}.s.a.backfill.search2", self.own)
        self._kafka = kafka
        self._process: Forked | None = None
        self._stack = contextlib.ExitStack()

    def prepare(self) -> None:
        """Create the table with rows that only a snapshot delivers, and run init."""
        name = self.session.info.dbname
        self.execute(f"alter database {name} set synchronous_commit = local")
        self.execute("set synchronous_commit = local")
        self.execute("create schema s; create sequence s.v")
        self.execute(f"create table s.a ({COLUMNS})")
        self.execute("alter table s.a alter large set storage external")
        self.session.execute(
            "insert into s.a (id, note, large) select 10 * g, 'old',"
            " case when g %% 2 = 0 then repeat(md5(g::text), 100) end"
            " from generate_series(1, %s) g",
            (ROWS,),
        )
        self._config.write_text(
            f"""
version = 1
[[source]]
dsn = "{self.dsn}"
prefix = "{self.prefix}"
slot = "{self.prefix}"
tables = ["s.a"]
[kafka]
bootstrap_servers = "{self._kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 3
[relay]
heartbeat_interval_s = 0.2
[relay.snapshot]
chunk_rows = 25
readers = 1
[[sink]]
name = "search2"
kind = "search"
url = "http://127.0.0.1:1"
[[sink.route]]
topic = "{self.prefix}.s.a"
name = "a-2"
""",
            encoding="utf-8",
        )
        with contextlib.redirect_stdout(None):
            init(self._config, dry_run=False)

    def start(self, *defects: str) -> None:
        """Start the relay, with or without defects."""
        args = ["-m", "towpath.relay", str(self._config)]
        named = [defect for defect in defects if defect]
        if named:
            args = [str(RUNNER), str(self._config), str(self.folder), *named]
        self._process = Forked(args, self.folder / "relay.log")

    def kill(self) -> None:
        """Kill the relay, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the relay, the pending commits and the connections."""
        (self.folder / "go").touch()
        self._stack.close()
        self.kill()
        self._topics.__exit__()
        self.session.close()

    def execute(self, statement: str) -> None:
        """Run a statement in the source; its effect is visible immediately."""
        self.session.execute(statement.encode())

    def one(self, query: str, *arguments: object) -> Any:
        """Return the first value of a query of the source."""
        row = self.session.execute(query.encode(), arguments).fetchone()
        return row[0] if row else None

    def until(self, holds: Callable[[], Any], within_s: float = TIMEOUT_S) -> None:
        """Wait until a condition holds; fail if the relay ends."""
        deadline = Deadline(CLOCK, within_s)
        while not holds():
            is_gone = self._process and self._process.poll() is not None
            if deadline.passed() or is_gone:
                log = (self.folder / "relay.log").read_text(encoding="utf-8")
                raise AssertionError(log[-4000:])
            CLOCK.wait(0.02)

    def holds_within(self, holds: Callable[[], Any], within_s: float) -> bool:
        """Return whether a condition becomes true within the given time."""
        with contextlib.suppress(AssertionError):
            self.until(holds, within_s)
            return True
        return False

    # Invisible commits -----------------------------------------------------------

    def hold_commits(self) -> None:
        """Keep the commits of ``late`` invisible, although they are in the WAL."""
        self._name_standby("nobody")
        self._stack.callback(self.release)

    def late(self, *statements: str) -> None:
        """Run statements in a separate session; the commit of the last one waits."""

        def work() -> None:
            with psycopg.connect(self.dsn, autocommit=True) as session:
                session.execute("set synchronous_commit = local")
                for statement in statements[:-1]:
                    session.execute(statement.encode())
                session.execute("set synchronous_commit = on")
                session.execute(statements[-1].encode())

        thread = threading.Thread(target=work)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self.release)

    def release(self) -> None:
        """Make all waiting commits visible."""
        self._name_standby("")

    def _name_standby(self, name: str) -> None:
        self.execute(f"alter system set synchronous_standby_names = '{name}'")
        self.execute("select pg_reload_conf()")
        self.until(lambda: self.one("show synchronous_standby_names") == name)

    # Snapshots and their results -------------------------------------------------

    def request_snapshot(self, signal_id: str, **data: Any) -> None:
        """Request a snapshot of the table with a signal."""
        fields = {name.replace("_", "-"): value for name, value in data.items()}
        self.session.execute(
            "insert into towpath.signal (id, type, data)"
            " values (%s, 'execute-snapshot', %s)",
            (signal_id, json.dumps({"data-collections": ["s.a"], **fields})),
        )

    def status(self, signal_id: str) -> str:
        """Return the status of a signal."""
        query = "select coalesce(status, '') from towpath.signal where id = %s"
        return str(self.one(query, signal_id))

    def handled_rows(self) -> int:
        """Return the number of rows that snapshots have delivered or dropped."""
        query = "select coalesce(sum(rows + dropped), 0)::int from towpath.snapshot"
        return int(self.one(query))

    def complete(self, signal_id: str) -> None:
        """Wait until a snapshot has completed."""
        self.until(lambda: self.status(signal_id) in {"completed", "failed"})
        assert self.status(signal_id) == "completed"

    def read(self) -> Fold:
        """Read the topics to their ends, and return the fold of the shared topic."""
        self._topics.read_to_end(TIMEOUT_S)
        return self.fold

    def is_streamed(self, **counts: int) -> bool:
        """Return whether at least the given number of each operation was delivered."""
        found = self.read().counts
        return all(found[name] >= count for name, count in counts.items())

    def settle(self) -> None:
        """Wait until all commits are delivered and all snapshots have ended."""
        self.execute("select pg_logical_emit_message(true, 'test', 'x')")
        lsn = self.one("select pg_current_wal_lsn()::text")
        self.until(lambda: self.has_confirmed(lsn))
        unfinished = (
            "select exists (select from towpath.snapshot"
            " where state not in ('completed', 'failed', 'stopped'))"
        )
        self.until(lambda: not self.one(unfinished))
        self.read()

    def has_confirmed(self, lsn: str) -> bool:
        """Return whether the slot has confirmed an LSN."""
        confirmed = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        return bool(self.one(confirmed, lsn, self.prefix))

    def table(self) -> dict[tuple[str | None, ...], dict[str, Any]]:
        """Return the rows of the table as text, by key."""
        rows = self.session.execute(
            "select id::text, v::text, note, large from s.a"
        ).fetchall()
        names = ("id", "v", "note", "large")
        return {(row[0],): dict(zip(names, row, strict=True)) for row in rows}

    def wrong(self) -> dict[str, int]:
        """Count the rows that differ in the end, and the wrong records by kind."""
        found = differences(self.fold.rows(), self.table())
        counts = dict(self.fold.wrong)
        return counts | ({"different": len(found)} if found else {})


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Provide a source with a filled table, whose relay has not been started yet."""
    stack.up("postgres", "kafka")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    rig.prepare()
    yield rig
    rig.close()


def patience_s(defect: str) -> float:
    """Return how long to wait for something that only a defect causes."""
    return 4.0 if defect == SOUND else 30.0


def begin_slowly(rig: Rig, **data: Any) -> None:
    """Begin a slow snapshot, and wait until it has read a few rows."""
    rig.request_snapshot("s1", max_rows_per_second=60, **data)
    rig.until(lambda: rig.handled_rows() >= 50)


LATE = (
    ("update s.a set v = nextval('s.v'), note = 'new', large = 'x' where id = 3990",),
    ("delete from s.a where id = 3980",),
    (
        "begin",
        "update s.a set v = nextval('s.v'), large = 'x' where id = 3970",
        "savepoint a",
        "update s.a set v = nextval('s.v'), note = 'no' where id = 3960",
        "rollback to a",
        "savepoint b",
        "update s.a set v = nextval('s.v'), large = 'x' where id = 3950",
        "savepoint c",
        "delete from s.a where id = 3940",
        "release c",
        "commit",
    ),
    (
        "begin",
        "update s.a set v = nextval('s.v'), large = 'x' where id = 3930",
        "delete from s.a where id = 3920",
        "prepare transaction 'late{prefix}'",
        "commit prepared 'late{prefix}'",
    ),
    # A key moves from the unread part to the read part, above the end, and back.
    ("update s.a set v = nextval('s.v'), id = 15, large = 'x' where id = 3910",),
    ("update s.a set v = nextval('s.v'), id = 9999, large = 'x' where id = 3900",),
    ("update s.a set v = nextval('s.v'), id = 3905, large = 'x' where id = 20",),
)


@pytest.mark.parametrize("defect", [SOUND, soak_only("textbook")])
def test_rows_changed_by_invisible_commits_are_not_delivered(rig: Rig, defect: str):
    """
    A row is not delivered while a streamed change to it is not yet visible (B17).

    The changes are updates, deletes, key changes in both directions, subtransactions,
    one of which is rolled back, and a prepared transaction. With the textbook window
    alone, nine rows differ in the end.
    """
    rig.start(defect)
    begin_slowly(rig)
    rig.hold_commits()
    for statements in LATE:
        rig.late(*(text.format(prefix=rig.prefix) for text in statements))
    rig.until(lambda: rig.is_streamed(u=4, d=6, c=3))
    rig.complete("s1")
    held = rig.one("select count(*)::int from s.a where note = 'new' or id = 9999")
    rig.release()
    rig.settle()
    wrong = rig.wrong()

    assert held == 0
    assert ({} if defect == SOUND else {"stale": 4, "different": 9}) == wrong


@pytest.mark.parametrize("defect", [SOUND, soak_only("textbook")])
def test_an_invisible_partial_change_is_read_again(rig: Rig, defect: str):
    """
    A row whose large column was not streamed is read once its change is visible.
    """
    rig.start(defect)
    begin_slowly(rig)
    rig.hold_commits()
    rig.late("update s.a set v = nextval('s.v'), note = 'new' where id = 4000")
    rig.until(lambda: rig.is_streamed(u=1))
    is_early = rig.holds_within(
        lambda: rig.status("s1") == "completed", patience_s(defect)
    )
    rig.release()
    rig.complete("s1")
    rig.settle()

    assert (defect != SOUND) == is_early
    assert ({} if defect == SOUND else {"stale": 1, "different": 1}) == rig.wrong()


@pytest.mark.parametrize("defect", [SOUND, soak_only("confirms early")])
def test_a_killed_relay_streams_invisible_commits_again(rig: Rig, defect: str):
    """
    After a kill, the relay again records transactions that are not visible (A5, B17).

    Their LSN must not be confirmed: a relay that confirms it delivers stale rows.
    """
    rig.start(defect)
    begin_slowly(rig)
    rig.hold_commits()
    rig.late("update s.a set v = nextval('s.v'), large = 'x' where id = 3990")
    rig.late("delete from s.a where id = 3980")
    rig.until(lambda: rig.is_streamed(u=1, d=1))
    lsn = rig.one("select pg_current_wal_lsn()::text")
    rig.execute("insert into s.a (id, note) values (5, 'visible')")
    # Long enough for a checkpoint, and to read a third of the table.
    is_confirmed = rig.holds_within(lambda: rig.has_confirmed(lsn), 1.0)
    rig.kill()
    before = rig.handled_rows()
    rig.start(defect)
    # The resumed snapshot must not read before the transactions are visible.
    is_early = rig.holds_within(lambda: rig.handled_rows() > before, patience_s(defect))
    rig.until(lambda: rig.handled_rows() == ROWS if is_early else True)
    rig.release()
    rig.complete("s1")
    rig.settle()
    is_sound = defect == SOUND

    assert (not is_sound, not is_sound) == (is_confirmed, is_early)
    assert ({} if is_sound else {"stale": 1, "different": 2}) == rig.wrong()


@pytest.mark.parametrize("defect", [SOUND, soak_only("reads early")])
def test_the_maximum_key_is_read_once_all_commits_are_visible(rig: Rig, defect: str):
    """
    A new sink gets the row with the highest key even if its insert is not yet visible.

    The sink's stream begins after the row's insert, so only the snapshot can deliver
    the row: the maximum key must not be read before the row is visible.
    """
    rig.start(defect)
    rig.hold_commits()
    rig.late("insert into s.a (id, note) values (100000, 'highest')")
    rig.late("delete from s.a where id = 4000")
    rig.until(lambda: rig.is_streamed(c=1, d=1))
    rig.request_snapshot("s1", target="search2")
    is_early = rig.holds_within(
        lambda: rig.status("s1") == "completed", patience_s(defect)
    )
    rig.release()
    rig.complete("s1")
    rig.settle()
    found = differences(rig.own.rows(), rig.table())
    is_sound = defect == SOUND

    assert (not is_sound) == is_early
    assert (0 if is_sound else 2) == len(found)


@pytest.mark.parametrize("defect", [SOUND, soak_only("oldest")])
def test_transactions_that_remain_open_do_not_block_a_snapshot(rig: Rig, defect: str):
    """
    Neither an idle session nor a prepared transaction delays a snapshot (B30).

    A relay that waits for the oldest transaction would wait for them. Their changes are
    streamed after their commits.
    """
    rig.start(defect)
    rig.until(lambda: rig.one("select active from pg_replication_slots"))
    with psycopg.connect(rig.dsn) as idle:
        idle.execute("update s.a set v = nextval('s.v'), note = 'idle' where id = 10")
        rig.execute("begin")
        rig.execute("update s.a set v = nextval('s.v'), note = 'kept' where id = 20")
        rig.execute("delete from s.a where id = 30")
        rig.execute(f"prepare transaction 'open{rig.prefix}'")
        rig.execute("insert into s.a (id, note) values (7, 'young')")
        rig.until(lambda: rig.is_streamed(c=1))
        rig.request_snapshot("s1")
        within_s = TIMEOUT_S if defect == SOUND else 4.0
        has_completed = rig.holds_within(
            lambda: rig.status("s1") == "completed", within_s
        )
        rig.execute(f"commit prepared 'open{rig.prefix}'")
        idle.commit()
    rig.complete("s1")
    rig.settle()

    assert (defect == SOUND) == has_completed
    assert {} == rig.wrong()


@pytest.mark.parametrize("defect", [SOUND, soak_only("evicts nothing")])
def test_commits_during_a_chunk_drop_its_rows(rig: Rig, defect: str):
    """
    The commits include prepared changes, key changes, updates and deletes (A34, B18).
    """
    rig.execute("begin")
    rig.execute("update s.a set v = nextval('s.v'), large = 'x' where id = 30")
    rig.execute("delete from s.a where id = 40")
    rig.execute(f"prepare transaction 'mid{rig.prefix}'")
    rig.start("pause chunk", defect)
    rig.request_snapshot("s1")
    rig.until((rig.folder / "paused").exists)
    rig.execute(f"commit prepared 'mid{rig.prefix}'")
    rig.execute(
        "update s.a set v = nextval('s.v'), id = 3999, large = 'x' where id = 50"
    )
    rig.execute(
        "update s.a set v = nextval('s.v'), id = 55, large = 'x' where id = 3990"
    )
    rig.execute("update s.a set v = nextval('s.v'), note = 'partial' where id = 60")
    rig.execute("delete from s.a where id = 70; insert into s.a (id) values (70)")
    rig.until(lambda: rig.is_streamed(u=2, d=4, c=3))
    (rig.folder / "go").touch()
    rig.complete("s1")
    rig.settle()

    assert (defect == SOUND) == (rig.wrong() == {})


@pytest.mark.parametrize("moment", ["pause plan", "pause chunk"])
@pytest.mark.parametrize("defect", [SOUND, soak_only("unlocked")])
def test_a_rewrite_between_snapshot_and_query_loses_nothing(
    rig: Rig, defect: str, moment: str
):
    """
    The plan and each chunk lock the table before they take their database snapshot.

    Without the lock, the table can be rewritten in between. It then looks empty to the
    plan or the chunk, and the scan completes without its rows.
    """
    rig.start(moment, defect)
    rig.request_snapshot("s1")
    rig.until((rig.folder / "paused").exists)
    rig.execute("set lock_timeout = '300ms'")
    with contextlib.suppress(psycopg.errors.LockNotAvailable):
        rig.execute("alter table s.a alter id type bigint")
    (rig.folder / "go").touch()
    rig.complete("s1")
    rig.settle()
    reads = rig.fold.reads

    assert (ROWS if defect == SOUND else 0) == reads


def test_a_truncate_during_a_snapshot_leaves_no_old_row(rig: Rig):
    """
    In the end there are only the rows that were inserted after the truncate.
    """
    rig.start()
    begin_slowly(rig)
    with rig.session.transaction():
        rig.execute("truncate s.a")
        rig.execute(
            "insert into s.a (id, note, large) select 10 * g, 'refilled',"
            " repeat('y', 3000) from generate_series(300, 500) g"
        )
    rig.execute("update s.a set v = nextval('s.v'), note = 'partial' where id > 4900")
    rig.complete("s1")
    rig.settle()

    assert 201 == len(rig.fold.rows())
    assert {} == rig.wrong()
