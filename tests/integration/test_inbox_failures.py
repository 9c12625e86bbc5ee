"""Failures of consumers with an inbox: no event is skipped, repeated or lost."""

import asyncio
import dataclasses
import hashlib
import threading
from contextlib import contextmanager

import psycopg
import psycopg2
import pytest
import structlog
from psycopg.rows import dict_row
from psycopg2.extras import RealDictCursor

from support.inbox_place import InboxPlace
from support.waiting import until
from towpath.inbox import Event, create_statements
from towpath.inbox.event import stored_id
from towpath.schemas.failure import UnavailableError
from towpath.schemas.transactions import SessionTypeError, drive, drive_async

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

FIRST = Event(
    id="1",
    type="PostViewed",
    aggregate_type="post",
    key="a",
    value=b"{}",
    headers={},
    topic="t",
    partition=0,
    offset=0,
)


class FailingRig(InboxPlace):
    """A consumer whose next ``failures`` transactions cannot begin."""

    failures = 0

    @contextmanager
    def begin(self):
        """Begin a transaction, or fail."""
        if self.failures:
            self.failures -= 1
            message = "the connection is lost"
            raise psycopg.OperationalError(message)
        with super().begin() as session:
            yield session

    def requested(self):
        """Return the number of parked events whose replay is requested."""
        statement = (
            "select count(*) from towpath.inbox_parked where requested_at > '-infinity'"
        )
        return self.connection.execute(statement).fetchone()[0]

    def waits_for_lock(self):
        """Return whether a session waits for an advisory lock."""
        statement = (
            "select count(*) > 0 from pg_locks l"
            " join pg_database d on d.oid = l.database"
            " where locktype = 'advisory' and not granted"
            " and d.datname = current_database()"
        )
        return self.connection.execute(statement).fetchone()[0]


@pytest.fixture
def rig(stack, database, unique):
    """Provide a consumer, its database and its topic."""
    stack.up("postgres", "kafka")
    made = FailingRig(database, stack.kafka, unique)
    yield made
    made.close()


def test_one_lost_connection_parks_no_event(rig):
    """
    A lost connection does not count as an attempt: the event is retried and applied.
    """
    with rig.running(attempts=1):
        rig.send("a", 1)
        rig.wait_counts(1)
        rig.failures = 1
        rig.send("a", 2)
        rig.wait_counts(1, 2)

    assert (0, []) == (rig.failures, rig.parked())


def test_a_session_that_the_server_ends_does_not_count_as_an_attempt(rig):
    """
    A restart of the server ends the transactions of running handlers.
    """
    ended = threading.Event()

    def handle(event, session):
        if not ended.is_set():
            ended.set()
            session.execute("select pg_terminate_backend(pg_backend_pid())")
        rig.handle(event, session)

    with rig.running(attempts=1, handle=handle):
        rig.send("a", 1)
        until(lambda: rig.counts() or rig.parked(), "the event is handled")

    assert ([1], []) == (rig.counts(), rig.parked())


def test_an_event_whose_session_ends_at_each_attempt_is_parked(rig):
    """
    A watchdog may end sessions that run for too long, while the server stays up.
    """

    def handle(event, session):
        rig.calls.append(event.key)
        if event.key == "a":
            session.execute("select pg_terminate_backend(pg_backend_pid())")
        rig.handle(event, session)

    with rig.running(attempts=2, handle=handle):
        rig.send("a", 1)
        until(rig.parked, "the event is parked")
        rig.send("b", 2)
        rig.wait_counts(2, key="b")

    assert 3 == rig.calls.count("a")


def test_a_reason_with_a_lone_surrogate_is_stored(rig):
    """
    A truncated string may end in the middle of a surrogate pair.
    """
    reason = "bad title \ud83d"
    with rig.begin() as session:
        drive(session, rig.inbox.park(FIRST, reason))
        found = rig.inbox.parked(session)

    assert [("1", "bad title \\ud83d")] == [(one.event.id, one.reason) for one in found]


def test_a_session_in_pipeline_mode_is_refused(rig):
    """
    Its results are not available yet, so a new event would count as a duplicate.
    """
    connection = psycopg.connect(rig.dsn)
    with connection, connection.pipeline(), pytest.raises(SessionTypeError):
        drive(connection, rig.inbox.admit(FIRST))


def test_pauses_grow_while_the_database_is_down(rig):
    """
    Failures of the database do not count as attempts, so the event is not parked.
    """
    with structlog.testing.capture_logs() as logs, rig.running(attempts=1):
        rig.send("a", 1)
        rig.wait_counts(1)
        rig.failures = 1_000_000
        rig.send("a", 2)
        until(lambda: len(retried(logs)) == 4, "the event has been tried four times")
        rig.failures = 0
        rig.wait_counts(1, 2)
    first, *_, last = [each["delay_s"] for each in retried(logs)]

    assert last > 2 * first
    assert {0} == {each["attempts"] for each in retried(logs)}
    assert [] == rig.parked()


def retried(logs):
    """Return the log records of failed attempts."""
    return [each for each in logs if each["event"] == "event retried later"]


def test_the_offset_of_a_failed_event_is_not_committed(rig):
    """
    If a consumer stops between two attempts, the next consumer handles the event.
    """
    rig.refused = {1}
    rig.send("a", 1)
    with rig.running(attempts=1_000):
        until(lambda: rig.calls, "the event failed")
    assert 0 == rig.committed()
    rig.refused.clear()
    with rig.running(attempts=1_000):
        rig.wait_counts(1)

    assert 1 == rig.committed()


def test_a_replay_that_fails_is_tried_once(rig):
    """
    After the failure, no replay of the event or of its followers is pending.
    """
    rig.refused = {1}
    rig.send("a", 1, 2)
    with rig.running(attempts=1):
        until(lambda: len(rig.parked()) == 2, "the events are parked")
        with rig.begin() as session:
            rig.inbox.request_replay(session)
        until(lambda: len(rig.calls) == 2, "the replay failed")
        until(lambda: rig.requested() == 0, "no event is requested")
        rig.send("b", 10)
        rig.wait_counts(10)

    assert [1, 1, 10] == rig.calls
    assert 2 == len(rig.parked())


def test_a_replay_whose_service_is_down_does_not_delay_other_keys(rig):
    """
    Other keys are replayed while the event waits for its service.
    """
    down, calls = threading.Event(), []
    down.set()

    def handle(event, session):
        calls.append(event.key)
        if event.key == "a" and down.is_set():
            message = "the service is down"
            raise UnavailableError(message)
        rig.handle(event, session)

    content = {"value": b'{"count": 1}', "topic": rig.topic}
    with rig.begin() as session:
        for number, key in enumerate("ab"):
            event = dataclasses.replace(FIRST, id=str(number), key=key, **content)
            drive(session, rig.inbox.park(event, "refused"))
        rig.inbox.request_replay(session)
    with rig.running(handle=handle):
        rig.wait_counts(1, key="b")
        assert ("a", []) == (calls[0], rig.counts("a"))
        down.clear()
        rig.wait_counts(1, key="a")

    assert [] == rig.parked()


def test_a_postponed_replay_waits_until_it_is_requested_again(rig):
    """
    In the meantime, other events are replayed in the order of their requests.
    """
    events = [dataclasses.replace(FIRST, id=one, key=one) for one in "abc"]
    with rig.begin() as session:
        for event in events:
            drive(session, rig.inbox.park(event, "refused"))
        rig.inbox.request_replay(session, "c")
    with rig.begin() as session:
        for event in events[:2]:
            rig.inbox.request_replay(session, event.id)
        drive(session, rig.inbox.postpone(events[0]))
        found = [drive(session, rig.inbox.admit_requested()) for _ in range(3)]
        rig.inbox.request_replay(session)
        again = drive(session, rig.inbox.admit_requested())

    assert ["c", "b"] == [one.event.id for one in found if one]
    assert ("a", [True, True, False]) == (again.event.id, [*map(bool, found)])


def test_two_processes_replay_an_event_once(rig):
    """
    The second process waits for the first one's transaction, and then finds no event.
    """
    with rig.begin() as session:
        drive(session, rig.inbox.park(FIRST, "refused"))
        rig.inbox.request_replay(session)
    found = []

    def replay():
        with rig.begin() as session:
            found.append(drive(session, rig.inbox.admit_requested()))

    second = threading.Thread(target=replay)
    with rig.begin() as session:
        first = drive(session, rig.inbox.admit_requested())
        second.start()
        until(rig.waits_for_lock, "the second process waits")
    second.join(30)

    assert ("1", [None]) == (first.event.id, [each.event for each in found])


def test_parked_events_with_the_same_offset_are_kept_apart(rig):
    """
    A recreated topic may have an event at the offset of one that is already parked.
    """
    again = dataclasses.replace(FIRST, id="2")
    with rig.begin() as session:
        for one in (FIRST, again):
            assert drive(session, rig.inbox.park(one, "unreadable"))
        drive(session, rig.inbox.fail(again, "refused"))
        found = rig.inbox.parked(session)
        assert drive(session, rig.inbox.leave(FIRST))
        left = rig.inbox.parked(session)

    assert [("1", "unreadable"), ("2", "refused")] == [
        (one.event.id, one.reason) for one in found
    ]
    assert ["2"] == [one.event.id for one in left]


def test_a_table_of_an_earlier_release_is_upgraded(rig):
    """
    Before the upgrade, two parked events with one offset conflict; neither is lost.
    """
    again = dataclasses.replace(FIRST, id="2")
    rig.connection.execute(
        "alter table towpath.inbox_parked drop constraint inbox_parked_pkey,"
        ' add primary key (consumer, topic, partition, "offset")'
    )
    with rig.begin() as session:
        assert drive(session, rig.inbox.park(FIRST, "unreadable"))
    with pytest.raises(psycopg.errors.UniqueViolation), rig.begin() as session:
        drive(session, rig.inbox.park(again, "unreadable"))
    for statement in create_statements() * 2:
        rig.connection.execute(statement)
    with rig.begin() as session:
        assert drive(session, rig.inbox.park(again, "unreadable"))
        found = rig.inbox.parked(session)

    assert ["1", "2"] == [one.event.id for one in found]


def test_an_id_and_a_key_longer_than_an_index_allows_are_stored(rig):
    """
    Ids and keys with the same start remain distinct, and a replay restores them.
    """
    # The digits have no pattern, because Postgres compresses index entries.
    digits = hashlib.shake_256(b"").hexdigest(3_000)
    ids, keys = ([f"{digits}{n}" for n in "12"] for _ in range(2))
    events = [
        dataclasses.replace(FIRST, id=id_, key=key, headers={"id": id_})
        for id_, key in zip(ids, keys, strict=True)
    ]
    with rig.begin() as session:
        assert drive(session, rig.inbox.park(events[0], "refused"))
        assert not drive(session, rig.inbox.park(events[0], "refused"))
        assert drive(session, rig.inbox.admit(events[1])) == (events[1],)
        assert drive(session, rig.inbox.admit(events[1])) == (None,)
        later = dataclasses.replace(events[0], id="3")
        assert drive(session, rig.inbox.admit(later)) is None
        assert 1 == rig.inbox.request_replay(session, ids[0])
        replayed = drive(session, rig.inbox.admit_requested())
        assert drive(session, rig.inbox.admit(later)) == (later,)

    assert (ids[0], keys[0]) == (replayed.event.id, replayed.event.key)


def long_events(count):
    """
    Return events of one key with ids just long enough to be shortened in the tables.
    """
    # 2,001 bytes, not all of them ASCII: the stored start is counted in characters.
    ids = [
        f"\U0001f600é{hashlib.shake_256(b'').hexdigest(997)}{n}" for n in range(count)
    ]
    return [
        dataclasses.replace(FIRST, id=id_, headers={"id": id_}, offset=n)
        for n, id_ in enumerate(ids)
    ]


def store_full_ids(rig, events):
    """Store the ids of events in full, as an earlier version did."""
    for table in ("inbox", "inbox_parked"):
        for event in events:
            rig.connection.execute(
                f"update towpath.{table} set event_id = %s"  # noqa: S608
                " where event_id = %s",
                [event.id, stored_id(event.id)],
            )


def test_long_ids_of_an_earlier_version_are_found_after_an_upgrade(rig):
    """
    Applied events have no second effect; parked events can be replayed or discarded.
    """
    applied, parked, dropped = events = long_events(3)
    events.append(dataclasses.replace(applied, id=applied.id[:-1]))
    with rig.begin() as session:
        for each in (applied, events[-1]):
            assert drive(session, rig.inbox.take(each))
        for each in (parked, dropped):
            assert drive(session, rig.inbox.park(each, "refused"))
    store_full_ids(rig, events)
    for statement in create_statements() * 2:
        rig.connection.execute(statement)
    with rig.begin() as session:
        assert [False] * 4 == [drive(session, rig.inbox.take(one)) for one in events]
        assert rig.inbox.discard(session, dropped.id)
        assert 1 == rig.inbox.request_replay(session, parked.id)
        replayed = drive(session, rig.inbox.admit_requested())
        assert drive(session, rig.inbox.admit_requested()) is None

    assert parked.id == replayed.event.id


def test_a_long_id_that_was_stored_in_both_forms_is_kept_once(rig):
    """
    If a consumer ran before the upgrade, the earlier row keeps its place in the order.
    """
    applied, parked = events = long_events(2)
    later = [dataclasses.replace(one, offset=9) for one in events]
    between = dataclasses.replace(FIRST, id="between")
    with rig.begin() as session:
        assert drive(session, rig.inbox.take(applied))
        assert drive(session, rig.inbox.park(parked, "refused"))
    store_full_ids(rig, events)
    with rig.begin() as session:
        assert drive(session, rig.inbox.take(later[0]))
        for each in (between, later[1]):
            assert drive(session, rig.inbox.park(each, "refused"))
    for statement in create_statements():
        rig.connection.execute(statement)
    with rig.begin() as session:
        found = rig.inbox.parked(session)
        below = {(FIRST.topic, FIRST.partition): 9}
        # Only the id of the event in between is pruned, once it is no longer parked.
        assert rig.inbox.discard(session, between.id)
        assert 1 == rig.inbox.prune(session, below)
        assert not drive(session, rig.inbox.take(applied))

    assert [parked.id, between.id] == [one.event.id for one in found]


def test_a_long_id_in_two_partitions_is_never_pruned(rig):
    """
    The event moved, so the start of one partition does not show that it expired.
    """
    [event] = long_events(1)
    moved = dataclasses.replace(event, partition=FIRST.partition + 1, offset=9)
    with rig.begin() as session:
        assert drive(session, rig.inbox.take(event))
    store_full_ids(rig, [event])
    with rig.begin() as session:
        assert drive(session, rig.inbox.take(moved))
    for statement in create_statements():
        rig.connection.execute(statement)
    below = {(FIRST.topic, at.partition): 99 for at in (event, moved)}
    with rig.begin() as session:
        assert 0 == rig.inbox.prune(session, below)
        assert not drive(session, rig.inbox.take(event))


def test_a_long_id_applied_before_the_upgrade_is_not_parked_afterwards(rig):
    """
    An event without a key can be applied although an earlier version has parked it.
    """
    [event] = long_events(1)
    keyless = dataclasses.replace(event, key=None)
    with rig.begin() as session:
        assert drive(session, rig.inbox.park(keyless, "refused"))
    store_full_ids(rig, [keyless])
    with rig.begin() as session:
        assert drive(session, rig.inbox.take(keyless))
    for statement in create_statements():
        rig.connection.execute(statement)
    with rig.begin() as session:
        assert [] == list(rig.inbox.parked(session))
        assert not drive(session, rig.inbox.take(keyless))


@pytest.mark.parametrize(
    "connect",
    [
        lambda dsn: psycopg.connect(dsn, row_factory=dict_row),
        lambda dsn: psycopg2.connect(dsn, cursor_factory=RealDictCursor),
    ],
    ids=["psycopg", "psycopg2"],
)
def test_the_inbox_works_with_sessions_whose_rows_are_mappings(rig, connect):
    """
    Events are listed, counted and replayed as with tuple rows.
    """
    with connect(rig.dsn) as session:
        assert drive(session, rig.inbox.park(FIRST, "refused"))
        rig.inbox.request_replay(session)
        (found,) = rig.inbox.parked(session)
        count = drive(session, rig.inbox.count_parked())
        admitted = drive(session, rig.inbox.admit_requested())
        assert drive(session, rig.inbox.admit_requested()) is None

    assert ("1", "a", b"{}", "refused", True, 1) == (
        *(found.event.id, found.event.key, found.event.value),
        *(found.reason, found.is_requested, count),
    )
    assert "1" == admitted.event.id


def test_the_inbox_replays_with_an_async_session_whose_rows_are_mappings(rig):
    """
    The rows are read in the same way as those of a synchronous session.
    """
    with rig.begin() as session:
        drive(session, rig.inbox.park(FIRST, "refused"))
        rig.inbox.request_replay(session)

    async def replay():
        async with await psycopg.AsyncConnection.connect(
            rig.dsn, row_factory=dict_row
        ) as session:
            return await drive_async(session, rig.inbox.admit_requested())

    assert "1" == asyncio.run(replay()).event.id
