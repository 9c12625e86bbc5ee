"""
The rows that a relay reads at startup without a signal, in each snapshot mode.
"""

from collections import Counter

import psycopg
import pytest

from towpath.relay.__main__ import init

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

INITIAL = "towpath-initial"


def make_table(followed, name: str, count: int) -> None:
    """Create a table with rows."""
    followed.execute(f"create table {name} (id int primary key, v int, note text)")
    fill(followed, name, 1, count)


def fill(followed, name: str, first: int, last: int) -> None:
    """Insert rows into a table made by ``make_table``."""
    with followed.connection.cursor().copy(f"copy {name} from stdin") as copy:
        for number in range(first, last + 1):
            copy.write_row((number, number, "x" * 100))


def reads(followed, table: str) -> Counter[int]:
    """Count the READ records of each row."""
    return Counter(
        envelope["after"]["id"]
        for _, envelope, _ in followed.envelopes(table)
        if envelope["op"] == "r"
    )


def acknowledged(followed) -> int:
    """Return the stored number of acknowledged rows of the large table."""
    statement = (
        "select coalesce(sum(rows), 0) from towpath.snapshot"
        " where snapshot_id = %s and collection = 's.a'"
    )
    return int(followed.one(statement, INITIAL))


@pytest.fixture
def two_tables(followed):
    """Provide an unprepared source with two tables of several chunks each."""
    make_table(followed, "s.a", 3000)
    make_table(followed, "s.b", 500)
    followed.tables = ["s.a", r"s\.b"]
    followed.snapshot = {"mode": "initial", "chunk_rows": 100}
    return followed


def test_initial_mode_reads_in_the_snapshot_exported_by_the_slot(two_tables, capsys):
    """
    A87: rows older than the slot are read at its position, and are not also streamed.

    Writers continue throughout.
    """
    two_tables.prepare()
    printed = capsys.readouterr().out
    has_slot = two_tables.one(
        "select count(*) from pg_replication_slots where slot_name = %s",
        two_tables.prefix,
    )
    two_tables.start()
    number = 3000
    while (
        not two_tables.states(INITIAL)
        or "running" in two_tables.states(INITIAL).values()
    ):
        number += 1
        two_tables.execute("insert into s.a values (%s, 0, '')", number)
        two_tables.execute("update s.a set v = v + 1 where id = %s", number % 3000)
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()
    found = two_tables.envelopes("s.a")
    read = Counter(e["after"]["id"] for _, e, _ in found if e["op"] == "r")
    created = Counter(e["after"]["id"] for _, e, _ in found if e["op"] == "c")
    read_at = {h["position"] for _, e, h in found if e["op"] == "r"}
    streamed_at = min(h["position"] for _, e, h in found if e["op"] in "cu")

    assert (0, True) == (has_slot, "created by towpath relay run" in printed)
    assert {1} == set((read + created).values())
    assert set(range(1, 3001)) <= set(read)
    assert (1, True) == (len(read_at), max(read_at) < streamed_at)
    assert two_tables.rows("s.a") == two_tables.fold("s.a")
    assert two_tables.rows("s.b") == two_tables.fold("s.b")


def test_the_exported_snapshot_is_released_once_all_rows_are_read(two_tables):
    """
    N-17: nothing prevents the cleanup of dead rows once the snapshot has ended.
    """
    two_tables.prepare()
    two_tables.start()
    two_tables.wait_for_snapshot(INITIAL)
    held = (
        "select count(*) from pg_stat_activity where application_name = 'towpath-relay'"
        " and backend_xmin is not null and state like 'idle in transaction%'"
        " and datname = current_database()"
    )
    two_tables.wait_for(lambda: two_tables.one(held) == 0)
    two_tables.execute("insert into s.b values (9999, 1, '')")
    two_tables.confirm()

    assert 9999 in two_tables.fold("s.b")


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_initial_snapshot_is_resumed(two_tables, times: int):
    """
    A87: a relay killed during the snapshot resumes it, and never restarts it.

    Rows stored as acknowledged are not read again; only the other rows may be.
    """
    fill(two_tables, "s.a", 3001, 60000)
    two_tables.prepare()
    unstored = 0
    for _ in range(times):
        before = acknowledged(two_tables)
        two_tables.start()
        two_tables.wait_for(lambda b=before: acknowledged(two_tables) > b + 500)
        two_tables.kill()
        unstored += len(reads(two_tables, "s.a")) - acknowledged(two_tables)
    two_tables.execute("update s.a set v = -1 where id % 7 = 0")
    two_tables.execute("delete from s.a where id % 11 = 0")
    two_tables.start()
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()
    again = sum(count - 1 for count in reads(two_tables, "s.a").values())

    assert two_tables.rows("s.a") == two_tables.fold("s.a")
    assert two_tables.rows("s.b") == two_tables.fold("s.b")
    assert again <= unstored < 60000
    assert {"incremental"} == {
        kind
        for (kind,) in two_tables.execute(
            "select kind from towpath.snapshot where snapshot_id = %s"
            " and collection = 's.a'",
            INITIAL,
        )
    }


def test_losing_the_exported_snapshot_does_not_restart_the_initial_snapshot(two_tables):
    """
    N-03: if the exporting connection dies, the remaining rows are read in chunks.
    """
    fill(two_tables, "s.a", 3001, 60000)
    two_tables.prepare()
    two_tables.start()
    rows = "select coalesce(sum(rows), 0) from towpath.snapshot"
    two_tables.wait_for(lambda: two_tables.one(rows) > 300)
    ended = two_tables.one(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where backend_type = 'walsender' and datname = current_database()"
        " and query like 'CREATE_REPLICATION_SLOT%'"
    )
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()

    assert 1 == ended
    assert two_tables.rows("s.a") == two_tables.fold("s.a")
    assert two_tables.rows("s.b") == two_tables.fold("s.b")


def test_nothing_is_read_again_at_the_second_start(two_tables):
    """
    A86: after stop, insert and start, only the missed rows arrive, without a snapshot.
    """
    two_tables.prepare()
    two_tables.start()
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()
    assert two_tables.stop() == 0
    two_tables.execute("insert into s.b values (9001, 1, ''), (9002, 1, '')")
    two_tables.start()
    two_tables.confirm()

    assert {1: 500} == Counter(reads(two_tables, "s.b").values())
    assert {9001, 9002} <= set(two_tables.fold("s.b"))


def test_an_existing_slot_leads_to_an_incremental_snapshot(two_tables):
    """
    If relay init created the slot, the first run sends a signal for all tables.
    """
    mode = dict(two_tables.snapshot)
    two_tables.snapshot = {"mode": "never"}
    two_tables.prepare()
    two_tables.snapshot = mode
    two_tables.write()
    two_tables.start()
    two_tables.wait_for(lambda: bool(two_tables.states(INITIAL)))
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()
    answer = "select status from towpath.signal where id = %s"
    two_tables.wait_for(lambda: two_tables.one(answer, INITIAL) == "completed")

    assert two_tables.rows("s.a") == two_tables.fold("s.a")
    assert two_tables.rows("s.b") == two_tables.fold("s.b")


def test_a_relay_that_has_run_before_starts_no_initial_snapshot(two_tables):
    """
    N-04: once an LSN has been confirmed, changing only the mode starts no snapshot.
    """
    mode = dict(two_tables.snapshot)
    two_tables.snapshot = {"mode": "never"}
    two_tables.prepare()
    two_tables.start()
    two_tables.confirm()
    two_tables.stop()
    two_tables.snapshot = mode
    two_tables.write()
    two_tables.start()
    two_tables.execute("insert into s.b values (9001, 1, '')")
    two_tables.confirm()

    assert ({}, {9001}) == (two_tables.states(INITIAL), set(two_tables.fold("s.b")))


def test_initial_only_exits_with_0_and_reads_nothing_twice(two_tables):
    """
    N-07: the process exits with 0 once all tables are read, and so does a second start.
    """
    two_tables.snapshot["mode"] = "initial_only"
    two_tables.prepare()
    two_tables.start()
    first = two_tables.ended()
    two_tables.start()
    second = two_tables.ended()

    assert (0, 0) == (first, second)
    assert {1: 3000} == Counter(reads(two_tables, "s.a").values())
    assert {1: 500} == Counter(reads(two_tables, "s.b").values())


def test_initial_only_reports_a_failed_table_and_retries_only_that_table(two_tables):
    """
    N-07: a failed table causes exit code 3; once repaired, only that table is read.
    """
    two_tables.execute("create table s.c (id int, v int)")
    two_tables.execute("alter table s.c replica identity full")
    two_tables.execute("insert into s.c values (1, 1)")
    two_tables.tables.append("s.c")
    two_tables.snapshot["mode"] = "initial_only"
    two_tables.prepare()
    two_tables.start()
    failed = two_tables.ended()
    halted = two_tables.logged("relay halted")[-1]
    two_tables.execute("alter table s.c replica identity default, add primary key (id)")
    two_tables.start()
    repaired = two_tables.ended()

    assert (3, True, 0) == (failed, "s.c" in halted["reason"], repaired)
    assert {1: 3000} == Counter(reads(two_tables, "s.a").values())
    assert {1} == set(two_tables.fold("s.c"))


def test_initial_only_reads_a_table_by_its_new_key(two_tables):
    """
    The table's progress was stored for a different key, so the retry reads all rows.
    """
    two_tables.snapshot["mode"] = "initial_only"
    two_tables.prepare()
    two_tables.start()
    codes = [two_tables.ended()]
    two_tables.execute(
        "update towpath.snapshot set state = 'failed', key_columns = '[\"v\"]'"
        " where collection = 's.b'"
    )
    for _ in range(2):
        two_tables.start()
        codes.append(two_tables.ended())
    halted = two_tables.logged("relay halted")[-1]

    assert ([0, 3, 0], True) == (codes, "key has changed" in halted["reason"])
    assert {2: 500} == Counter(reads(two_tables, "s.b").values())


@pytest.mark.parametrize("are_all_refused", [True, False])
def test_initial_only_retries_tables_refused_by_the_answer_to_its_signal(
    two_tables, *, are_all_refused: bool
):
    """
    A table that the signal's answer lists as refused is read once it is repaired.
    """
    two_tables.execute("create table s.c (id int, v int)")
    two_tables.execute("alter table s.c replica identity full")
    two_tables.execute("insert into s.c values (1, 1), (2, 2)")
    two_tables.tables = ["s.c"] if are_all_refused else ["s.b", "s.c"]
    two_tables.snapshot["mode"] = "never"
    two_tables.prepare()
    two_tables.snapshot["mode"] = "initial_only"
    two_tables.write()
    two_tables.start()
    codes = [two_tables.ended()]
    two_tables.more = """
[[relay.snapshot.select]]
table = "s.c"
select = "select * from s.c where id > 1"
"""
    two_tables.write()
    two_tables.execute("alter table s.c replica identity default, add primary key (id)")
    for _ in range(2):
        two_tables.start()
        codes.append(two_tables.ended())

    assert [3, 0, 0] == codes
    assert {2: 1} == reads(two_tables, "s.c")
    assert are_all_refused or {1: 500} == Counter(reads(two_tables, "s.b").values())


def test_initial_only_retries_a_stopped_table(two_tables):
    """
    The relay ends before it streams, so no signal can resume the table.
    """
    two_tables.snapshot["mode"] = "initial_only"
    two_tables.prepare()
    two_tables.start()
    codes = [two_tables.ended()]
    two_tables.execute(
        "update towpath.snapshot set state = 'stopped', last_key = '[\"400\"]',"
        " ranges = null where collection = 's.b'"
    )
    two_tables.start()
    codes.append(two_tables.ended())

    assert [0, 0] == codes
    assert {1: 400, 2: 100} == Counter(reads(two_tables, "s.b").values())


def test_a_select_override_chooses_the_rows_to_read(two_tables):
    """
    N-12: only the rows of the override are read; the stream is not filtered.
    """
    two_tables.more = """
[[relay.snapshot.select]]
table = "s.a"
select = "select * from s.a where id > 2990"
"""
    two_tables.prepare()
    two_tables.start()
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.execute("update s.a set v = -1 where id = 1")
    two_tables.confirm()

    assert set(range(2991, 3001)) == set(reads(two_tables, "s.a"))
    assert {1, *range(2991, 3001)} == set(two_tables.fold("s.a"))


def test_always_mode_reads_all_tables_at_each_start(two_tables):
    """
    N-05: each start requests a snapshot of all tables.
    """
    two_tables.snapshot["mode"] = "always"
    two_tables.prepare()
    ended = (
        "select count(*) from towpath.signal where status = 'completed'"
        " and starts_with(id, 'towpath-always-')"
    )
    for number in (1, 2):
        two_tables.start()
        two_tables.wait_for(lambda number=number: two_tables.one(ended) == number)
        two_tables.stop()

    assert {2: 500} == Counter(reads(two_tables, "s.b").values())


def test_a_delayed_start_is_reported_and_can_be_stopped(two_tables):
    """
    N-13: a relay that is stopped during its delay exits, and has created no slot.
    """
    two_tables.snapshot["delay_s"] = 60
    two_tables.prepare()
    two_tables.start()
    log_record = two_tables.wait_for_log("relay start delayed")
    code = two_tables.stop()
    slots = two_tables.one(
        "select count(*) from pg_replication_slots where slot_name = %s",
        two_tables.prefix,
    )
    two_tables.snapshot["delay_s"] = 0.2
    two_tables.write()
    two_tables.start()
    two_tables.wait_for(lambda: bool(two_tables.states(INITIAL)))
    two_tables.wait_for_snapshot(INITIAL)

    assert (60, 0, 0) == (log_record["delay_s"], code, slots)


def test_when_needed_mode_closes_a_gap_without_an_operator(two_tables):
    """
    A gap starts the planned snapshots, with a sweep, although on_gap only plans them.
    """
    two_tables.snapshot["mode"] = "when_needed"
    two_tables.prepare()
    two_tables.start()
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()
    two_tables.stop()
    two_tables.execute("select pg_drop_replication_slot(%s)", two_tables.prefix)
    two_tables.execute("insert into s.b values (9001, 1, '')")
    two_tables.start()
    requested = "select data from towpath.signal where id = 'gap-2'"
    two_tables.wait_for(lambda: two_tables.one(requested) is not None)
    two_tables.wait_for_snapshot("gap-2")

    assert '"sweep":true' in two_tables.one(requested)
    assert 9001 in two_tables.fold("s.b")


def test_init_creates_the_slot_of_a_source_whose_relay_has_run(two_tables, capsys):
    """
    Init recreates a lost slot: only the first start needs the snapshot that it exports.
    """
    two_tables.prepare()
    two_tables.execute(
        "insert into towpath.heartbeat values (1, 5, now())"
        " on conflict (id) do update set counter = 5"
    )
    capsys.readouterr()
    init(two_tables.config, dry_run=True)

    assert "pg_create_logical_replication_slot" in capsys.readouterr().out


def test_a_relay_can_be_stopped_while_its_slot_waits_for_writers(two_tables):
    """
    Creating a slot waits for open transactions.

    A relay that is stopped during this wait leaves no slot.
    """
    two_tables.prepare()
    with psycopg.connect(two_tables.dsn) as writer:
        writer.execute("update s.b set v = 0 where id = 1")
        two_tables.start()
        creating = (
            "select count(*) from pg_stat_activity where state = 'active'"
            " and query like 'CREATE_REPLICATION_SLOT%'"
            " and datname = current_database()"
        )
        two_tables.wait_for(lambda: two_tables.one(creating) == 1)
        code = two_tables.stop()
    slots = "select count(*) from pg_replication_slots where slot_name = %s"
    two_tables.wait_for(lambda: two_tables.one(slots, two_tables.prefix) == 0)
    two_tables.start()
    two_tables.wait_for_snapshot(INITIAL)
    two_tables.confirm()

    assert 0 == code
    assert two_tables.rows("s.b") == two_tables.fold("s.b")
