"""The inbox with real Kafka and Postgres: each effect once, in order per key."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import asyncpg
import psycopg
import psycopg2
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from support.inbox_place import InboxPlace, event
from support.waiting import until
from towpath.inbox import AsyncConsumer, Inbox
from towpath.inbox.inbox import BEHIND
from towpath.schemas.transactions import drive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def place(stack, database, unique):
    """Provide a consumer's database and topic."""
    stack.up("postgres", "kafka")
    made = InboxPlace(database, stack.kafka, unique)
    yield made
    made.close()


def test_an_event_is_applied_once(place):
    """
    A duplicate and a second reading from the start change nothing.
    """
    first, _ = place.send("a", 1, 2)
    place.send("a", 9, event_id=first)
    with place.running():
        place.send("a", 3)
        place.wait_counts(1, 2, 3)
    assert 4 == place.committed()
    place.rewind()
    with place.running():
        place.send("a", 4)
        place.wait_counts(1, 2, 3, 4)

    assert [1, 2, 3, 4] == place.calls


def test_a_failed_effect_leaves_no_id(place):
    """
    The event is tried again until it succeeds; its effect stands once, in order.
    """
    place.refused = {1}
    place.send("a", 1, 2)
    with place.running(attempts=100):
        until(lambda: len(place.calls) >= 3, "the event is tried again")
        assert {1} == set(place.calls)
        place.refused.clear()
        place.wait_counts(1, 2)

    assert [] == place.parked()


def test_other_partitions_go_on_while_an_event_is_retried(place):
    """
    Only the partition of the failed event waits.
    """
    place.refused = {1}
    place.send("a", 1, 2, partition=0)
    with place.running(attempts=1_000):
        until(lambda: place.calls, "the event failed")
        place.send("b", 10, 11, partition=1)
        place.wait_counts(10, 11)
        place.refused.clear()
        place.wait_counts(1, 2, key="a")


def test_an_unreadable_event_is_parked_with_its_followers(place):
    """
    Other keys go on, also in a new process; a replay applies all of them in order.
    """
    place.refused = {2}
    place.send("a", 1, 2, 3, partition=0)
    place.send("b", 10, partition=0)
    with place.running(attempts=2):
        place.wait_counts(1, 10)
    place.send("a", 4, partition=0)
    place.send("b", 11, partition=0)
    with place.running(attempts=2):
        place.wait_counts(1, 10, 11)
        parked = [(2, "ValueError: count 2 is refused"), (3, BEHIND), (4, BEHIND)]
        assert parked == place.parked()
        place.refused.clear()
        with place.begin() as session:
            assert 3 == place.inbox.request_replay(session)
        place.wait_counts(1, 2, 3, 4, key="a")
        place.send("a", 5, partition=0)
        place.wait_counts(1, 2, 3, 4, 5, key="a")

    assert [] == place.parked()


def test_a_replay_that_fails_stays_parked(place):
    """
    The reason is the new one, and no follower overtakes.
    """
    place.refused = {1}
    (first, _) = place.send("a", 1, 2)
    with place.running(attempts=1):
        until(lambda: len(place.parked()) == 2, "the events are parked")
        place.connection.execute("update towpath.inbox_parked set reason = 'x'")
        with place.begin() as session:
            assert 2 == place.inbox.request_replay(session, first)
        until(lambda: place.parked()[0][1] != "x", "the replay failed")
        parked = [(1, "ValueError: count 1 is refused"), (2, "x")]
        assert (parked, []) == (place.parked(), place.counts())
        with place.begin() as session:
            assert place.inbox.discard(session, first)
            assert not place.inbox.discard(session, first)
            place.inbox.request_replay(session)
        place.wait_counts(2)


def test_a_follower_joins_a_replay_that_is_requested(place):
    """
    Otherwise it would stay parked after all before it have left.
    """
    with place.begin() as session:
        drive(session, place.inbox.park(event(id="1"), "unreadable"))
        place.inbox.request_replay(session)
    with place.begin() as session:
        assert drive(session, place.inbox.park_behind(event(id="2", offset=1)))
        assert not drive(session, place.inbox.park_behind(event(id="3", key="b")))
        found = place.inbox.parked(session)

    assert [("1", True), ("2", True)] == [
        (one.event.id, one.is_requested) for one in found
    ]


def test_a_database_that_fails_parks_nothing(place):
    """
    It is not the event's fault: the attempts do not count.
    """
    place.down = True
    place.send("a", 1)
    with place.running(attempts=1):
        until(lambda: place.begun >= 3, "some attempts have failed")
        place.down = False
        place.wait_counts(1)

    assert [] == place.parked()


def test_records_without_text_are_parked_as_they_are(place):
    """
    Keys, headers and values that are no UTF-8, NULs and tombstones come through.
    """
    odd = event(
        id="\udcff\0", key="k\udcff\0", value=b"\xff\0", headers={"h\0": "\udcff"}
    )
    gone = event(id="2", key=None, value=None, offset=1)
    with place.begin() as session:
        for one in (odd, gone):
            assert drive(session, place.inbox.park(one, "no\0text"))
            assert not drive(session, place.inbox.park(one, "again"))
        assert drive(session, place.inbox.has_parked(odd))
        found = place.inbox.parked(session)

    assert [(b"\xff\0", "k\\xff\\0"), (None, None)] == [
        (one.event.value, one.event.key) for one in found
    ]


def test_ids_are_pruned_below_what_can_be_read_again(place):
    """
    The first offsets of the topic decide; ids of parked events stay.
    """
    place.refused = {2}
    place.send("a", 1, 2, partition=0)
    place.send("b", 10, 11, partition=0)
    with place.running(attempts=1):
        place.wait_counts(1, 10, 11)
    assert 0 == place.consumer().prune()
    cut = TopicPartition(place.topic, 0, 3)
    place.admin.delete_records([cut])[cut].result()
    assert 2 == place.consumer().prune()
    rows = place.connection.execute(
        'select "offset" from towpath.inbox order by 1'
    ).fetchall()

    assert [(1,), (3,)] == rows
    with pytest.raises(psycopg.errors.UndefinedTable), place.begin() as session:
        Inbox("x", schema="other").prune(session, {("t", 0): 1})


def test_an_id_is_kept_while_a_copy_of_its_event_can_be_read(place):
    """
    A copy further on keeps it until that has gone, one of another partition for good.
    """
    first, second = place.send("a", 1, 2, partition=0)
    place.send("a", 1, event_id=first, partition=0)
    place.send("a", 2, event_id=second, partition=1)
    places = 'select partition, "offset" from towpath.inbox order by 1, 2'
    with place.running():
        place.send("a", 3, partition=1)
        until(
            lambda: (
                [(-1, 1), (0, 2), (1, 1)] == place.connection.execute(places).fetchall()
            ),
            "all are applied, and the copies are met",
        )
    cut = TopicPartition(place.topic, 0, 2)
    place.admin.delete_records([cut])[cut].result()
    assert 0 == place.consumer().prune()
    cut.offset = 3
    place.admin.delete_records([cut])[cut].result()
    assert 1 == place.consumer().prune()
    place.rewind()
    with place.running():
        place.send("a", 4, partition=1)
        until(lambda: len(place.counts()) == 4, "the last one is applied")

    assert [1, 2, 3, 4] == sorted(place.counts())


def test_what_a_snapshot_has_read_is_no_event(place):
    """
    Its ids are new ones: applied, it would repeat effects. A consumer may ask for it.
    """
    place.send("a", 1, partition=0)
    place.send("a", 2, partition=0, snapshot="fill-1")
    producer = Producer({"bootstrap.servers": place.kafka})
    barrier = [("towpath-barrier", b"1")]
    producer.produce(place.topic, b"{}", "a", partition=0, headers=barrier)
    producer.flush()
    place.send("a", 4, partition=0)
    with place.running():
        place.wait_counts(1, 4)
    place.rewind()
    with place.running(takes_reads=True):
        place.wait_counts(1, 4, 2)


def test_only_the_wanted_types_are_applied_and_no_id_of_the_others_is_stored(place):
    """
    The others are passed over, and do not hold their key back.
    """
    (wanted,) = place.send("a", 1)
    place.send("a", 2, type="PostDeleted")
    (last,) = place.send("a", 3)
    with place.running(types=["PostViewed"]):
        place.wait_counts(1, 3)
    stored = place.connection.execute("select event_id from towpath.inbox").fetchall()

    assert ([1, 3], []) == (place.calls, place.parked())
    assert {wanted, last} == {row[0] for row in stored}


def test_a_topic_that_was_made_again_has_other_events(place):
    """
    A record without an id is known by its place and time, not by the place alone.
    """
    producer = Producer({"bootstrap.servers": place.kafka})

    def send(count):
        producer.produce(place.topic, json.dumps({"count": count}), "a", partition=0)
        producer.flush()

    send(1)
    with place.running():
        place.wait_counts(1)
        send(2)
        place.wait_counts(1, 2)
    place.admin.delete_topics([place.topic])[place.topic].result()
    until(
        lambda: place.topic not in place.admin.list_topics(timeout=10).topics,
        "the topic has gone",
    )
    place.admin.create_topics([NewTopic(place.topic, 3, 1)])[place.topic].result()
    producer = Producer({"bootstrap.servers": place.kafka})
    send(3)
    place.rewind()
    with place.running():
        place.wait_counts(1, 2, 3)


def test_events_of_added_partitions_follow_a_parked_key(place):
    """
    A key that moves to another partition is still parked there.
    """
    place.refused = {1}
    place.send("a", 1, partition=0)
    with place.running(attempts=1):
        until(lambda: len(place.parked()) == 1, "the event is parked")
        added = [NewPartitions(place.topic, 4)]
        place.admin.create_partitions(added)[place.topic].result()
    place.send("a", 2, partition=3)
    with place.running(attempts=1):
        until(lambda: len(place.parked()) == 2, "the follower is parked")

    assert [(2, BEHIND)] == place.parked()[1:]


def test_two_owners_of_a_partition_apply_an_event_once(place):
    """
    The second one waits for the first one's transaction, and finds the id.
    """
    applied = []

    def second():
        with place.begin() as session, place.inbox.once(session, event()) as is_new:
            applied.append(is_new)

    with psycopg.connect(place.dsn) as session:
        with place.inbox.once(session, event()) as is_new:
            thread = threading.Thread(target=second)
            thread.start()
            waits = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            )
            until(
                lambda: place.connection.execute(waits).fetchone()[0] == 1,
                "the second owner waits",
            )
            assert (True, []) == (is_new, applied)
        session.commit()
    thread.join()

    assert [False] == applied


def test_a_decorated_handler_applies_an_event_once(place):
    """
    It tells whether the event was applied now; its error rolls the id back.
    """

    @place.inbox.handler(place.begin)
    def view(event, session):
        place.handle(event, session)

    place.refused = {1}
    with pytest.raises(ValueError, match="refused"):
        view(event())
    place.refused.clear()

    assert ([True, False], [1]) == ([view(event()), view(event())], place.counts())


def test_sessions_of_other_drivers_hold_the_inbox(place):
    """
    SQLAlchemy and psycopg2, and asynchronous ones; a rollback takes the id.
    """
    url = place.dsn.replace("postgresql:", "postgresql+{}:", 1)

    def in_sqlalchemy():
        engine = create_engine(url.format("psycopg2"))
        with (
            engine.begin() as session,
            place.inbox.once(session, event(id="sa")) as is_new,
        ):
            session.execute(text("select 1"))
        engine.dispose()
        return is_new

    def in_psycopg2():
        connection = psycopg2.connect(place.dsn)
        with connection, place.inbox.once(connection, event(id="p2")) as is_new:
            pass
        connection.close()
        return is_new

    async def in_asyncpg():
        connection = await asyncpg.connect(place.dsn)
        async with (
            connection.transaction(),
            place.inbox.once_async(connection, event(id="pg")) as is_new,
        ):
            pass
        await connection.close()
        return is_new

    async def in_async_sqlalchemy():
        engine = create_async_engine(url.format("asyncpg"))
        async with (
            engine.begin() as session,
            place.inbox.once_async(session, event(id="as")) as is_new,
        ):
            pass
        await engine.dispose()
        return is_new

    found = []
    for _ in range(2):
        found += [in_sqlalchemy(), in_psycopg2()]
        found += [asyncio.run(in_asyncpg()), asyncio.run(in_async_sqlalchemy())]

    assert [True] * 4 + [False] * 4 == found


def test_an_asynchronous_consumer_keeps_the_same_rules(place):  # noqa: PLR0915
    """
    An unreadable event is parked with its followers; a replay applies each once.
    """
    settings = {"bootstrap.servers": place.kafka, "session.timeout.ms": 6000}

    @asynccontextmanager
    async def begin():
        place.begun += 1
        if place.down:
            raise OSError
        async with await psycopg.AsyncConnection.connect(place.dsn) as connection:
            yield connection

    async def handle(event, session):
        count = event.payload["count"]
        await session.execute(
            "insert into effects (event_id, key, count) values (%s, %s, %s)",
            [event.id, event.key, count],
        )
        if count in place.refused:
            message = f"count {count} is refused"
            raise ValueError(message)

    async def work():
        stop = asyncio.Event()
        consumer = AsyncConsumer(
            place.inbox, settings, [place.topic], begin=begin, handle=handle, attempts=2
        )
        task = asyncio.create_task(consumer.run_async(stop))
        await asyncio.to_thread(place.wait_counts, 1, 10)
        parked = place.parked()
        place.refused.clear()
        with place.begin() as session:
            place.inbox.request_replay(session)
        await asyncio.to_thread(place.wait_counts, 1, 2, 3, key="a")
        place.down, before = True, place.begun
        place.send("a", 4)
        await asyncio.to_thread(
            until, lambda: place.begun > before + 2, "some attempts have failed"
        )
        place.down = False
        await asyncio.to_thread(place.wait_counts, 1, 2, 3, 4, key="a")
        stop.set()
        await task
        assert 0 == await consumer.prune_async()
        return parked

    place.refused = {2}
    first, *_ = place.send("a", 1, 2, 3, partition=0)
    place.send("a", 1, event_id=first, partition=0)
    place.send("b", 10, partition=0)

    assert [(2, "ValueError: count 2 is refused"), (3, BEHIND)] == asyncio.run(work())
    assert (5, []) == (place.committed() - 1, place.parked())


def test_a_rebalance_repeats_nothing(place):
    """
    Consumers join and leave while events arrive; each key stays in order.
    """
    for number in range(200):
        place.send(f"k{number % 10}", number)
    with place.running():
        until(lambda: len(place.counts()) >= 20, "some are applied")
        with place.running():
            for number in range(200, 300):
                place.send(f"k{number % 10}", number)
            until(lambda: len(place.counts()) >= 200, "most are applied")
        until(lambda: len(place.counts()) == 300, "all are applied")

    assert [[*range(key, 300, 10)] for key in range(10)] == [
        place.counts(f"k{key}") for key in range(10)
    ]
