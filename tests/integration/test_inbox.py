"""The inbox with real Kafka and Postgres: each effect once, in order for each key."""

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
def rig(stack, database, unique):
    """Provide a consumer, its database and its topic."""
    stack.up("postgres", "kafka")
    made = InboxPlace(database, stack.kafka, unique)
    yield made
    made.close()


def test_an_event_is_applied_once(rig):
    """
    Neither a duplicate nor a second read of the topic changes anything.
    """
    first, _ = rig.send("a", 1, 2)
    rig.send("a", 9, event_id=first)
    with rig.running():
        rig.send("a", 3)
        rig.wait_counts(1, 2, 3)
    assert 4 == rig.committed()
    rig.rewind()
    with rig.running():
        rig.send("a", 4)
        rig.wait_counts(1, 2, 3, 4)

    assert [1, 2, 3, 4] == rig.calls


def test_a_failed_effect_leaves_no_id(rig):
    """
    The event is retried until it succeeds; its effect is stored once, in order.
    """
    rig.refused = {1}
    rig.send("a", 1, 2)
    with rig.running(attempts=100):
        until(lambda: len(rig.calls) >= 3, "the event is retried")
        assert {1} == set(rig.calls)
        rig.refused.clear()
        rig.wait_counts(1, 2)

    assert [] == rig.parked()


def test_other_partitions_continue_while_an_event_is_retried(rig):
    """
    Only the partition of the failed event waits.
    """
    rig.refused = {1}
    rig.send("a", 1, 2, partition=0)
    with rig.running(attempts=1_000):
        until(lambda: rig.calls, "the event failed")
        rig.send("b", 10, 11, partition=1)
        rig.wait_counts(10, 11)
        rig.refused.clear()
        rig.wait_counts(1, 2, key="a")


def test_a_failing_event_is_parked_with_its_followers(rig):
    """
    Other keys continue, even with a new consumer; a replay applies the parked events.
    """
    rig.refused = {2}
    rig.send("a", 1, 2, 3, partition=0)
    rig.send("b", 10, partition=0)
    with rig.running(attempts=2):
        rig.wait_counts(1, 10)
    rig.send("a", 4, partition=0)
    rig.send("b", 11, partition=0)
    with rig.running(attempts=2):
        rig.wait_counts(1, 10, 11)
        parked = [(2, "ValueError: count 2 is refused"), (3, BEHIND), (4, BEHIND)]
        assert parked == rig.parked()
        rig.refused.clear()
        with rig.begin() as session:
            assert 3 == rig.inbox.request_replay(session)
        rig.wait_counts(1, 2, 3, 4, key="a")
        rig.send("a", 5, partition=0)
        rig.wait_counts(1, 2, 3, 4, 5, key="a")

    assert [] == rig.parked()


def test_an_event_whose_replay_fails_remains_parked(rig):
    """
    The event gets the new reason, and no follower overtakes it.
    """
    rig.refused = {1}
    (first, _) = rig.send("a", 1, 2)
    with rig.running(attempts=1):
        until(lambda: len(rig.parked()) == 2, "the events are parked")
        rig.connection.execute("update towpath.inbox_parked set reason = 'x'")
        with rig.begin() as session:
            assert 2 == rig.inbox.request_replay(session, first)
        until(lambda: rig.parked()[0][1] != "x", "the replay failed")
        parked = [(1, "ValueError: count 1 is refused"), (2, "x")]
        assert (parked, []) == (rig.parked(), rig.counts())
        with rig.begin() as session:
            assert rig.inbox.discard(session, first)
            assert not rig.inbox.discard(session, first)
            rig.inbox.request_replay(session)
        rig.wait_counts(2)


def test_a_follower_joins_a_requested_replay(rig):
    """
    Otherwise it would stay parked after all earlier events have been released.
    """
    with rig.begin() as session:
        drive(session, rig.inbox.park(event(id="1"), "unreadable"))
        rig.inbox.request_replay(session)
    with rig.begin() as session:
        assert drive(session, rig.inbox.park_behind(event(id="2", offset=1)))
        assert not drive(session, rig.inbox.park_behind(event(id="3", key="b")))
        found = rig.inbox.parked(session)

    assert [("1", True), ("2", True)] == [
        (one.event.id, one.is_requested) for one in found
    ]


def test_a_failing_database_parks_no_event(rig):
    """
    Attempts that fail because of the database do not count.
    """
    rig.down = True
    rig.send("a", 1)
    with rig.running(attempts=1):
        until(lambda: rig.begun >= 3, "some attempts have failed")
        rig.down = False
        rig.wait_counts(1)

    assert [] == rig.parked()


def test_records_that_are_not_text_can_be_parked(rig):
    """
    Keys, headers and values that are not UTF-8, NULs and tombstones are stored.
    """
    odd = event(
        id="\udcff\0", key="k\udcff\0", value=b"\xff\0", headers={"h\0": "\udcff"}
    )
    gone = event(id="2", key=None, value=None, offset=1)
    with rig.begin() as session:
        for one in (odd, gone):
            assert drive(session, rig.inbox.park(one, "no\0text"))
            assert not drive(session, rig.inbox.park(one, "again"))
        assert drive(session, rig.inbox.has_parked(odd))
        found = rig.inbox.parked(session)

    assert [(b"\xff\0", "k\\xff\\0"), (None, None)] == [
        (one.event.value, one.event.key) for one in found
    ]


def test_only_ids_of_events_that_cannot_be_read_again_are_pruned(rig):
    """
    Ids below the topic's first offsets are pruned.
    """
    rig.refused = {2}
    rig.send("a", 1, 2, partition=0)
    rig.send("b", 10, 11, partition=0)
    with rig.running(attempts=1):
        rig.wait_counts(1, 10, 11)
    assert 0 == rig.consumer().prune()
    cut = TopicPartition(rig.topic, 0, 3)
    rig.admin.delete_records([cut])[cut].result()
    assert 2 == rig.consumer().prune()
    rows = rig.connection.execute(
        'select "offset" from towpath.inbox order by 1'
    ).fetchall()

    assert [(1,), (3,)] == rows
    with pytest.raises(psycopg.errors.UndefinedTable), rig.begin() as session:
        Inbox("x", schema="other").prune(session, {("t", 0): 1})


def test_an_id_is_kept_while_a_copy_of_its_event_can_be_read(rig):
    """
    A later copy in the same partition keeps the id until that copy is deleted.

    A copy in a different partition keeps it forever.
    """
    first, second = rig.send("a", 1, 2, partition=0)
    rig.send("a", 1, event_id=first, partition=0)
    rig.send("a", 2, event_id=second, partition=1)
    origins = 'select partition, "offset" from towpath.inbox order by 1, 2'
    with rig.running():
        rig.send("a", 3, partition=1)
        until(
            lambda: (
                [(-1, 1), (0, 2), (1, 1)] == rig.connection.execute(origins).fetchall()
            ),
            "all events are applied, and the copies have been read",
        )
    cut = TopicPartition(rig.topic, 0, 2)
    rig.admin.delete_records([cut])[cut].result()
    assert 0 == rig.consumer().prune()
    cut.offset = 3
    rig.admin.delete_records([cut])[cut].result()
    assert 1 == rig.consumer().prune()
    rig.rewind()
    with rig.running():
        rig.send("a", 4, partition=1)
        until(lambda: len(rig.counts()) == 4, "the last event is applied")

    assert [1, 2, 3, 4] == sorted(rig.counts())


def test_a_row_read_by_a_snapshot_is_not_an_event(rig):
    """
    Its record has a new id, so applying it would repeat effects.

    A consumer with ``takes_reads`` still applies it.
    """
    rig.send("a", 1, partition=0)
    rig.send("a", 2, partition=0, snapshot="fill-1")
    producer = Producer({"bootstrap.servers": rig.kafka})
    barrier = [("towpath-barrier", b"1")]
    producer.produce(rig.topic, b"{}", "a", partition=0, headers=barrier)
    producer.flush()
    rig.send("a", 4, partition=0)
    with rig.running():
        rig.wait_counts(1, 4)
    rig.rewind()
    with rig.running(takes_reads=True):
        rig.wait_counts(1, 4, 2)


def test_only_the_wanted_types_are_applied_and_only_their_ids_stored(rig):
    """
    Events of other types are skipped, and do not hold back their key.
    """
    (wanted,) = rig.send("a", 1)
    rig.send("a", 2, type="PostDeleted")
    (last,) = rig.send("a", 3)
    with rig.running(types=["PostViewed"]):
        rig.wait_counts(1, 3)
    stored = rig.connection.execute("select event_id from towpath.inbox").fetchall()

    assert ([1, 3], []) == (rig.calls, rig.parked())
    assert {wanted, last} == {row[0] for row in stored}


def test_a_recreated_topic_has_different_events(rig):
    """
    A record without an id is identified by its offset and time, not by offset alone.
    """
    producer = Producer({"bootstrap.servers": rig.kafka})

    def send(count):
        producer.produce(rig.topic, json.dumps({"count": count}), "a", partition=0)
        producer.flush()

    send(1)
    with rig.running():
        rig.wait_counts(1)
        send(2)
        rig.wait_counts(1, 2)
    rig.admin.delete_topics([rig.topic])[rig.topic].result()
    until(
        lambda: rig.topic not in rig.admin.list_topics(timeout=10).topics,
        "the topic is gone",
    )
    rig.admin.create_topics([NewTopic(rig.topic, 3, 1)])[rig.topic].result()
    producer = Producer({"bootstrap.servers": rig.kafka})
    send(3)
    rig.rewind()
    with rig.running():
        rig.wait_counts(1, 2, 3)


def test_events_of_added_partitions_follow_a_parked_key(rig):
    """
    A key that moves to another partition remains parked.
    """
    rig.refused = {1}
    rig.send("a", 1, partition=0)
    with rig.running(attempts=1):
        until(lambda: len(rig.parked()) == 1, "the event is parked")
        added = [NewPartitions(rig.topic, 4)]
        rig.admin.create_partitions(added)[rig.topic].result()
    rig.send("a", 2, partition=3)
    with rig.running(attempts=1):
        until(lambda: len(rig.parked()) == 2, "the follower is parked")

    assert [(2, BEHIND)] == rig.parked()[1:]


def test_two_owners_of_a_partition_apply_an_event_once(rig):
    """
    The second owner waits for the first one's transaction, and then finds the id.
    """
    applied = []

    def second():
        with rig.begin() as session, rig.inbox.once(session, event()) as is_new:
            applied.append(is_new)

    with psycopg.connect(rig.dsn) as session:
        with rig.inbox.once(session, event()) as is_new:
            thread = threading.Thread(target=second)
            thread.start()
            waits = (
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'"
            )
            until(
                lambda: rig.connection.execute(waits).fetchone()[0] == 1,
                "the second owner waits",
            )
            assert (True, []) == (is_new, applied)
        session.commit()
    thread.join()

    assert [False] == applied


def test_a_decorated_handler_applies_an_event_once(rig):
    """
    The handler returns whether this call applied the event; an error removes the id.
    """

    @rig.inbox.handler(rig.begin)
    def view(event, session):
        rig.handle(event, session)

    rig.refused = {1}
    with pytest.raises(ValueError, match="refused"):
        view(event())
    rig.refused.clear()

    assert ([True, False], [1]) == ([view(event()), view(event())], rig.counts())


def test_the_inbox_works_with_sessions_of_other_drivers(rig):
    """
    SQLAlchemy, psycopg2, asyncpg and asynchronous SQLAlchemy each apply an event once.
    """
    url = rig.dsn.replace("postgresql:", "postgresql+{}:", 1)

    def in_sqlalchemy():
        engine = create_engine(url.format("psycopg2"))
        with (
            engine.begin() as session,
            rig.inbox.once(session, event(id="sa")) as is_new,
        ):
            session.execute(text("select 1"))
        engine.dispose()
        return is_new

    def in_psycopg2():
        connection = psycopg2.connect(rig.dsn)
        with connection, rig.inbox.once(connection, event(id="p2")) as is_new:
            pass
        connection.close()
        return is_new

    async def in_asyncpg():
        connection = await asyncpg.connect(rig.dsn)
        async with (
            connection.transaction(),
            rig.inbox.once_async(connection, event(id="pg")) as is_new,
        ):
            pass
        await connection.close()
        return is_new

    async def in_async_sqlalchemy():
        engine = create_async_engine(url.format("asyncpg"))
        async with (
            engine.begin() as session,
            rig.inbox.once_async(session, event(id="as")) as is_new,
        ):
            pass
        await engine.dispose()
        return is_new

    found = []
    for _ in range(2):
        found += [in_sqlalchemy(), in_psycopg2()]
        found += [asyncio.run(in_asyncpg()), asyncio.run(in_async_sqlalchemy())]

    assert [True] * 4 + [False] * 4 == found


def test_an_async_consumer_follows_the_same_rules(rig):  # noqa: PLR0915
    """
    A failing event is parked with its followers; a replay applies each event once.
    """
    settings = {"bootstrap.servers": rig.kafka, "session.timeout.ms": 6000}

    @asynccontextmanager
    async def begin():
        rig.begun += 1
        if rig.down:
            raise OSError
        async with await psycopg.AsyncConnection.connect(rig.dsn) as connection:
            yield connection

    async def handle(event, session):
        count = event.payload["count"]
        await session.execute(
            "insert into effects (event_id, key, count) values (%s, %s, %s)",
            [event.id, event.key, count],
        )
        if count in rig.refused:
            message = f"count {count} is refused"
            raise ValueError(message)

    async def work():
        stop = asyncio.Event()
        consumer = AsyncConsumer(
            rig.inbox, settings, [rig.topic], begin=begin, handle=handle, attempts=2
        )
        task = asyncio.create_task(consumer.run_async(stop))
        await asyncio.to_thread(rig.wait_counts, 1, 10)
        parked = rig.parked()
        rig.refused.clear()
        with rig.begin() as session:
            rig.inbox.request_replay(session)
        await asyncio.to_thread(rig.wait_counts, 1, 2, 3, key="a")
        rig.down, before = True, rig.begun
        rig.send("a", 4)
        await asyncio.to_thread(
            until, lambda: rig.begun > before + 2, "some attempts have failed"
        )
        rig.down = False
        await asyncio.to_thread(rig.wait_counts, 1, 2, 3, 4, key="a")
        stop.set()
        await task
        assert 0 == await consumer.prune_async()
        return parked

    rig.refused = {2}
    first, *_ = rig.send("a", 1, 2, 3, partition=0)
    rig.send("a", 1, event_id=first, partition=0)
    rig.send("b", 10, partition=0)

    assert [(2, "ValueError: count 2 is refused"), (3, BEHIND)] == asyncio.run(work())
    assert (5, []) == (rig.committed() - 1, rig.parked())


def test_a_rebalance_repeats_nothing(rig):
    """
    Consumers join and leave while events arrive; each key's events remain in order.
    """
    for number in range(200):
        rig.send(f"k{number % 10}", number)
    with rig.running():
        until(lambda: len(rig.counts()) >= 20, "some events are applied")
        with rig.running():
            for number in range(200, 300):
                rig.send(f"k{number % 10}", number)
            until(lambda: len(rig.counts()) >= 200, "most events are applied")
        until(lambda: len(rig.counts()) == 300, "all events are applied")

    assert [[*range(key, 300, 10)] for key in range(10)] == [
        rig.counts(f"k{key}") for key in range(10)
    ]
