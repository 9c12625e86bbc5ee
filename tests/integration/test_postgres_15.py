"""
The relay with a real Postgres 15, which lacks features of later releases.

Its slots have no failover, only a commit flushes a watermark immediately, and a
publication that is newer than the log ends the stream instead of causing a warning.
The expected stream is known from the source itself: a trigger records each row change.
"""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka import Message

from support import postgres_15
from support.snapshots import SnapshotRig
from support.topics import headers_of
from support.writers import RandomWriters
from towpath.cli.app import run
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Addresses
from towpath.relay.postgres.source_checks import source_problems
from towpath.schemas import source_tables
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 4_000
TOPICS = ("shop.line", "event.order")

# Out of line and uncompressed: a change to other columns does not stream the value.
TABLES = """
create schema shop;
create sequence shop.v;
create table shop.line (
    id int primary key, v bigint not null default nextval('shop.v'), large text
);
alter table shop.line alter large set storage external;
create table shop.audit (was int, now int, v bigint);
create function shop.record_change() returns trigger language plpgsql as $$
begin
    insert into shop.audit values (old.id, new.id, new.v);
    return null;
end $$;
"""
TRIGGER = """
create trigger record_change after insert or update or delete on shop.line
    for each row execute function shop.record_change()
"""


class Change(NamedTuple):
    """A streamed record: key, operation (None for a tombstone), and the row's v."""

    key: int
    operation: str | None
    v: int | None


@dataclass
class Fold:
    """The rows of a sink that has read a topic, and the stream that it read."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    streamed: list[Change] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    reads: int = 0
    _positions: dict[int, str] = field(default_factory=dict)
    _newest: dict[int, int] = field(default_factory=dict)

    def take(self, record: Message) -> None:
        """Apply one record, guarded by its position."""
        key = json.loads(record.key())["id"]
        headers = headers_of(record)
        document = json.loads(record.value() or b"null")
        after = document and document["after"]
        if "snapshot" in headers:
            self.reads += 1
            if after and after["v"] < self._newest.get(key, -1):
                self.stale.append(key)
        else:
            v = after and after["v"]
            self.streamed.append(Change(key, document and document["op"], v))
            self._newest[key] = v or self._newest.get(key, -1)
        position = headers["position"][:27]
        if document and position >= self._positions.get(key, ""):
            self._positions[key] = position
            before = self.rows.pop(key, {})
            if after:
                self.rows[key] = before | after


class Source(SnapshotRig):
    """A Postgres 15 database, its relay, and the topics that the relay writes."""

    def prepare(self, source: str = "") -> None:
        """
        Write the configuration, and prepare the database with relay init.

        Args:
            source: Further lines of the section ``[[source]]``.
        """
        self.configure(
            f"""
heartbeat_interval_s = 0.5
[relay.snapshot]
chunk_rows = 100
{self.outbox}
""",
            tables=("shop.line",),
            source=source,
        )
        self.init()

    def snapshot(self) -> None:
        """Request a snapshot of the table, slow enough for a kill to interrupt it."""
        values = {"data_collections": ["shop.line"], "max_rows_per_second": 1_500}
        self.signal("s1", **values)

    def changes(self) -> Counter[Change]:
        """Return the records that the stream must contain for the source's changes."""
        expected: Counter[Change] = Counter()
        for was, now, v in self.connection.execute("table shop.audit"):
            if was == now:
                expected[Change(now, "u", v)] += 1
                continue
            if was is not None:
                expected.update((Change(was, "d", None), Change(was, None, None)))
            if now is not None:
                expected[Change(now, "c", v)] += 1
        return expected

    def events(self) -> set[str]:
        """Return the ids of all events."""
        return {row[0] for row in self.connection.execute(_EVENTS)}

    def table(self) -> dict[int, dict[str, Any]]:
        """Return the rows of the table, by key."""
        rows = self.connection.execute("select to_jsonb(l) from shop.line l")
        return {row["id"]: row for (row,) in rows}

    def fold(self) -> Fold:
        """Read the table's topic from its beginning to its current end."""
        fold = Fold()
        for record in self.records("shop.line"):
            fold.take(record)
        return fold

    def has_published(self, name: str) -> bool:
        """Return whether the relay is streaming and one of its topics has a record."""
        return bool(self.logged("relay streaming") and self.records(name))


_EVENTS = "select id::text from towpath.outbox"
_INSERT_EVENT = (
    "insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)"
    " values (gen_random_uuid(), 'order', %(key)s %% 7, 'Placed', '{}')"
)
_STATEMENTS = (
    "update shop.line set v = nextval('shop.v') where id = %(key)s",
    "update shop.line set v = nextval('shop.v'), large = 'x' where id = %(key)s",
    "update shop.line set v = nextval('shop.v'), id = %(other)s where id = %(key)s",
    "insert into shop.line (id) values (%(key)s)",
    "delete from shop.line where id = %(key)s",
)


class Writers(RandomWriters):
    """Sessions that change rows and insert events at random until they are stopped."""

    pause_s = 0.002

    def change(self, connection: psycopg.Connection, rng: random.Random) -> None:
        with (
            contextlib.suppress(
                psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected
            ),
            connection.transaction(),
        ):
            for statement in (*rng.choices(_STATEMENTS, k=2), _INSERT_EVENT):
                key, other = (rng.randint(1, self.highest) for _ in range(2))
                connection.execute(statement, {"key": key, "other": other})


@pytest.fixture(scope="module")
def server() -> Iterator[Addresses]:
    """Provide a separate Postgres 15 server."""
    with postgres_15.serving() as addresses:
        yield addresses


@pytest.fixture
def source(server: Addresses, stack, unique: str, tmp_path: Path) -> Iterator[Source]:
    """Provide a source whose initial rows are older than the slot."""
    postgres.create_database(server.dsn("postgres"), unique)
    source_rig = Source(server.dsn(unique), stack.kafka, unique, tmp_path)
    source_rig.execute(TABLES)
    source_rig.connection.execute(
        "insert into shop.line (id, large) select g,"
        " case when g %% 10 = 0 then repeat(md5(g::text), 100) end"
        " from generate_series(1, %s) g",
        (ROWS,),
    )
    source_rig.connection.execute(TRIGGER)
    yield source_rig
    source_rig.close()
    postgres.drop_database(server.dsn("postgres"), unique)


def check_streams(source: Source) -> None:
    """Check that each change and each event is published once, in position order."""
    streamed, changes = Counter(source.fold().streamed), source.changes()
    assert (Counter(), Counter()) == (changes - streamed, streamed - changes)
    events = source.records("event.order")
    ids = [headers_of(event)["id"] for event in events]
    assert Counter(source.events()) == Counter(ids)
    for name in TOPICS:
        found = positions(source.records(name))
        by_partition = sorted(found, key=lambda each: each[0])
        assert sorted(set(found)) == by_partition


def positions(records: list[Message]) -> list[tuple[int, str]]:
    """Return the partition and the position of each streamed record."""
    headers = [(record.partition(), headers_of(record)) for record in records]
    return [
        (partition, each["position"])
        for partition, each in headers
        if "snapshot" not in each
    ]


def test_relay_init_creates_a_slot_without_failover_on_15(source: Source):
    """
    The command can be repeated, and uses no option of later releases.
    """
    source.prepare()
    source.prepare()
    slot = source.one(
        "select to_jsonb(s) from pg_replication_slots s where slot_name = %s",
        source.prefix,
    )

    assert (15, "pgoutput", False) == (
        source.connection.info.server_version // 10_000,
        slot["plugin"],
        "failover" in slot,
    )


def test_every_kind_of_change_is_published(source: Source):
    """
    Inserts, updates, deletes and key changes are published as on later releases.
    """
    source.prepare()
    source.start()
    for statement in (
        "insert into shop.line values (9001, 1, repeat('x', 9000))",
        "update shop.line set v = 2 where id = 9001",
        "update shop.line set id = 9002, v = 3 where id = 9001",
        "update shop.line set v = 4 where id = 10",
        "delete from shop.line where id = 11",
    ):
        source.connection.execute(statement)
    source.catch_up()
    fold = source.fold()

    expected = {
        9001: [("c", 1), ("u", 2), ("d", None), (None, None)],
        9002: [("c", 3)],
        10: [("u", 4)],
        11: [("d", None), (None, None)],
    }

    assert expected == {
        key: [(op, v) for at, op, v in fold.streamed if at == key] for key in expected
    }
    assert source.table()[9002] == fold.rows[9002]


def test_kills_during_a_snapshot_under_load_lose_and_repeat_no_change(source: Source):
    """
    Each change is streamed once and in order, and the topic folds to the table's rows.

    Rows and events are written throughout, and the relay is killed twice.
    """
    source.prepare()
    source.start()
    with Writers(source.dsn, ROWS * 11 // 10, count=2):
        source.wait_for(lambda: len(source.events()) > 50)
        source.snapshot()
        for goal in (1_000, 2_500):
            source.wait_for(lambda goal=goal: source.handled_rows() >= goal)
            source.kill()
            source.start()
        status = "select status = 'completed' from towpath.signal where id = 's1'"
        source.wait_for(lambda: source.one(status))
    source.catch_up()
    check_streams(source)
    fold = source.fold()

    assert (True, []) == (fold.reads > ROWS // 2, fold.stale)
    assert source.table() == fold.rows


def test_a_watermark_is_a_transactional_message(source: Source):
    """
    Before Postgres 17, only a commit flushes a message immediately.
    """
    source.prepare()
    second_slot = f"{source.prefix}_second"
    source.one("select pg_create_logical_replication_slot(%s, 'pgoutput')", second_slot)
    source.start()
    source.snapshot()
    status = "select status = 'completed' from towpath.signal where id = 's1'"
    source.wait_for(lambda: source.one(status))
    frames = source.connection.execute(
        "select data from pg_logical_slot_peek_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', 'towpath', 'messages', 'true')"
        " where substr(data, 1, 1) = 'M'",
        (second_slot,),
    )
    # A message: 'M', its flags, its LSN in eight bytes, its prefix up to a zero byte.
    found = [(data[10 : data.index(0, 10)], data[1]) for (data,) in frames]
    flags = [flag for prefix, flag in found if prefix == b"towpath.watermark"]

    # Several chunks have more than five watermarks.
    assert len(flags) > 5
    assert {1} == set(flags)


def test_publications_can_be_replaced_under_load(source: Source):
    """
    Changes from before the new publications are read through the previous ones.
    """
    source.prepare()
    source.start()
    with Writers(source.dsn, ROWS * 11 // 10, count=2):
        source.wait_for(lambda: source.has_published("event.order"))
        source.kill()
        count = len(source.events())
        source.wait_for(lambda: len(source.events()) > count + 50)
        source.prepare('publication = "other"\noutbox_publication = "other_outbox"')
        source.start()
        source.wait_for(lambda: len(source.events()) > count + 100)
    source.catch_up()

    check_streams(source)


def test_a_publication_newer_than_the_log_halts_the_relay(source: Source):
    """
    The server ends the stream with an error; the relay reports why, and writes nothing.
    """
    source.prepare()
    source.start()
    source.connection.execute("insert into shop.line values (9001, 1)")
    source.catch_up()
    stopped = source.stop()
    for name in ("towpath", "towpath_outbox"):
        source.connection.execute(f"alter publication {name} rename to {name}_before")
    source.connection.execute("insert into shop.line values (9002, 2)")
    source.prepare()
    source.connection.execute("insert into shop.line values (9003, 3)")
    code = source.start().wait(30)
    halted = source.logged("relay halted")[-1]
    keys = [change.key for change in source.fold().streamed]

    assert (0, 3, [9001]) == (stopped, code, keys)
    assert "publication is newer than the log" in halted["reason"]
    assert "does not exist" in halted["reason"]


@pytest.mark.parametrize("bound", ["maxvalue", "'infinity'"])
def test_an_unbounded_partition_is_not_a_problem(source: Source, bound: str):
    """
    An unbounded last partition accepts all later inserts.

    Releases before 17 refuse to subtract a time from infinity.
    """
    outbox = source_tables.outbox(is_partitioned=True)
    source.execute(source_tables.schema_statement())
    source.execute(outbox.create_statement())
    source.execute(
        "create table towpath.rest partition of towpath.outbox"
        f" for values from (minvalue) to ({bound})"
    )
    source.prepare()

    assert [] == [*source_problems(source.connection, load(source.config, {}))]


def test_the_doctor_reads_the_facts_of_postgres_15(source: Source, capsys):
    """
    Every query of the doctor works on this release, and the doctor finds no error.
    """
    source.prepare()
    capsys.readouterr()
    code = run(["doctor", "--json", "--config", str(source.config)])
    rows = json.loads(capsys.readouterr().out)
    levels = {row["level"] for row in rows}

    assert (4, {"warning"}) == (code, levels - {"info"})
