"""The history of real servers after drops, restores, failovers and other accidents."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psycopg
import pytest

from support.slots import slot_in_creation
from support.waiting import CLOCK, until
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Stack
from towpath.relay.encode.record import Record
from towpath.relay.errors import (
    HistoryChangedError,
    NotPreparedError,
    SlotBusyError,
    SlotLostError,
)
from towpath.relay.postgres import setup
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.history import HistoryStore, LineageResolver
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.recovery.lineage import Lineage, LineageDecision, StoredHistory
from towpath.relay.snapshot.naming import Registration
from towpath.settings import (
    Kafka,
    OnGap,
    Registry,
    Relay,
    Settings,
    Source,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLE = "create table if not exists public.note (id int primary key, note text)"


@dataclass
class FollowedSource:
    """A relay's stored history in memory, and the slot and database that it follows."""

    dsn: str
    slot: str
    on_gap: OnGap = OnGap.PLAN
    lineages: tuple[Lineage, ...] = ()
    confirmed_lsn: int | None = None
    published_log_lsn: int = 0
    heartbeat: int = 0
    steps: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The settings of this relay."""
        source = Source(
            dsn=self.dsn, slot=self.slot, prefix=self.slot, tables=("public.note",)
        )
        return Settings(
            version=1,
            source=(source,),
            kafka=Kafka(bootstrap_servers="x"),
            registry=Registry(url="http://x"),
            relay=Relay(on_gap=self.on_gap),
        )

    def prepare(self) -> None:
        """Create the objects that ``relay init`` creates."""
        with connect(self.dsn) as connection:
            connection.execute(TABLE.encode())
            facts = setup.read_source_facts(connection, self.settings)
            setup.check_source(facts, self.settings)
            setup.run_setup(connection, setup.plan_setup(facts, self.settings))

    def follow(self) -> LineageDecision:
        """Decide which lineage to follow, as the relay does at each start."""
        self.steps.clear()
        stream = SlotStream(self.dsn, CLOCK, Wakeup())
        with connect(self.dsn) as connection, contextlib.closing(stream):
            store = HistoryStore(
                self._stored_history, self._write, self._publish, self._confirm
            )
            relay = Registration(self.settings.database.slot, 1)
            history = LineageResolver(
                self.settings, store, CLOCK, connection, stream, relay
            )
            return history.follow()

    def advance(self, heartbeats: int = 1) -> None:
        """Write heartbeats, and record everything as published and confirmed."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for _ in range(heartbeats):
                self.heartbeat = one(
                    connection,
                    "insert into towpath.heartbeat values (1, 1, now())"
                    " on conflict (id) do update set counter = heartbeat.counter + 1"
                    " returning counter",
                )
            lsn = one(connection, "select pg_current_wal_lsn() - '0/0'::pg_lsn")
            self.confirmed_lsn = int(lsn)
            self.published_log_lsn = self.lineages[-1].offset + int(lsn) - 8
            connection.execute(
                "select pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)",
                (self.slot, self.confirmed_lsn),
            )

    def write(self, count: int = 100) -> None:
        """Write rows that are not published."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "insert into public.note select i, 'x' from generate_series(1, %s) i"
                " on conflict (id) do update set note = note.note || 'x'",
                (count,),
            )

    def sql(self, statement: str) -> None:
        """Run a statement on the server."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _stored_history(self) -> StoredHistory:
        lsn = self.confirmed_lsn
        offset = self.lineages[-1].offset if self.lineages else 0
        return StoredHistory(
            self.lineages,
            lsn,
            None if lsn is None else lsn + offset,
            self.published_log_lsn,
            self.heartbeat,
            has_records=bool(self.published_log_lsn),
        )

    def _write(self, lineages: Sequence[Lineage]) -> None:
        if len(lineages) > len(self.lineages):
            self.confirmed_lsn, self.heartbeat = None, 0
        self.lineages = tuple(lineages)
        self.steps.append("state")

    def _confirm(self, lsn: int) -> None:
        self.confirmed_lsn = lsn
        self.steps.append("confirmed")

    def _publish(self, record: Record) -> None:
        self.records.append(record)
        self.steps.append("notification")


def one(connection: psycopg.Connection, statement: str):
    """Return the only value that a statement returns."""
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


@pytest.fixture
def followed(database: str, unique: str) -> FollowedSource:
    """Provide a prepared database with a relay that has published something."""
    made = FollowedSource(database, unique)
    made.prepare()
    made.follow()
    made.advance()
    return made


@pytest.fixture
def own(tmp_path_factory) -> Iterator[Stack]:
    """Provide a Postgres server that a test may stop, copy and reconfigure."""
    stack = Stack(tmp_path_factory.mktemp("own"))
    stack.up(["postgres"])
    try:
        yield stack
    finally:
        stack.purge()


def follow_on(stack: Stack, on_gap: OnGap = OnGap.PLAN) -> FollowedSource:
    """Prepare a database on a server, and follow it."""
    addresses = stack.addresses()
    postgres.create_database(addresses.dsn("postgres"), "lives")
    made = FollowedSource(addresses.dsn("lives"), "lives", on_gap)
    made.prepare()
    made.follow()
    made.advance()
    return made


def test_a_lineage_begins_once_and_continues(followed: FollowedSource):
    """
    The first start writes lineage 1 with offset 0; later starts write nothing.
    """
    first = followed.lineages[0]
    decision = followed.follow()

    assert (1, 0, None, [], False) == (
        first.number,
        first.offset,
        decision.gap,
        followed.steps,
        decision.is_new,
    )


def test_a_missing_slot_is_announced_and_recreated(followed: FollowedSource):
    """
    The gap is notified once, and the new lineage lies above the old one (A92, X-06).
    """
    followed.sql(f"select pg_drop_replication_slot('{followed.slot}')")
    decision = followed.follow()
    (record,) = followed.records
    document = orjson.loads(record.value or b"")
    again = followed.follow()

    assert (["Lineage", "GAP"], True) == (
        [document["aggregate_type"], document["type"]],
        "execute-snapshot" in document["additional_data"]["fill"],
    )
    assert (2, True, None, 1) == (
        decision.lineage.number,
        decision.lineage.offset > followed.published_log_lsn,
        again.gap,
        len(followed.records),
    )


def test_a_slot_that_is_still_being_created_is_busy(followed: FollowedSource):
    """
    The gap is announced only once the creation has ended.
    """
    followed.sql(f"select pg_drop_replication_slot('{followed.slot}')")
    with slot_in_creation(followed.dsn, followed.slot):
        with pytest.raises(SlotBusyError, match="is still being created by process"):
            followed.follow()
        before = list(followed.steps)
    decision = followed.follow()

    assert ([], 2) == (before, decision.lineage.number)


@pytest.mark.parametrize(
    "damage",
    [
        [
            "select pg_drop_replication_slot('{0}')",
            "select pg_create_logical_replication_slot('{0}', 'pgoutput')",
        ],
        ["select pg_replication_slot_advance('{0}', pg_current_wal_lsn())"],
    ],
    ids=["recreated", "advanced"],
)
def test_a_slot_that_another_program_moved_means_a_gap(
    followed: FollowedSource, damage: list[str]
):
    """
    A slot beyond the relay's confirmed LSN has skipped unpublished changes (A92).
    """
    followed.write()
    for statement in damage:
        followed.sql(statement.format(followed.slot))
    decision = followed.follow()

    assert decision.gap is not None
    assert (
        "another program" in decision.gap.reason,
        ["notification", "state", "state"],
    ) == (
        True,
        followed.steps,
    )


def test_a_gap_halts_the_relay_with_on_gap_halt(followed: FollowedSource):
    """
    Nothing is written to Kafka, and no slot is created (X-03).
    """
    followed.on_gap = OnGap.HALT
    followed.heartbeat += 1
    with pytest.raises(HistoryChangedError, match="back in time"):
        followed.follow()
    followed.heartbeat -= 1
    followed.sql(f"select pg_drop_replication_slot('{followed.slot}')")
    with pytest.raises(SlotLostError, match="no longer exists"):
        followed.follow()

    assert ([], []) == (followed.steps, followed.records)


def test_a_slot_of_another_database_is_left_alone(followed: FollowedSource, stack):
    """
    A slot with the relay's name in another database is refused, not dropped.
    """
    elsewhere = stack.dsn("postgres")
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        followed.sql(f"select pg_drop_replication_slot('{followed.slot}')")
        create = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
        connection.execute(create, (followed.slot,))
        try:
            with pytest.raises(NotPreparedError, match="database postgres"):
                followed.follow()
        finally:
            connection.execute("select pg_drop_replication_slot(%s)", (followed.slot,))

    assert [] == followed.steps


def test_an_invalidated_slot_is_replaced_and_its_gap_filled(own: Stack):
    """
    The lost slot is replaced by a new one, and a snapshot is requested once (B77).
    """
    followed = follow_on(own, OnGap.SNAPSHOT)
    followed.sql("alter system set max_slot_wal_keep_size = '1MB'")
    followed.sql("select pg_reload_conf()")
    slot = "select wal_status from pg_replication_slots where slot_name = 'lives'"
    with psycopg.connect(followed.dsn, autocommit=True) as connection:

        def is_lost() -> bool:
            followed.write()
            connection.execute("select pg_switch_wal()")
            connection.execute("checkpoint")
            return one(connection, slot) == "lost"

        until(is_lost, "the slot is lost")
        decision = followed.follow()
        followed.follow()
        signals = connection.execute("select id, data from towpath.signal").fetchall()
        status = one(connection, slot)

    assert decision.gap is not None
    assert ("has lost part of the log" in decision.gap.reason, "reserved", 1) == (
        True,
        status,
        len(signals),
    )
    assert ("gap-2", ["public.note"], True) == (
        signals[0][0],
        orjson.loads(signals[0][1])["data-collections"],
        followed.lineages[-1].gap.started,
    )


def test_a_restored_volume_is_detected(own: Stack):
    """
    The older heartbeat reveals the restore, even if the WAL is longer by now.
    """
    followed = follow_on(own)
    own.down()
    data = postgres.home_of(own.state).data
    copy = data.with_name("copy")
    subprocess.run(["cp", "-a", data, copy], check=True)
    own.up(["postgres"])
    followed.advance(heartbeats=3)
    own.down()
    shutil.rmtree(data)
    copy.rename(data)
    own.up(["postgres"])
    for _ in range(5):
        followed.write(2_000)
    decision = followed.follow()

    assert decision.gap is not None
    assert ("its heartbeat is 1, but 4 was streamed" in decision.gap.reason, 2) == (
        True,
        decision.lineage.number,
    )


@pytest.mark.parametrize("is_ahead", [True, False], ids=["complete", "fork below"])
def test_a_promoted_standby_continues_the_history_if_it_lacks_nothing(
    own: Stack, tmp_path: Path, *, is_ahead: bool
):
    """
    A fork above the published LSN continues the lineage; one below is a gap (B73, B74).
    """
    followed = follow_on(own)
    with standby_of(own, followed, tmp_path) as (standby, dsn):
        if not is_ahead:
            # The standby does not receive the changes that are published from now on.
            standby.down()
        followed.advance()
        if not is_ahead:
            own.down()
            standby.up(["postgres"])
        with psycopg.connect(dsn, autocommit=True) as connection:
            if is_ahead:
                until(
                    lambda: has_replayed(connection, followed),
                    "the standby has caught up",
                )
            assert one(connection, "select pg_promote()")
        followed.dsn = dsn
        decision = followed.follow()
        again = followed.follow()

    assert (is_ahead, 2, 1 if is_ahead else 2, None) == (
        decision.gap is None,
        decision.lineage.timeline,
        decision.lineage.number,
        again.gap,
    )


@contextlib.contextmanager
def standby_of(
    primary: Stack, followed: FollowedSource, folder: Path
) -> Iterator[tuple[Stack, str]]:
    """Provide a standby with the slot, made from a copy of the volume, and its DSN."""
    standby = Stack(folder / "standby")
    standby.state.create()
    home = postgres.home_of(standby.state)
    postgres.create_home(home, standby.state)
    primary.down()
    subprocess.run(
        ["cp", "-a", postgres.home_of(primary.state).data, home.data], check=True
    )
    (home.data / "standby.signal").touch()
    with (home.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = '{followed.dsn}'\n")
    (home.folder / "made").touch()
    primary.up(["postgres"])
    try:
        yield standby, standby.up(["postgres"]).dsn("lives")
    finally:
        standby.purge()


def has_replayed(connection: psycopg.Connection, followed: FollowedSource) -> bool:
    """Return whether a standby has replayed up to the confirmed LSN."""
    replayed = "select pg_last_wal_replay_lsn() - '0/0'::pg_lsn"
    return one(connection, replayed) >= (followed.confirmed_lsn or 0)
