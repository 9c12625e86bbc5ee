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


class FailingPlace(InboxPlace):
    """A database whose next transactions cannot begin, as many as are set."""

    failures = 0

    @contextmanager
    def begin(self):
        """Begin a transaction, unless it is to fail."""
        if self.failures:
            self.failures -= 1
            message = "the connection is lost"
            raise psycopg.OperationalError(message)
        with super().begin() as session:
            yield session

    def requested(self):
        """Return how many parked events are requested."""
        statement = (
            "select count(*) from towpath.inbox_parked where requested_at > '-infinity'"
        )
        return self.connection.execute(statement).fetchone()[0]

    def waits_for_lock(self):
        """Return whether a session of the database waits for an advisory lock."""
        statement = (
            "select count(*) > 0 from pg_locks l"
            " join pg_database d on d.oid = l.database"
            " where locktype = 'advisory' and not granted"
            " and d.datname = current_database()"
        )
        return self.connection.execute(statement).fetchone()[0]


@pytest.fixture
def place(stack, database, unique):
    """Provide a consumer's database and topic."""
    stack.up("postgres", "kafka")
    made = FailingPlace(database, stack.kafka, unique)
    yield made
    made.close()


def test_one_lost_connection_parks_nothing(place):
    """
    The database answers again before the event could be parked: it is applied.
    """
    with place.running(attempts=1):
        place.send("a", 1)
        place.wait_counts(1)
        place.failures = 1
        place.send("a", 2)
        place.wait_counts(1, 2)

    assert (0, []) == (place.failures, place.parked())


def test_a_session_that_the_server_ends_is_no_failed_attempt(place):
    """
    A server that is restarted ends the transactions of the handlers that run.
    """
    ended = threading.Event()

    def handle(event, session):
        if not ended.is_set():
            ended.set()
            session.execute("select pg_terminate_backend(pg_backend_pid())")
        place.handle(event, session)

    with place.running(attempts=1, handle=handle):
        place.send("a", 1)
        until(lambda: place.counts() or place.parked(), "the event is handled")

    assert ([1], []) == (place.counts(), place.parked())


def test_an_event_whose_session_is_ended_at_each_attempt_is_parked(place):
    """
    A watchdog ends sessions that run for too long; the server itself goes on.
    """

    def handle(event, session):
        place.calls.append(event.key)
        if event.key == "a":
            session.execute("select pg_terminate_backend(pg_backend_pid())")
        place.handle(event, session)

    with place.running(attempts=2, handle=handle):
        place.send("a", 1)
        until(place.parked, "the event is parked")
        place.send("b", 2)
        place.wait_counts(2, key="b")

    assert 3 == place.calls.count("a")


def test_a_reason_with_half_a_character_is_stored(place):
    """
    A text that was cut may end within a surrogate pair.
    """
    reason = "bad title \ud83d"
    with place.begin() as session:
        drive(session, place.inbox.park(FIRST, reason))
        found = place.inbox.parked(session)

    assert [("1", "bad title \\ud83d")] == [(one.event.id, one.reason) for one in found]


def test_a_pipeline_that_has_no_rows_yet_is_refused(place):
    """
    Otherwise an event would count as handled before, and its id would be stored.
    """
    connection = psycopg.connect(place.dsn)
    with connection, connection.pipeline(), pytest.raises(SessionTypeError):
        drive(connection, place.inbox.admit(FIRST))


def test_pauses_grow_while_the_database_is_down(place):
    """
    A failed part is no failed attempt, so the event is not parked.
    """
    with structlog.testing.capture_logs() as logs, place.running(attempts=1):
        place.send("a", 1)
        place.wait_counts(1)
        place.failures = 1_000_000
        place.send("a", 2)
        until(lambda: len(retried(logs)) == 4, "the event was tried four times")
        place.failures = 0
        place.wait_counts(1, 2)
    first, *_, last = [each["delay_s"] for each in retried(logs)]

    assert last > 2 * first
    assert {0} == {each["attempts"] for each in retried(logs)}
    assert [] == place.parked()


def retried(logs):
    """Return the log records of attempts that failed."""
    return [each for each in logs if each["event"] == "event retried later"]


def test_the_offset_of_a_failed_event_is_not_committed(place):
    """
    A consumer that stops between two attempts leaves the event to the next one.
    """
    place.refused = {1}
    place.send("a", 1)
    with place.running(attempts=1_000):
        until(lambda: place.calls, "the event failed")
    assert 0 == place.committed()
    place.refused.clear()
    with place.running(attempts=1_000):
        place.wait_counts(1)

    assert 1 == place.committed()


def test_a_replay_that_fails_is_tried_once(place):
    """
    The event and its followers are no longer requested; a new request tries again.
    """
    place.refused = {1}
    place.send("a", 1, 2)
    with place.running(attempts=1):
        until(lambda: len(place.parked()) == 2, "the events are parked")
        with place.begin() as session:
            place.inbox.request_replay(session)
        until(lambda: len(place.calls) == 2, "the replay failed")
        until(lambda: place.requested() == 0, "no event is requested")
        place.send("b", 10)
        place.wait_counts(10)

    assert [1, 1, 10] == place.calls
    assert 2 == len(place.parked())


def test_a_replay_whose_service_is_down_delays_no_other(place):
    """
    It is requested until its service answers, while other keys are replayed.
    """
    down, calls = threading.Event(), []
    down.set()

    def handle(event, session):
        calls.append(event.key)
        if event.key == "a" and down.is_set():
            message = "the service is down"
            raise UnavailableError(message)
        place.handle(event, session)

    content = {"value": b'{"count": 1}', "topic": place.topic}
    with place.begin() as session:
        for number, key in enumerate("ab"):
            event = dataclasses.replace(FIRST, id=str(number), key=key, **content)
            drive(session, place.inbox.park(event, "refused"))
        place.inbox.request_replay(session)
    with place.running(handle=handle):
        place.wait_counts(1, key="b")
        assert ("a", []) == (calls[0], place.counts("a"))
        down.clear()
        place.wait_counts(1, key="a")

    assert [] == place.parked()


def test_a_replay_that_is_postponed_waits_and_is_due_at_once_if_requested_again(place):
    """
    Meanwhile the others come in the order of their requests, and then none.
    """
    events = [dataclasses.replace(FIRST, id=one, key=one) for one in "abc"]
    with place.begin() as session:
        for event in events:
            drive(session, place.inbox.park(event, "refused"))
        place.inbox.request_replay(session, "c")
    with place.begin() as session:
        for event in events[:2]:
            place.inbox.request_replay(session, event.id)
        drive(session, place.inbox.postpone(events[0]))
        found = [drive(session, place.inbox.admit_requested()) for _ in range(3)]
        place.inbox.request_replay(session)
        again = drive(session, place.inbox.admit_requested())

    assert ["c", "b"] == [one.event.id for one in found if one]
    assert ("a", [True, True, False]) == (again.event.id, [*map(bool, found)])


def test_two_processes_replay_an_event_once(place):
    """
    The second one waits for the first one's transaction, and then finds nothing.
    """
    with place.begin() as session:
        drive(session, place.inbox.park(FIRST, "refused"))
        place.inbox.request_replay(session)
    found = []

    def replay():
        with place.begin() as session:
            found.append(drive(session, place.inbox.admit_requested()))

    second = threading.Thread(target=replay)
    with place.begin() as session:
        first = drive(session, place.inbox.admit_requested())
        second.start()
        until(place.waits_for_lock, "the second process waits")
    second.join(30)

    assert ("1", [None]) == (first.event.id, [each.event for each in found])


def test_a_parked_event_of_a_topic_made_again_is_kept(place):
    """
    It may have the place of an event that was parked before the topic was deleted.
    """
    again = dataclasses.replace(FIRST, id="2")
    with place.begin() as session:
        for one in (FIRST, again):
            assert drive(session, place.inbox.park(one, "unreadable"))
        drive(session, place.inbox.fail(again, "refused"))
        found = place.inbox.parked(session)
        assert drive(session, place.inbox.leave(FIRST))
        left = place.inbox.parked(session)

    assert [("1", "unreadable"), ("2", "refused")] == [
        (one.event.id, one.reason) for one in found
    ]
    assert ["2"] == [one.event.id for one in left]


def test_a_table_of_an_earlier_release_is_upgraded(place):
    """
    Its rows had the place of a record for their key; until then no event is lost.
    """
    again = dataclasses.replace(FIRST, id="2")
    place.connection.execute(
        "alter table towpath.inbox_parked drop constraint inbox_parked_pkey,"
        ' add primary key (consumer, topic, partition, "offset")'
    )
    with place.begin() as session:
        assert drive(session, place.inbox.park(FIRST, "unreadable"))
    with pytest.raises(psycopg.errors.UniqueViolation), place.begin() as session:
        drive(session, place.inbox.park(again, "unreadable"))
    for statement in create_statements() * 2:
        place.connection.execute(statement)
    with place.begin() as session:
        assert drive(session, place.inbox.park(again, "unreadable"))
        found = place.inbox.parked(session)

    assert ["1", "2"] == [one.event.id for one in found]


def test_an_id_and_a_key_longer_than_an_index_takes_are_stored(place):
    """
    Each differs from one with the same start, and a replay has both as they were.
    """
    # Without a pattern, because Postgres compresses the entries of its indexes.
    digits = hashlib.shake_256(b"").hexdigest(3_000)
    ids, keys = ([f"{digits}{n}" for n in "12"] for _ in range(2))
    events = [
        dataclasses.replace(FIRST, id=id_, key=key, headers={"id": id_})
        for id_, key in zip(ids, keys, strict=True)
    ]
    with place.begin() as session:
        assert drive(session, place.inbox.park(events[0], "refused"))
        assert not drive(session, place.inbox.park(events[0], "refused"))
        assert drive(session, place.inbox.admit(events[1])) == (events[1],)
        assert drive(session, place.inbox.admit(events[1])) == (None,)
        later = dataclasses.replace(events[0], id="3")
        assert drive(session, place.inbox.admit(later)) is None
        assert 1 == place.inbox.request_replay(session, ids[0])
        replayed = drive(session, place.inbox.admit_requested())
        assert drive(session, place.inbox.admit(later)) == (later,)

    assert (ids[0], keys[0]) == (replayed.event.id, replayed.event.key)


def long_events(count):
    """Return events of one key with the shortest ids that are stored shortened."""
    # Of 2,001 bytes, not all of them ASCII: the start is counted in characters.
    ids = [
        f"\U0001f600é{hashlib.shake_256(b'').hexdigest(997)}{n}" for n in range(count)
    ]
    return [
        dataclasses.replace(FIRST, id=id_, headers={"id": id_}, offset=n)
        for n, id_ in enumerate(ids)
    ]


def store_whole(place, events):
    """Store the ids of events in full, as an earlier state of 0.2.0 did."""
    for table in ("inbox", "inbox_parked"):
        for event in events:
            place.connection.execute(
                f"update towpath.{table} set event_id = %s"  # noqa: S608
                " where event_id = %s",
                [event.id, stored_id(event.id)],
            )


def test_long_ids_of_an_earlier_state_are_found_after_an_upgrade(place):
    """
    Applied events have no second effect; parked ones are replayed and discarded.
    """
    applied, parked, dropped = events = long_events(3)
    events.append(dataclasses.replace(applied, id=applied.id[:-1]))
    with place.begin() as session:
        for each in (applied, events[-1]):
            assert drive(session, place.inbox.take(each))
        for each in (parked, dropped):
            assert drive(session, place.inbox.park(each, "refused"))
    store_whole(place, events)
    for statement in create_statements() * 2:
        place.connection.execute(statement)
    with place.begin() as session:
        assert [False] * 4 == [drive(session, place.inbox.take(one)) for one in events]
        assert place.inbox.discard(session, dropped.id)
        assert 1 == place.inbox.request_replay(session, parked.id)
        replayed = drive(session, place.inbox.admit_requested())
        assert drive(session, place.inbox.admit_requested()) is None

    assert parked.id == replayed.event.id


def test_a_long_id_that_was_stored_in_both_forms_is_kept_once(place):
    """
    A consumer ran before the upgrade; the earlier row keeps its place in its key.
    """
    applied, parked = events = long_events(2)
    later = [dataclasses.replace(one, offset=9) for one in events]
    between = dataclasses.replace(FIRST, id="between")
    with place.begin() as session:
        assert drive(session, place.inbox.take(applied))
        assert drive(session, place.inbox.park(parked, "refused"))
    store_whole(place, events)
    with place.begin() as session:
        assert drive(session, place.inbox.take(later[0]))
        for each in (between, later[1]):
            assert drive(session, place.inbox.park(each, "refused"))
    for statement in create_statements():
        place.connection.execute(statement)
    with place.begin() as session:
        found = place.inbox.parked(session)
        below = {(FIRST.topic, FIRST.partition): 9}
        # Only the id of the event between goes, once it is no longer parked.
        assert place.inbox.discard(session, between.id)
        assert 1 == place.inbox.prune(session, below)
        assert not drive(session, place.inbox.take(applied))

    assert [parked.id, between.id] == [one.event.id for one in found]


def test_a_long_id_in_two_partitions_is_never_pruned(place):
    """
    Its event has moved: what is left of one partition says nothing of the other.
    """
    [event] = long_events(1)
    moved = dataclasses.replace(event, partition=FIRST.partition + 1, offset=9)
    with place.begin() as session:
        assert drive(session, place.inbox.take(event))
    store_whole(place, [event])
    with place.begin() as session:
        assert drive(session, place.inbox.take(moved))
    for statement in create_statements():
        place.connection.execute(statement)
    below = {(FIRST.topic, at.partition): 99 for at in (event, moved)}
    with place.begin() as session:
        assert 0 == place.inbox.prune(session, below)
        assert not drive(session, place.inbox.take(event))


def test_a_long_event_that_was_applied_before_the_upgrade_is_not_parked_after_it(place):
    """
    Without a key, nothing holds the event back that the earlier state has parked.
    """
    [event] = long_events(1)
    keyless = dataclasses.replace(event, key=None)
    with place.begin() as session:
        assert drive(session, place.inbox.park(keyless, "refused"))
    store_whole(place, [keyless])
    with place.begin() as session:
        assert drive(session, place.inbox.take(keyless))
    for statement in create_statements():
        place.connection.execute(statement)
    with place.begin() as session:
        assert [] == list(place.inbox.parked(session))
        assert not drive(session, place.inbox.take(keyless))


@pytest.mark.parametrize(
    "connect",
    [
        lambda dsn: psycopg.connect(dsn, row_factory=dict_row),
        lambda dsn: psycopg2.connect(dsn, cursor_factory=RealDictCursor),
    ],
    ids=["psycopg", "psycopg2"],
)
def test_sessions_whose_rows_are_mappings_hold_the_inbox(place, connect):
    """
    Events are listed, counted and replayed as with rows that are tuples.
    """
    with connect(place.dsn) as session:
        assert drive(session, place.inbox.park(FIRST, "refused"))
        place.inbox.request_replay(session)
        (found,) = place.inbox.parked(session)
        count = drive(session, place.inbox.count_parked())
        admitted = drive(session, place.inbox.admit_requested())
        assert drive(session, place.inbox.admit_requested()) is None

    assert ("1", "a", b"{}", "refused", True, 1) == (
        *(found.event.id, found.event.key, found.event.value),
        *(found.reason, found.is_requested, count),
    )
    assert "1" == admitted.event.id


def test_an_asynchronous_session_whose_rows_are_mappings_replays(place):
    """
    Its rows are read as those of a synchronous one.
    """
    with place.begin() as session:
        drive(session, place.inbox.park(FIRST, "refused"))
        place.inbox.request_replay(session)

    async def replay():
        async with await psycopg.AsyncConnection.connect(
            place.dsn, row_factory=dict_row
        ) as session:
            return await drive_async(session, place.inbox.admit_requested())

    assert "1" == asyncio.run(replay()).event.id
