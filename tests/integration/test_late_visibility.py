"""
Snapshots while commits are in the log and in nobody's view (B17), on a real server.

A commit that waits for a standby that is not there is decoded and streamed, and no
query sees it. Each rule is seen to matter: the same test, with the relay's rule taken
out, finds stale, lost or resurrected rows.
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


def in_the_soak(defect: str) -> Any:
    """Return the parameter of a defect, for the soak alone."""
    return pytest.param(defect, marks=pytest.mark.soak)


class Rig:
    """A database whose table ``s.a`` a relay follows, and who reads its topic."""

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
        """Make the table with rows that no stream brings, and let the relay prepare."""
        name = self.session.info.dbname
        self.say(f"alter database {name} set synchronous_commit = local")
        self.say("set synchronous_commit = local")
        self.say("create schema s; create sequence s.v")
        self.say(f"create table s.a ({COLUMNS})")
        self.say("alter table s.a alter large set storage external")
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
        """Start the relay, as it is or with defects."""
        words = ["-m", "towpath.relay", str(self._config)]
        named = [defect for defect in defects if defect]
        if named:
            words = [str(RUNNER), str(self._config), str(self.folder), *named]
        self._process = Forked(words, self.folder / "relay.log")

    def kill(self) -> None:
        """Kill the relay as an accident would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Leave nothing behind."""
        (self.folder / "go").touch()
        self._stack.close()
        self.kill()
        self._topics.__exit__()
        self.session.close()

    def say(self, statement: str) -> None:
        """Do something in the source that is visible at once."""
        self.session.execute(statement.encode())

    def one(self, query: str, *arguments: object) -> Any:
        """Ask the source for one value."""
        row = self.session.execute(query.encode(), arguments).fetchone()
        return row[0] if row else None

    def until(self, holds: Callable[[], Any], within_s: float = TIMEOUT_S) -> None:
        """Wait until something is so."""
        deadline = Deadline(CLOCK, within_s)
        while not holds():
            is_gone = self._process and self._process.poll() is not None
            if deadline.passed() or is_gone:
                log = (self.folder / "relay.log").read_text(encoding="utf-8")
                raise AssertionError(log[-4000:])
            CLOCK.wait(0.02)

    def is_so_within(self, holds: Callable[[], Any], within_s: float) -> bool:
        """Return whether something becomes so in a while."""
        with contextlib.suppress(AssertionError):
            self.until(holds, within_s)
            return True
        return False

    # Commits that nobody sees ----------------------------------------------------

    def hold_commits(self) -> None:
        """From now on what ``late`` commits is in the log, and seen by nobody."""
        self._name_standby("nobody")
        self._stack.callback(self.release)

    def late(self, *statements: str) -> None:
        """Do something in a session of its own, whose commits wait."""

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
        """Let all that wait become visible."""
        self._name_standby("")

    def _name_standby(self, name: str) -> None:
        self.say(f"alter system set synchronous_standby_names = '{name}'")
        self.say("select pg_reload_conf()")
        self.until(lambda: self.one("show synchronous_standby_names") == name)

    # Snapshots, and what comes of them -------------------------------------------

    def ask(self, signal_id: str, **data: Any) -> None:
        """Ask for a snapshot of the table."""
        fields = {name.replace("_", "-"): value for name, value in data.items()}
        self.session.execute(
            "insert into towpath.signal (id, type, data)"
            " values (%s, 'execute-snapshot', %s)",
            (signal_id, json.dumps({"data-collections": ["s.a"], **fields})),
        )

    def status(self, signal_id: str) -> str:
        """Return how a signal is answered."""
        query = "select coalesce(status, '') from towpath.signal where id = %s"
        return str(self.one(query, signal_id))

    def handled_rows(self) -> int:
        """Return how many rows were delivered or dropped."""
        query = "select coalesce(sum(rows + dropped), 0)::int from towpath.snapshot"
        return int(self.one(query))

    def complete(self, signal_id: str) -> None:
        """Wait until a snapshot has completed."""
        self.until(lambda: self.status(signal_id) in {"completed", "failed"})
        assert self.status(signal_id) == "completed"

    def read(self) -> Fold:
        """Read the topics to their ends, and return what the shared one gives."""
        self._topics.read_to_end(TIMEOUT_S)
        return self.fold

    def is_streamed(self, **counts: int) -> bool:
        """Return whether so many changes of each operation are delivered."""
        found = self.read().counts
        return all(found[name] >= count for name, count in counts.items())

    def settle(self) -> None:
        """Wait until all that was committed is delivered, and every snapshot ended."""
        self.say("select pg_logical_emit_message(true, 'test', 'x')")
        lsn = self.one("select pg_current_wal_lsn()::text")
        self.until(lambda: self.has_confirmed(lsn))
        unfinished = (
            "select exists (select from towpath.snapshot"
            " where state not in ('completed', 'failed', 'stopped'))"
        )
        self.until(lambda: not self.one(unfinished))
        self.read()

    def has_confirmed(self, lsn: str) -> bool:
        """Return whether the log may be forgotten up to there."""
        confirmed = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        return bool(self.one(confirmed, lsn, self.prefix))

    def table(self) -> dict[tuple[str | None, ...], dict[str, Any]]:
        """Return the table as text, by its keys."""
        rows = self.session.execute(
            "select id::text, v::text, note, large from s.a"
        ).fetchall()
        names = ("id", "v", "note", "large")
        return {(row[0],): dict(zip(names, row, strict=True)) for row in rows}

    def wrong(self) -> dict[str, int]:
        """Count what is wrong in the end; rows that differ, and what READs showed."""
        found = differences(self.fold.rows(), self.table())
        counts = dict(self.fold.wrong)
        return counts | ({"different": len(found)} if found else {})


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Provide a source with a filled table, whose relay is not started yet."""
    stack.up("postgres", "kafka")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    rig.prepare()
    yield rig
    rig.close()


def patience_s(defect: str) -> float:
    """Return how long to look for what only a defect does."""
    return 4.0 if defect == SOUND else 30.0


def begin_slowly(rig: Rig, **data: Any) -> None:
    """Begin a snapshot that is far from its end when this returns."""
    rig.ask("s1", max_rows_per_second=150, **data)
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
    # From the part that is not read yet to the part that is, and above the end.
    ("update s.a set v = nextval('s.v'), id = 15, large = 'x' where id = 3910",),
    ("update s.a set v = nextval('s.v'), id = 9999, large = 'x' where id = 3900",),
    ("update s.a set v = nextval('s.v'), id = 3905, large = 'x' where id = 20",),
)


@pytest.mark.parametrize("defect", [SOUND, in_the_soak("textbook")])
def test_invisible_commits_drop_stale_rows(rig: Rig, defect: str):
    """
    Rows that are changed in the log and old in every view are not delivered (B17).

    By updates, deletes, key changes to both sides of the reading, sub-transactions of
    which one is rolled back, and a prepared transaction. By the textbook's window alone
    nine of them are.
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


@pytest.mark.parametrize("defect", [SOUND, in_the_soak("textbook")])
def test_an_invisible_partial_change_is_read_again(rig: Rig, defect: str):
    """
    A row whose large column was not streamed is delivered whole, and only once visible.
    """
    rig.start(defect)
    begin_slowly(rig)
    rig.hold_commits()
    rig.late("update s.a set v = nextval('s.v'), note = 'new' where id = 4000")
    rig.until(lambda: rig.is_streamed(u=1))
    is_early = rig.is_so_within(
        lambda: rig.status("s1") == "completed", patience_s(defect)
    )
    rig.release()
    rig.complete("s1")
    rig.settle()

    assert (defect != SOUND) == is_early
    assert ({} if defect == SOUND else {"stale": 1, "different": 1}) == rig.wrong()


@pytest.mark.parametrize("defect", [SOUND, in_the_soak("unheld")])
def test_a_killed_relay_streams_invisible_commits_again(rig: Rig, defect: str):
    """
    Killed while streamed transactions are invisible, it records them again (A5, B17).

    Their log must not be forgotten: one who confirms it delivers stale rows.
    """
    rig.start(defect)
    begin_slowly(rig)
    rig.hold_commits()
    rig.late("update s.a set v = nextval('s.v'), large = 'x' where id = 3990")
    rig.late("delete from s.a where id = 3980")
    rig.until(lambda: rig.is_streamed(u=1, d=1))
    lsn = rig.one("select pg_current_wal_lsn()::text")
    rig.say("insert into s.a (id, note) values (5, 'visible')")
    # Long enough for a mark, and for a third of the table.
    is_forgotten = rig.is_so_within(lambda: rig.has_confirmed(lsn), 1.0)
    rig.kill()
    before = rig.handled_rows()
    rig.start(defect)
    # Resumed, it must read nothing before they are visible; then it sees them all.
    is_early = rig.is_so_within(lambda: rig.handled_rows() > before, patience_s(defect))
    rig.until(lambda: rig.handled_rows() == ROWS if is_early else True)
    rig.release()
    rig.complete("s1")
    rig.settle()
    is_sound = defect == SOUND

    assert (not is_sound, not is_sound) == (is_forgotten, is_early)
    assert ({} if is_sound else {"stale": 1, "different": 2}) == rig.wrong()


@pytest.mark.parametrize("defect", [SOUND, in_the_soak("unawaited")])
def test_the_maximum_key_is_read_when_all_is_visible(rig: Rig, defect: str):
    """
    A row above all others, streamed and invisible, is not missed by a new sink.

    The sink's stream begins behind the row's event, so only the snapshot can bring it:
    its maximum key must not be read before the row is there to be seen.
    """
    rig.start(defect)
    rig.hold_commits()
    rig.late("insert into s.a (id, note) values (100000, 'highest')")
    rig.late("delete from s.a where id = 4000")
    rig.until(lambda: rig.is_streamed(c=1, d=1))
    rig.ask("s1", target="search2")
    is_early = rig.is_so_within(
        lambda: rig.status("s1") == "completed", patience_s(defect)
    )
    rig.release()
    rig.complete("s1")
    rig.settle()
    found = differences(rig.own.rows(), rig.table())
    is_sound = defect == SOUND

    assert (not is_sound) == is_early
    assert (0 if is_sound else 2) == len(found)


@pytest.mark.parametrize("defect", [SOUND, in_the_soak("oldest")])
def test_transactions_that_stay_open_stop_no_snapshot(rig: Rig, defect: str):
    """
    An idle session and a prepared transaction, older than all, may stay (B30).

    One who waits for the oldest waits as long as they do. What they did comes later.
    """
    rig.start(defect)
    rig.until(lambda: rig.one("select active from pg_replication_slots"))
    with psycopg.connect(rig.dsn) as idle:
        idle.execute("update s.a set v = nextval('s.v'), note = 'idle' where id = 10")
        rig.say("begin")
        rig.say("update s.a set v = nextval('s.v'), note = 'kept' where id = 20")
        rig.say("delete from s.a where id = 30")
        rig.say(f"prepare transaction 'open{rig.prefix}'")
        rig.say("insert into s.a (id, note) values (7, 'young')")
        rig.until(lambda: rig.is_streamed(c=1))
        rig.ask("s1")
        within_s = TIMEOUT_S if defect == SOUND else 4.0
        has_completed = rig.is_so_within(
            lambda: rig.status("s1") == "completed", within_s
        )
        rig.say(f"commit prepared 'open{rig.prefix}'")
        idle.commit()
    rig.complete("s1")
    rig.settle()

    assert (defect == SOUND) == has_completed
    assert {} == rig.wrong()


@pytest.mark.parametrize("defect", [SOUND, in_the_soak("deaf")])
def test_what_commits_in_mid_chunk_drops_its_rows(rig: Rig, defect: str):
    """
    Between a chunk's view and its end: prepared, moved, updated, deleted (A34, B18).
    """
    rig.say("begin")
    rig.say("update s.a set v = nextval('s.v'), large = 'x' where id = 30")
    rig.say("delete from s.a where id = 40")
    rig.say(f"prepare transaction 'mid{rig.prefix}'")
    rig.start("pause chunk", defect)
    rig.ask("s1")
    rig.until((rig.folder / "paused").exists)
    rig.say(f"commit prepared 'mid{rig.prefix}'")
    rig.say("update s.a set v = nextval('s.v'), id = 3999, large = 'x' where id = 50")
    rig.say("update s.a set v = nextval('s.v'), id = 55, large = 'x' where id = 3990")
    rig.say("update s.a set v = nextval('s.v'), note = 'partial' where id = 60")
    rig.say("delete from s.a where id = 70; insert into s.a (id) values (70)")
    rig.until(lambda: rig.is_streamed(u=2, d=4, c=3))
    (rig.folder / "go").touch()
    rig.complete("s1")
    rig.settle()

    assert (defect == SOUND) == (rig.wrong() == {})


@pytest.mark.parametrize("moment", ["pause plan", "pause chunk"])
@pytest.mark.parametrize("defect", [SOUND, in_the_soak("unlocked")])
def test_a_rewrite_between_view_and_query_loses_nothing(
    rig: Rig, defect: str, moment: str
):
    """
    Plan and chunk hold the table before they look: no rewrite comes in between.

    Without the lock the rewritten table looks empty to them, and it says completed.
    """
    rig.start(moment, defect)
    rig.ask("s1")
    rig.until((rig.folder / "paused").exists)
    rig.say("set lock_timeout = '300ms'")
    with contextlib.suppress(psycopg.errors.LockNotAvailable):
        rig.say("alter table s.a alter id type bigint")
    (rig.folder / "go").touch()
    rig.complete("s1")
    rig.settle()
    reads = rig.fold.reads

    assert (ROWS if defect == SOUND else 0) == reads


def test_a_truncate_in_mid_snapshot_leaves_no_old_row(rig: Rig):
    """
    Rows delivered before are gone; rows inserted after the truncate are there.
    """
    rig.start()
    begin_slowly(rig)
    with rig.session.transaction():
        rig.say("truncate s.a")
        rig.say(
            "insert into s.a (id, note, large) select 10 * g, 'refilled',"
            " repeat('y', 3000) from generate_series(300, 500) g"
        )
    rig.say("update s.a set v = nextval('s.v'), note = 'partial' where id > 4900")
    rig.complete("s1")
    rig.settle()

    assert 201 == len(rig.fold.rows())
    assert {} == rig.wrong()
