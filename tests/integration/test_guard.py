"""The slot monitor, the claim on a slot, and the setup, on a real server."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from structlog.testing import capture_logs

from support.copying import replace
from support.own_postgres import OwnPostgres
from support.waiting import CLOCK, until
from towpath.relay.errors import NotPreparedError, SlotHeldError, SourceUnavailableError
from towpath.relay.postgres import preflight, setup
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.postgres.slot import ClaimWait, SlotOwnership, wait_for_slot
from towpath.relay.postgres.slot_monitor import OUTBOX_UPDATED, SlotMonitor
from towpath.relay.snapshot.naming import Registration
from towpath.relay.stats import Stats
from towpath.schemas import source_tables
from towpath.schemas.findings import blocking_findings
from towpath.settings import Kafka, Registry, Relay, Settings, Source

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

INSERT = (
    "insert into towpath.outbox (id, aggregate_type, aggregate_id, type)"
    " values (gen_random_uuid(), 'a', 'b', 'c')"
)

BREAK_CLAIM = (
    "select pg_terminate_backend(l.pid) from pg_locks l, pg_database d"
    " where locktype = 'advisory' and d.oid = l.database"
    " and d.datname = current_database()"
)


def settings_of(dsn: str, slot: str, **relay) -> Settings:
    """Return the settings of a relay of this database."""
    return Settings(
        version=1,
        source=(Source(dsn=dsn, slot=slot, prefix=slot),),
        kafka=Kafka(bootstrap_servers="x"),
        registry=Registry(url="http://x"),
        relay=Relay(heartbeat_interval_s=0.1, **relay),
    )


def prepare(settings: Settings) -> list[setup.SetupStep]:
    """Create the objects that ``relay init`` creates; return the steps."""
    with connect(settings.database.dsn) as connection:
        facts = setup.read_source_facts(connection, settings)
        setup.check_source(facts, settings)
        steps = setup.plan_setup(facts, settings)
        setup.run_setup(connection, steps)
    return steps


class Watched:
    """A running slot monitor, and its reports."""

    def __init__(self, settings: Settings) -> None:
        self.stats = Stats(run_id="this run")
        self.lost: list[str] = []
        self.claim = SlotOwnership(settings.database.dsn, settings.database.slot)
        self.claim.acquire(CLOCK, threading.Event(), 5, lambda: False)
        self.monitor = SlotMonitor(
            *(settings, self.stats, CLOCK, self.claim, self.lost.append),
            relay=Registration(settings.database.slot, 1),
        )
        self.monitor.start()

    def close(self) -> None:
        """Close the monitor and the claim."""
        self.monitor.close()
        self.claim.close()


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection]:
    """Provide an application's connection."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def watch(dsn: str, slot: str, **relay) -> closing:
    """Prepare a database, and start a monitor of its slot."""
    settings = settings_of(dsn, slot, **relay)
    prepare(settings)
    return closing(Watched(settings))


def test_a_heartbeat_is_in_the_table_and_in_the_wal(database: str, unique: str, source):
    """
    The WAL advances in a quiet database; each heartbeat names its run (W-13).
    """
    with watch(database, unique) as watched:
        until(lambda: counter(source) >= 3, "three heartbeats are written")
        until(lambda: watched.stats.slot is not None, "the slot is read")
        lost = list(watched.lost)
    rows = source.execute(
        "select data from pg_logical_slot_peek_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', 'towpath', 'messages', 'true')",
        [unique],
    ).fetchall()
    found = [bytes(data) for (data,) in rows if b"towpath.heartbeat" in bytes(data)]
    # The prefix ends with a zero byte; the length and the content follow.
    body = json.loads(found[0].partition(b"towpath.heartbeat\0")[2][4:])

    assert ([], 1, "this run") == (lost, body["counter"], body["run"])


def counter(source: psycopg.Connection) -> int:
    """Read the heartbeat's counter."""
    row = source.execute("select max(counter) from towpath.heartbeat").fetchone()
    return (row[0] if row else 0) or 0


def test_a_failing_heartbeat_query_stops_nothing(database: str, unique: str, source):
    """
    The failure is logged after each heartbeat, and heartbeats continue.
    """
    query = "select 1 / 0"
    with capture_logs() as logs, watch(database, unique, heartbeat_query=query):
        until(lambda: counter(source) >= 3, "three heartbeats are written")

    assert any("division by zero" in str(record.get("reason")) for record in logs)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("select pg_drop_replication_slot('{slot}')", "no longer exists"),
        ("update towpath.heartbeat set counter = 0", "back in time"),
        (
            BREAK_CLAIM,
            "claim on the slot is lost",
        ),
    ],
    ids=["slot", "heartbeat", "claim"],
)
def test_a_loss_is_reported_once(
    database: str, unique: str, source, damage: str, reason: str
):
    """
    A dropped slot, a lower counter and a lost claim each end the monitor with a reason.
    """
    with watch(database, unique) as watched:
        until(lambda: counter(source) >= 3, "three heartbeats are written")
        source.execute(damage.format(slot=unique))
        until(lambda: bool(watched.lost), "the loss is reported")
        until(lambda: not watched.monitor._thread.is_alive(), "the monitor has ended")
        lost = list(watched.lost)

    assert (1, True) == (len(lost), reason in lost[0])


def test_the_slot_monitor_reconnects_by_itself(database: str, unique: str, source):
    """
    If its connection breaks, heartbeats continue, and no loss is reported.
    """
    with watch(database, unique) as watched:
        until(lambda: counter(source) >= 2, "two heartbeats are written")
        pid = watched.monitor._connection.info.backend_pid
        source.execute("select pg_terminate_backend(%s)", [pid])
        seen = counter(source)
        until(lambda: counter(source) >= seen + 3, "heartbeats continue")
        lost = list(watched.lost)

    assert [] == lost


def test_bounds_are_reported_when_they_are_crossed(database: str, unique: str, source):
    """
    Each crossing is logged once, at the level of its bound (W-15).
    """
    bounds = {"retained_warning_bytes": 1, "retained_critical_bytes": 2}
    with capture_logs() as logs, watch(database, unique, **bounds):
        until(lambda: counter(source) >= 5, "five heartbeats are written")
    found = [
        (record["bound"], record["log_level"]) for record in logs if "bound" in record
    ]

    assert [
        ("retained_critical_bytes", "error"),
        ("retained_warning_bytes", "warning"),
    ] == found


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_updated_outbox_rows_are_counted(
    database: str, unique: str, source, is_partitioned: bool
):
    """
    An update that the publication does not send is still counted (A44).
    """
    table = source_tables.outbox(is_partitioned=is_partitioned)
    source.execute(source_tables.schema_statement())
    source.execute(table.create_statement())
    if is_partitioned:
        for statement in table.partition_statements(CLOCK.now().date()):
            source.execute(statement)
    with watch(database, unique) as watched:
        until(lambda: counter(source) >= 2, "two heartbeats are written")
        source.execute(INSERT)
        source.execute("update towpath.outbox set type = 'd'")
        source.execute("select pg_stat_force_next_flush()")
        source.execute("select 1")
        until(
            lambda: watched.stats.skipped[OUTBOX_UPDATED] == 1, "the update is counted"
        )
        lost = list(watched.lost)

    assert [] == lost


def test_failing_archiving_is_detected(server: OwnPostgres, unique: str):
    """
    WAL that cannot be archived fills the disk, despite the size limit of slots (B77).
    """
    dsn = server.start(archive_mode="on")
    seen = []
    with psycopg.connect(dsn, autocommit=True) as source, watch(dsn, unique) as watched:
        until(lambda: watched.stats.slot is not None, "the slot is read")
        seen.append(watched.stats.slot.is_archive_failing)
        for command in ("false", "true"):
            source.execute(f"alter system set archive_command = '{command}'")
            source.execute("select pg_reload_conf()")
            source.execute("select pg_switch_wal()")
            before = seen[-1]
            until(
                lambda: watched.stats.slot.is_archive_failing is not before,  # noqa: B023
                f"archiving by {command} is detected",
            )
            seen.append(watched.stats.slot.is_archive_failing)

    assert [False, True, False] == seen


def test_a_second_relay_waits_and_names_the_holder(database: str, unique: str):
    """
    The claim is exclusive; the error after the wait describes its holder (A95).
    """
    with closing(SlotOwnership(database, unique)) as first:
        first.acquire(CLOCK, threading.Event(), 5, lambda: False)
        pid = first._connection.info.backend_pid
        with (
            closing(SlotOwnership(database, unique)) as second,
            capture_logs() as logs,
            pytest.raises(SlotHeldError, match=f"process {pid} .*towpath-relay.*since"),
        ):
            second.acquire(CLOCK, threading.Event(), 0.6, lambda: False)

    assert ["slot held by another process: waiting"] == [
        record["event"] for record in logs
    ]


def test_a_waiting_relay_takes_over(database: str, unique: str):
    """
    Once the first relay is gone, the second one holds the claim.
    """
    first = SlotOwnership(database, unique)
    first.acquire(CLOCK, threading.Event(), 5, lambda: False)
    timer = threading.Timer(0.3, first.close)
    timer.start()
    with closing(SlotOwnership(database, unique)) as second:
        second.acquire(CLOCK, threading.Event(), 20, lambda: False)
        timer.join()
        holder = second.holder()

        assert str(second._connection.info.backend_pid) in holder


def test_the_relay_waits_for_another_reader_of_its_slot(database: str, unique: str):
    """
    If a reader without the claim does not end in time, the error names it (A95).
    """
    settings = settings_of(database, unique)
    prepare(settings)
    names = (settings.database.publication, settings.database.outbox_publication)
    with (
        closing(SlotStream(database, CLOCK, Wakeup())) as other,
        closing(SlotStream(database, CLOCK, Wakeup())) as ours,
        connect(database) as connection,
    ):
        other.start(unique, names)

        def attempt() -> bool:
            ours.start(unique, names)
            return True

        catalog = PostgresCatalog(connection)
        patience = ClaimWait(CLOCK, threading.Event(), 0.6, lambda: False)
        with pytest.raises(SlotHeldError, match=r"held by server process \d+ "):
            wait_for_slot(unique, attempt, lambda: catalog.holder(unique), patience)
        other.close()
        patient = replace(patience, timeout_s=20)
        wait_for_slot(unique, attempt, lambda: catalog.holder(unique), patient)
        slot = catalog.slot(unique)

    assert slot is not None
    assert slot.is_active


def test_each_slot_has_its_own_claim(database: str, unique: str):
    """
    Two relays of one database each hold the claim on their own slot.
    """
    with closing(SlotOwnership(database, unique)) as first:
        first.acquire(CLOCK, threading.Event(), 0, lambda: False)
        with closing(SlotOwnership(database, f"{unique}_b")) as second:
            second.acquire(CLOCK, threading.Event(), 0, lambda: False)
            first.close()

            with pytest.raises(SourceUnavailableError):
                first.check()


def test_a_dry_run_needs_no_rights(database: str, unique: str, source):
    """
    A dry run only reads, so a role that owns nothing gets the same plan.
    """
    settings = settings_of(database, unique)
    source.execute(f"create role {unique} login replication")
    weak = database.replace("postgres@", f"{unique}@")
    try:
        with connect(database) as strong, connect(weak) as connection:
            wanted = setup.plan_setup(
                setup.read_source_facts(strong, settings), settings
            )
            facts = setup.read_source_facts(connection, settings)
            setup.check_source(facts, settings)
            planned = setup.plan_setup(facts, settings)
    finally:
        source.execute(f"drop role {unique}")

    assert wanted == planned


def test_init_upgrades_an_older_snapshot_table(database: str, unique: str):
    """
    Missing columns for key requests are added; then nothing is left to do.
    """
    settings = settings_of(database, unique)
    with connect(database) as connection:
        facts = setup.read_source_facts(connection, settings)
        setup.run_setup(connection, setup.plan_setup(facts, settings))
        connection.execute(
            "alter table towpath.snapshot drop column asked_until, drop asked_keys,"
            " drop key_columns"
        )
        facts = setup.read_source_facts(connection, settings)
        steps = setup.plan_setup(facts, settings)
        setup.run_setup(connection, steps)
        again = setup.plan_setup(
            setup.read_source_facts(connection, settings), settings
        )
        connection.execute(
            "select pg_drop_replication_slot(%s)", (settings.database.slot,)
        )

    assert ("creating table towpath.snapshot", []) == (steps[-1].purpose, again)


def test_init_run_twice_finds_nothing_to_do(database: str, unique: str):
    """
    After init, the plan is empty, and the prepared source has no blocking finding.
    """
    settings = settings_of(database, unique)
    first = prepare(settings)
    with connect(database) as connection:
        facts = setup.read_source_facts(connection, settings)
    found = blocking_findings(
        [
            *preflight.capture_findings(facts, settings),
            *preflight.running_findings(facts, settings),
            *preflight.replication_findings(database),
        ]
    )

    assert (True, [], []) == (bool(first), prepare(settings), found)


def test_an_old_transaction_that_delays_the_slot_is_reported(
    database: str, unique: str, source, monkeypatch
):
    """
    Slot creation waits for a limited time; the error names the transaction's pid (B30).
    """
    monkeypatch.setattr(setup, "SLOT_TIMEOUT", b"set statement_timeout = '700ms'")
    with psycopg.connect(database, application_name="slow poke") as other:
        other.execute("create table public.unfinished (id int)")
        pid = other.info.backend_pid
        with pytest.raises(NotPreparedError, match=rf"{pid} \(slow poke"):
            prepare(settings_of(database, unique))
        other.rollback()
    slots = source.execute(
        "select count(*) from pg_replication_slots where slot_name = %s", [unique]
    ).fetchone()

    assert (0,) == slots


def test_a_users_publication_keeps_its_lists_and_filters(
    database: str, unique: str, source
):
    """
    Adding a table to a publication does not change its other tables (W-08).
    """
    source.execute("create table public.a (id int primary key, note text, x int)")
    source.execute("create table public.b (id int primary key)")
    source.execute(
        "create publication towpath for table public.a (id, note) where (id > 5)"
    )
    settings = settings_of(database, unique)
    tables = ("public.a", "public.b")
    wanted = settings.database.model_copy(update={"tables": tables})
    prepare(settings.model_copy(update={"source": (wanted,)}))
    rows = source.execute(
        "select tablename, attnames::text[], rowfilter from pg_publication_tables"
        " where pubname = 'towpath' and schemaname = 'public' order by 1"
    ).fetchall()

    assert [("a", ["id", "note"], "(id > 5)"), ("b", ["id"], None)] == rows


def test_tables_that_inherit_from_a_captured_one_are_not_published(
    database: str, unique: str, source
):
    """
    Neither children nor partitions are added to the publication or dropped from it.
    """
    source.execute("create table public.a (id int primary key)")
    source.execute("create table public.child () inherits (public.a)")
    source.execute("create table public.p (id int primary key) partition by list (id)")
    source.execute("create table public.p1 partition of public.p for values in (1)")
    settings = settings_of(database, unique)

    def published(*tables: str) -> list[str]:
        wanted = settings.database.model_copy(update={"tables": tables})
        prepare(settings.model_copy(update={"source": (wanted,)}))
        rows = source.execute(
            "select tablename from pg_publication_tables"
            " where pubname = 'towpath' and schemaname = 'public' order by 1"
        )
        return [name for (name,) in rows]

    created = published("public.a", "public.p")
    dropped = published()

    assert (["a", "p"], []) == (created, dropped)
    assert ["a", "p"] == published("public.a", "public.p")


def test_every_kind_of_table_is_described(database: str, unique: str, source):
    """
    Tables with an unsuitable key, identity, kind or partition are refused by name.
    """
    for statement in (
        "create table public.plain (id int primary key)",
        "create table public.keyless (id int)",
        "create table public.full_row (id int)",
        "alter table public.full_row replica identity full",
        "create table public.by_index (id int primary key, code text not null)",
        "create unique index by_code on public.by_index (code)",
        "alter table public.by_index replica identity using index by_code",
        "create unlogged table public.quick (id int primary key)",
        "create view public.seen as select 1 as id",
        "create table public.split (id int primary key) partition by range (id)",
        "create table public.leaf partition of public.split default",
        "alter table public.leaf replica identity nothing",
    ):
        source.execute(statement)
    names = ("plain", "keyless", "full_row", "by_index", "quick", "seen", "split")
    tables = tuple(f"public.{name}" for name in names)
    settings = settings_of(database, unique)
    wanted = settings.database.model_copy(update={"tables": tables})
    settings = settings.model_copy(update={"source": (wanted,)})
    with connect(database) as connection:
        facts = setup.read_source_facts(connection, settings)
    with pytest.raises(NotPreparedError) as caught:
        setup.check_source(facts, settings)
    found = sorted(line.partition(":")[0] for line in str(caught.value).splitlines())
    wrong = ("by_index", "keyless", "leaf", "quick", "seen")

    assert [f"public.{name}" for name in wrong] == found
