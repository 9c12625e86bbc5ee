"""``towpath outbox clean`` with a relay: it deletes only old published events."""

import json
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from support.command import towpath
from support.rig import Rig
from support.slots import drop_slot, slot_in_creation
from support.waiting import CLOCK, stretched, until
from towpath.relay.commands.clean_outbox import CleaningRules, clean_outbox
from towpath.relay.errors import (
    NotPreparedError,
    OutboxUnconfirmedError,
    StateRefusedError,
)
from towpath.relay.postgres.outbox_cleaning import OutboxTable
from towpath.relay.postgres.source_checks import source_problems
from towpath.schemas import source_tables
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.findings import Severity
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

INSERT = (
    "insert into towpath.outbox (id, aggregate_type, aggregate_id, type, occurred_at)"
    " values (%s, 'post', '7', 'Viewed', %s)"
)


SETTINGS = "heartbeat_interval_s = 0.5\n"


class FastClock(SystemClock):
    """A clock that is days ahead."""

    def now(self) -> datetime:
        """Return the present time plus ten days."""
        return super().now() + timedelta(days=10)


class OutboxRig(Rig):
    """An outbox that keeps its rows, its relay, and the command that cleans it."""

    def clean(self, keep_days=7.0, wait_s=None, clock=None, **rules):
        """Clean the outbox, by default as if ten days had passed."""
        wait_s = stretched(20.0) if wait_s is None else wait_s
        chosen = CleaningRules(timedelta(days=keep_days), wait_s, **rules)
        self.reported = []
        return clean_outbox(
            load(self.config, {}),
            chosen,
            lambda *numbers: self.reported.append(numbers),
            clock or FastClock(),
        )

    def insert(self, at=None, connection=None):
        """Insert an event, and return its id."""
        event = uuid.uuid4()
        values = [event, at or CLOCK.now()]
        (connection or self.connection).execute(INSERT, values)
        return str(event)

    def ids(self):
        """Return the ids of the events that are still in the outbox."""
        return {str(one) for (one,) in self.execute("select id from towpath.outbox")}

    def published(self, count):
        """Return the ids of the published events."""
        records = self.read("event.post", at_least=count)
        return {dict(record.headers())["id"].decode() for record in records}

    @contextmanager
    def transaction(self):
        """Provide a connection with an open transaction."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("select pg_current_xact_id()")
            yield connection


@pytest.fixture
def rig(database, stack, unique, tmp_path):
    """Provide a prepared outbox; the relay is not running yet."""
    rig = OutboxRig(database, stack.kafka, unique, tmp_path)
    rig.configure(SETTINGS + rig.outbox)
    rig.init()
    yield rig
    rig.close()


@pytest.fixture
def running(rig):
    """Provide an outbox whose relay is streaming."""
    rig.start()
    until(lambda: rig.logged("relay streaming"), "the relay streams")
    return rig


def test_old_published_events_are_deleted_and_recent_ones_kept(running):
    """
    Events of the last week are kept, older ones deleted; all of them are published.
    """
    old = {running.insert() for _ in range(20)}
    recent = running.insert(CLOCK.now() + timedelta(days=5))
    running.confirm()
    cleaned = running.clean()

    assert (20, 0) == (cleaned.deleted, cleaned.kept_former)
    assert {recent} == running.ids()
    assert {*old, recent} == running.published(21)
    assert 20 == running.reported[-1][2]


def test_no_event_is_deleted_before_it_is_published(rig):
    """
    While the relay is down, the event is kept; once it runs, the same call deletes it.
    """
    rig.start()
    until(lambda: rig.logged("relay streaming"), "the relay streams")
    rig.confirm()
    rig.kill()
    event = rig.insert()
    with pytest.raises(OutboxUnconfirmedError, match=rig.prefix):
        rig.clean(wait_s=1.0)
    assert {event} == rig.ids()
    rig.start()

    assert 1 == rig.clean().deleted
    assert {event} == rig.published(1)


def test_an_event_of_an_open_transaction_is_kept(running):
    """
    An event that is not committed when the rows are read is not deleted.
    """
    first = running.insert()
    with running.transaction() as connection:
        open_event = running.insert(connection=connection)
        assert 1 == running.clean().deleted
        connection.commit()

    assert {open_event} == running.ids()
    assert {first, open_event} == running.published(2)
    assert 1 == running.clean().deleted


def test_other_slots_must_have_confirmed_an_event_too(running):
    """
    Another consumer's slot keeps events until it is dropped; the error names the slot.
    """
    other = f"{running.prefix}_other"
    running.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", other)
    event = running.insert()
    running.confirm()
    with pytest.raises(OutboxUnconfirmedError, match=f"^{other}: "):
        running.clean(wait_s=1.0)
    assert {event} == running.ids()
    drop_slot(running.dsn, other)

    assert 1 == running.clean().deleted


def test_cleaning_waits_for_a_slot_that_is_being_created(running):
    """
    The slot will confirm later, so it does not count as missing.
    """
    other = f"{running.prefix}_other"
    event = running.insert()
    running.confirm()
    with (
        slot_in_creation(running.dsn, other),
        pytest.raises(OutboxUnconfirmedError, match=f"^{other}: "),
    ):
        running.clean(wait_s=1.0)
    drop_slot(running.dsn, other)

    assert {event} == running.ids()


def test_a_recreated_slot_proves_nothing(rig):
    """
    Events that a new slot skips are kept, before the relay starts and after the gap.
    """
    rig.configure(f'on_gap = "plan"\n{SETTINGS}{rig.outbox}')
    rig.start()
    until(lambda: rig.logged("relay streaming"), "the relay streams")
    rig.confirm()
    rig.kill()
    skipped = rig.insert()
    drop_slot(rig.dsn, rig.prefix)
    rig.init()
    with pytest.raises(OutboxUnconfirmedError, match=rig.prefix):
        rig.clean(wait_s=1.0)
    assert {skipped} == rig.ids()
    rig.start()
    until(lambda: len(rig.logged("relay streaming")) > 1, "the relay streams")
    rig.confirm()
    kept = rig.clean()

    assert (0, 1) == (kept.deleted, kept.kept_former)
    assert {skipped} == rig.ids()
    assert 1 == rig.clean(keeps_former=False).deleted


def test_a_registered_relay_without_its_slot_is_reported(running):
    """
    A relay without its slot never confirms anything; the error names it immediately.
    """
    running.execute(
        "insert into towpath.relay (name, number, prefix) values ('gone', 9, 'gone')"
    )
    event = running.insert()
    with pytest.raises(NotPreparedError, match="relay gone has no slot"):
        running.clean()
    assert {event} == running.ids()


def test_events_from_before_the_relay_are_kept(rig):
    """
    Events older than the relay's first start may never have been published.
    """
    event = rig.insert(datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(StateRefusedError, match="there is no state topic"):
        rig.clean()
    rig.start()
    until(lambda: rig.logged("relay streaming"), "the relay streams")
    kept = rig.clean()

    assert (0, 1) == (kept.deleted, kept.kept_former)
    assert {event} == rig.ids()


def test_a_locked_row_is_skipped_and_writers_are_not_blocked(running):
    """
    Cleaning skips rows that a transaction has locked, and does not block inserts.
    """
    locked, other = running.insert(), running.insert()
    running.confirm()
    with running.transaction() as connection:
        connection.execute(
            "select from towpath.outbox where id = %s for update", [locked]
        )
        assert 1 == running.clean().deleted
        running.insert(CLOCK.now() + timedelta(days=9), connection)
        connection.commit()

    assert other not in running.ids()
    assert 1 == running.clean().deleted
    assert 1 == len(running.ids())


def test_a_table_of_many_pages_is_cleaned_in_steps(running):
    """
    Thousands of rows are deleted in bounded steps, and each step is reported.
    """
    running.execute(
        "insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)"
        " select gen_random_uuid(), 'post', n::text, 'Viewed',"
        " json_build_object('text', repeat('x', 500)) from generate_series(1, 4000) n"
    )
    running.confirm()
    cleaned = running.clean()

    assert (4000, set()) == (cleaned.deleted, running.ids())
    assert len(running.reported) > 3
    assert sorted(running.reported) == running.reported


def test_a_missing_table_or_time_column_is_reported(rig):
    """
    A wrong configuration gives one clear error.
    """
    rig.configure(rig.outbox + '\n[relay.outbox.columns]\noccurred_at = ""\n')
    with pytest.raises(UsageError, match="no column occurred_at"):
        rig.clean()
    rig.configure(f'{rig.outbox}\ntable = "blog.events"\n')
    with pytest.raises(NotPreparedError, match=r"there is no table blog\.events"):
        rig.clean(keeps_former=False)


def test_the_command_prints_its_result(running):
    """
    The command exits with code 0 and prints one JSON document.
    """
    running.insert()
    running.confirm()
    args = ("outbox", "clean", "--keep-days", "0", "--json")
    with towpath(running.folder, *args, "--config", str(running.config)) as process:
        output, errors = process.communicate(timeout=60)

    assert 0 == process.returncode, errors.decode()
    assert {
        "table": "towpath.outbox",
        "deleted": 1,
        "kept_former": 0,
        "added": [],
        "dropped": [],
        "waiting": [],
    } == json.loads(output)
    assert set() == running.ids()


# Partitions ------------------------------------------------------------------------

PARTITIONED = """
create schema if not exists towpath;
create table towpath.outbox_20010101 (like towpath.outbox including defaults);
insert into towpath.outbox_20010101 (id, aggregate_type, aggregate_id, type)
    values (gen_random_uuid(), 'post', '7', 'Archived')
"""


class PartitionedOutboxRig(OutboxRig):
    """An outbox with a partition for each day."""

    def create(self):
        """Create the table, two days' partitions, and a table with a similar name."""
        table = source_tables.outbox(is_partitioned=True)
        self.execute(source_tables.schema_statement())
        self.execute(table.create_statement())
        today = CLOCK.now().date()
        for days in range(2):
            for statement in table.partition_statements(today + timedelta(days=days)):
                self.execute(statement)
        self.execute(PARTITIONED)

    def insert_tomorrow(self, connection=None):
        """Insert an event into tomorrow's partition."""
        event = uuid.uuid4()
        (connection or self.connection).execute(
            "insert into towpath.outbox (id, aggregate_type, aggregate_id, type,"
            " inserted_at) values (%s, 'post', '7', 'Viewed', now() + '1 day')",
            [event],
        )
        return str(event)

    def partitions(self):
        """Return the partitions' days, counted from today."""
        found = self.execute(
            "select right(c.relname, 8)::date - (now() at time zone 'utc')::date"
            " from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = 'towpath.outbox'::regclass order by 1"
        )
        return [days for (days,) in found]


@pytest.fixture
def partitioned(database, stack, unique, tmp_path):
    """Provide a partitioned outbox whose relay is streaming."""
    rig = PartitionedOutboxRig(database, stack.kafka, unique, tmp_path)
    rig.create()
    rig.configure(SETTINGS + rig.outbox)
    rig.init()
    rig.start()
    until(lambda: rig.logged("relay streaming"), "the relay streams")
    yield rig
    rig.close()


def test_partitions_are_created_ahead(partitioned):
    """
    The partitions of the next days are created once; existing partitions are kept.
    """
    made = partitioned.clean(clock=SystemClock(), days_ahead=4)
    again = partitioned.clean(clock=SystemClock(), days_ahead=4)

    assert (3, [], []) == (len(made.added), again.added, made.dropped + again.dropped)
    assert [0, 1, 2, 3, 4] == partitioned.partitions()


def test_partitions_that_end_soon_are_a_problem(partitioned):
    """
    The relay and the source checks report it until the next partitions are created.
    """
    settings = load(partitioned.config, {})

    def problems():
        found = source_problems(partitioned.connection, settings)
        return [(each.level, each.what) for each in found]

    before = problems()
    until(lambda: partitioned.logged("source problem"), "the relay reports it")
    partitioned.clean(clock=SystemClock(), days_ahead=2)
    soon = problems()
    partitioned.clean(clock=SystemClock(), days_ahead=9)
    after = problems()
    for name in partitioned.execute(
        "select inhrelid::regclass::text from pg_inherits"
        " where inhparent = 'towpath.outbox'::regclass"
    ):
        partitioned.execute(f"drop table {name[0]}")
    without = problems()
    partitioned.execute("create table towpath.rest partition of towpath.outbox default")

    problem = "towpath.outbox has partitions for less than four days"
    assert [(Severity.WARNING, problem)] == soon
    assert [(Severity.ERROR, problem)] == without
    assert (problem, [], []) == (before[0][1], after, problems())


def test_the_partition_of_a_published_day_is_dropped(partitioned):
    """
    Only the partition of a day that is old enough and published is dropped.

    Today's partition covers a time before the relay's first start, so it is kept.
    """
    today, tomorrow = partitioned.insert(), partitioned.insert_tomorrow()
    cleaned = partitioned.clean(days_ahead=0)

    assert 1 == len(cleaned.dropped) == cleaned.kept_former
    assert [0, 10] == partitioned.partitions()
    assert {today} == partitioned.ids()
    assert {today, tomorrow} == partitioned.published(2)
    assert 1 == partitioned.one("select count(*) from towpath.outbox_20010101")


def test_a_day_with_an_open_writer_waits_and_loses_no_event(partitioned):
    """
    A day that a transaction still writes to is kept; the next run drops it.
    """
    with partitioned.transaction() as connection:
        late = partitioned.insert_tomorrow(connection)
        first = partitioned.clean(wait_s=1.0, days_ahead=0)
        # Other writers are not blocked in the meantime.
        today = partitioned.insert()
        connection.commit()
    second = partitioned.clean(days_ahead=0)

    assert (1, []) == (len(first.waiting), first.dropped)
    assert 1 == len(second.dropped)
    assert {late, today} == partitioned.published(2)
    assert {today} == partitioned.ids()


def test_a_day_whose_detachment_has_not_begun_is_not_marked_to_be_dropped(partitioned):
    """
    A day that an operator detaches later is not dropped.
    """
    partitioned.clean(keep_days=100.0, days_ahead=0)
    partitioned.insert_tomorrow()
    with partitioned.transaction() as connection:
        locked = "lock table only towpath.outbox in share update exclusive mode"
        connection.execute(locked)
        first = partitioned.clean(wait_s=1.0, days_ahead=0)
    [day] = first.waiting
    partitioned.execute(f"alter table towpath.outbox detach partition {day}")
    second = partitioned.clean(days_ahead=0)

    assert ([], []) == (second.dropped, second.waiting)
    assert 1 == partitioned.one(f"select count(*) from {day}")  # noqa: S608


def test_a_day_that_an_operator_detaches_during_a_run_is_kept(partitioned, monkeypatch):
    """
    The operator detaches the day after the run marks it and before the run detaches it.
    """
    partitioned.insert_tomorrow()
    begin, detached = OutboxTable._execute_within, []

    def detach_first(table: OutboxTable, statement: str, wait_s: float) -> bool:
        day = statement.split()[-2]
        partitioned.execute(f"alter table towpath.outbox detach partition {day}")
        detached.append(day)
        return begin(table, statement, wait_s)

    monkeypatch.setattr(OutboxTable, "_execute_within", detach_first)
    first = partitioned.clean(days_ahead=0)
    second = partitioned.clean(days_ahead=0)
    [day] = detached

    assert ([], []) == (first.dropped, second.dropped)
    assert 1 == partitioned.one(f"select count(*) from {day}")  # noqa: S608


@pytest.mark.parametrize("bound", ["maxvalue", "'infinity'"])
def test_a_partition_without_an_upper_bound_covers_the_days_ahead(partitioned, bound):
    """
    No overlapping partition is added, and the unbounded one is never dropped.
    """
    partitioned.execute(
        "create table towpath.rest partition of towpath.outbox"
        f" for values from ((now() at time zone 'utc')::date + 2) to ({bound})"
    )
    cleaned = partitioned.clean(clock=SystemClock(), days_ahead=4)

    assert ([], []) == (cleaned.added, cleaned.dropped)


def test_days_after_a_day_with_an_open_writer_wait_too(partitioned):
    """
    Postgres detaches one partition of a table at a time.
    """
    partitioned.clean(clock=SystemClock(), days_ahead=2)
    with partitioned.transaction() as connection:
        partitioned.insert_tomorrow(connection)
        first = partitioned.clean(wait_s=1.0, days_ahead=0)
        connection.commit()
    second = partitioned.clean(days_ahead=0)

    assert (2, []) == (len(first.waiting), first.dropped)
    assert ([], first.waiting) == (second.waiting, second.dropped)


def test_a_day_that_is_not_published_is_detached_but_kept(partitioned):
    """
    While the relay is down, a detached day is not dropped; the next run drops it.
    """
    partitioned.confirm()
    partitioned.kill()
    event = partitioned.insert_tomorrow()
    with pytest.raises(OutboxUnconfirmedError):
        partitioned.clean(wait_s=1.0, days_ahead=0)
    detached = partitioned.one(
        "select c.oid::regclass::text from pg_class c where relkind = 'r' and"
        " obj_description(oid, 'pg_class') like 'towpath outbox clean%%'"
    )
    assert 1 == partitioned.one(f"select count(*) from {detached}")  # noqa: S608
    partitioned.start()
    done = partitioned.clean(days_ahead=0)

    assert [detached] == done.dropped
    assert {event} == partitioned.published(1)


def test_an_outbox_with_different_partitioning_is_refused(partitioned):
    """
    A table partitioned by a different column is left to its owner.
    """
    partitioned.execute(
        "create table towpath.mine (id uuid, occurred_at timestamptz)"
        " partition by range (occurred_at)"
    )
    partitioned.configure(f'{partitioned.outbox}\ntable = "towpath.mine"\n')
    with pytest.raises(NotPreparedError, match=r"partitioned by RANGE \(occurred_at\)"):
        partitioned.clean()
