"""
The relay against a real Postgres 15, which lacks what later releases brought.

There slots have no failover, a watermark is flushed by its transaction only, and a
publication that the log does not know ends the stream instead of warning of it. What
the stream must bring is known from the source itself: a trigger writes down each change
of a row, in the order of its commits.
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

# Out of line and uncompressed: a change that leaves the value alone does not stream it.
TABLES = """
create schema shop;
create sequence shop.v;
create table shop.line (
    id int primary key, v bigint not null default nextval('shop.v'), large text
);
alter table shop.line alter large set storage external;
create table shop.audit (was int, now int, v bigint);
create function shop.tell() returns trigger language plpgsql as $$
begin
    insert into shop.audit values (old.id, new.id, new.v);
    return null;
end $$;
"""
TRIGGER = """
create trigger tell after insert or update or delete on shop.line
    for each row execute function shop.tell()
"""


class Change(NamedTuple):
    """A streamed record of a row: its key, its operation (none: a tombstone), its v."""

    key: int
    operation: str | None
    v: int | None


@dataclass
class Fold:
    """A sink's rows after reading a topic, and its findings."""

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
    """A database of a Postgres 15, the relay over it, and the topics it writes."""

    def prepare(self, source: str = "") -> None:
        """
        Write the configuration and let the relay prepare the database.

        Args:
            source: Further lines of its section.
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
        """Ask for a snapshot of the table, slow enough to be killed in."""
        values = {"data_collections": ["shop.line"], "max_rows_per_second": 1_500}
        self.signal("s1", **values)

    def changes(self) -> Counter[Change]:
        """Return the records that the source's changes must become."""
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
        """Return the table as a sink should have it."""
        rows = self.connection.execute("select to_jsonb(l) from shop.line l")
        return {row["id"]: row for (row,) in rows}

    def fold(self) -> Fold:
        """Read the table's topic from its beginning to its present end."""
        fold = Fold()
        for record in self.records("shop.line"):
            fold.take(record)
        return fold

    def has_published(self, name: str) -> bool:
        """Return whether a relay that streams has written into a topic."""
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

    def change(self, connection: psycopg.Connection, chance: random.Random) -> None:
        with (
            contextlib.suppress(
                psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected
            ),
            connection.transaction(),
        ):
            for statement in (*chance.choices(_STATEMENTS, k=2), _INSERT_EVENT):
                key, other = (chance.randint(1, self.highest) for _ in range(2))
                connection.execute(statement, {"key": key, "other": other})


@pytest.fixture(scope="module")
def server() -> Iterator[Addresses]:
    """Provide a Postgres 15 of its own."""
    with postgres_15.serving() as addresses:
        yield addresses


@pytest.fixture
def source(server: Addresses, stack, unique: str, tmp_path: Path) -> Iterator[Source]:
    """Provide a source; the rows that it begins with were there before the slot."""
    postgres.create_database(server.dsn("postgres"), unique)
    lent = Source(server.dsn(unique), stack.kafka, unique, tmp_path)
    lent.execute(TABLES)
    lent.connection.execute(
        "insert into shop.line (id, large) select g,"
        " case when g %% 10 = 0 then repeat(md5(g::text), 100) end"
        " from generate_series(1, %s) g",
        (ROWS,),
    )
    lent.connection.execute(TRIGGER)
    yield lent
    lent.close()
    postgres.drop_database(server.dsn("postgres"), unique)


def check_streams(source: Source) -> None:
    """Fail unless each change and each event stands once, rising in its partition."""
    streamed, changes = Counter(source.fold().streamed), source.changes()
    assert (Counter(), Counter()) == (changes - streamed, streamed - changes)
    events = source.records("event.order")
    ids = [headers_of(event)["id"] for event in events]
    assert Counter(source.events()) == Counter(ids)
    for name in TOPICS:
        at = positions(source.records(name))
        by_partition = sorted(at, key=lambda place: place[0])
        assert sorted(set(at)) == by_partition


def positions(records: list[Message]) -> list[tuple[int, str]]:
    """Return partition and position of the streamed records."""
    headers = [(record.partition(), headers_of(record)) for record in records]
    return [
        (partition, each["position"])
        for partition, each in headers
        if "snapshot" not in each
    ]


def test_it_is_a_15_and_its_slot_knows_no_failover(source: Source):
    """
    The relay prepares the database, twice; what later releases have is not asked for.
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
    Insert, update, key change with a value left alone, delete: as on later releases.
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


def test_killed_in_a_snapshot_under_load_it_loses_and_repeats_nothing(source: Source):
    """
    Each streamed record stands once and in order, and the sink ends with the table.

    Rows and events are written all the time; the relay is killed twice while it reads.
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


def test_a_watermark_stands_in_a_transaction(source: Source):
    """
    Only its commit flushes a message at once, which a call does from 17 on.
    """
    source.prepare()
    beside = f"{source.prefix}_beside"
    source.one("select pg_create_logical_replication_slot(%s, 'pgoutput')", beside)
    source.start()
    source.snapshot()
    status = "select status = 'completed' from towpath.signal where id = 's1'"
    source.wait_for(lambda: source.one(status))
    frames = source.connection.execute(
        "select data from pg_logical_slot_peek_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', 'towpath', 'messages', 'true')"
        " where substr(data, 1, 1) = 'M'",
        (beside,),
    )
    # A message: 'M', its flags, its LSN of eight bytes, its prefix up to a zero.
    found = [(data[10 : data.index(0, 10)], data[1]) for (data,) in frames]
    flags = [flag for prefix, flag in found if prefix == b"towpath.watermark"]

    # The start mark, and those of several chunks.
    assert len(flags) > 5
    assert {1} == set(flags)


def test_other_publications_serve_once_the_log_knows_them(source: Source):
    """
    Changes from before their creation are read through the former ones.
    """
    source.prepare()
    source.start()
    with Writers(source.dsn, ROWS * 11 // 10, count=2):
        source.wait_for(lambda: source.has_published("event.order"))
        source.kill()
        made = len(source.events())
        source.wait_for(lambda: len(source.events()) > made + 50)
        source.prepare('publication = "other"\noutbox_publication = "other_outbox"')
        source.start()
        source.wait_for(lambda: len(source.events()) > made + 100)
    source.catch_up()

    check_streams(source)


def test_a_publication_that_the_log_does_not_know_halts(source: Source):
    """
    The server ends the stream with an error; the relay says why, and writes nothing.
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
    assert "publication is younger than the log" in halted["reason"]
    assert "does not exist" in halted["reason"]


@pytest.mark.parametrize("bound", ["maxvalue", "'infinity'"])
def test_a_partition_without_an_end_is_no_problem(source: Source, bound: str):
    """
    The last partition takes every insert to come.

    Releases below 17 refuse to subtract a time from infinity.
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


def test_the_doctor_reads_its_facts(source: Source, capsys):
    """
    Every question is one that this release answers, and nothing is found to be wrong.
    """
    source.prepare()
    capsys.readouterr()
    code = run(["doctor", "--json", "--config", str(source.config)])
    rows = json.loads(capsys.readouterr().out)
    levels = {row["level"] for row in rows}

    assert (4, {"warning"}) == (code, levels - {"info"})
