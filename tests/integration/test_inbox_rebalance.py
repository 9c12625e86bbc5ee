"""Rebalances while handlers run: effects occur once, in order; no consumer stalls."""

import threading

import pytest

from support.inbox_place import InboxPlace
from support.waiting import TIMEOUT_S, until
from towpath.inbox import Observer, consumer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

# The smallest values that both the broker and the client accept.
SHORT_TIMEOUTS = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
KEYS = [f"k{number}" for number in range(6)]


class Handler:
    """A consumer's handler, which pauses in the middle of a chosen event."""

    def __init__(self, rig, stops_at=None):
        self._rig = rig
        self._stops_at = stops_at
        self.begun, self.proceed = threading.Event(), threading.Event()
        self.fails = False
        self.counts = []

    def __call__(self, event, session):
        count = event.payload["count"]
        self.counts.append(count)
        if count == self._stops_at and not self.proceed.is_set():
            self.begun.set()
            assert self.proceed.wait(TIMEOUT_S)
            if self.fails:
                raise ValueError
        self._rig.handle(event, session)


class Partitions(Observer):
    """The partitions that a consumer reads."""

    def __init__(self):
        self.read = set()

    def lag(self, topic, partition, records):
        """Record whether the consumer reads the partition."""
        change = self.read.discard if records is None else self.read.add
        change((topic, partition))


@pytest.fixture
def rig(stack, database, unique, monkeypatch):
    """Provide a consumer that reports its partitions immediately, and its database."""
    stack.up("postgres", "kafka")
    monkeypatch.setattr(consumer, "OBSERVE_INTERVAL_S", 0.0)
    made = InboxPlace(database, stack.kafka, unique)
    yield made
    made.close()


def send(rig, counts):
    """Produce an event for each count; keys and partitions take turns."""
    for count in counts:
        key = count % len(KEYS)
        rig.send(KEYS[key], count, partition=key % 3)


def assert_each_once_in_order(rig, counts):
    """Fail unless each count took effect once, and in order for its key."""
    until(lambda: len(rig.counts()) >= len(counts), "all events are applied")
    expected = [[c for c in counts if c % len(KEYS) == n] for n in range(len(KEYS))]
    assert expected == [rig.counts(key) for key in KEYS]
    assert [] == rig.parked()


def is_blocked(rig):
    """Return whether a transaction of the database waits for a lock."""
    statement = (
        "select count(*) > 0 from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock'"
    )
    return rig.connection.execute(statement).fetchone()[0]


def test_a_consumer_that_joins_while_a_handler_runs_gets_its_share(rig):
    """
    The rebalance waits for the handler, which is not repeated; then both continue.
    """
    send(rig, range(30))
    slow, fast = Handler(rig, stops_at=6), Handler(rig)
    parts = Partitions(), Partitions()
    with rig.running(handle=slow, observer=parts[0]):
        assert slow.begun.wait(TIMEOUT_S)
        with rig.running(handle=fast, observer=parts[1]):
            send(rig, range(30, 60))
            joined = rig.connection.execute("select count(*) from effects").fetchone()
            slow.proceed.set()
            until(lambda: len(rig.counts()) == 60, "all events are applied")
            # Once each consumer reads a partition, no partition is read by both.
            count = 60
            while not (parts[0].read and parts[1].read):
                send(rig, range(count, count + 6))
                count += 6
                until(lambda n=count: len(rig.counts()) == n, "both continue")
            until(
                lambda: len(parts[0].read | parts[1].read) == 3,
                "all partitions are read",
            )
            assert not parts[0].read & parts[1].read
    assert_each_once_in_order(rig, range(count))
    assert joined[0] < 30
    assert 1 == slow.counts.count(6)


def test_a_partition_that_returns_while_its_event_is_retried_continues(rig):
    """
    The partition was revoked while it was paused; its event is applied later.
    """
    send(rig, range(6))
    rig.refused = {*range(6)}
    first, second = Partitions(), Partitions()
    with rig.running(attempts=1_000, observer=first):
        until(lambda: len(set(rig.calls)) == 3, "each partition is retried")
        with rig.running(attempts=1_000, observer=second):
            until(
                lambda: second.read and len(first.read) < 3,
                "some partitions have moved",
            )
        until(lambda: len(first.read) == 3, "the partitions have returned")
        rig.refused.clear()
        assert_each_once_in_order(rig, range(6))


@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
def test_a_handler_longer_than_the_poll_interval_repeats_and_loses_no_event(rig, fails):
    """
    Its partitions move to another consumer, which waits for the open transaction.
    """
    send(rig, range(12))
    slow, other = Handler(rig, stops_at=0), Handler(rig)
    slow.fails = fails
    with rig.running(handle=slow, settings=SHORT_TIMEOUTS):
        assert slow.begun.wait(TIMEOUT_S)
        with rig.running(handle=other, settings=SHORT_TIMEOUTS):
            until(lambda: is_blocked(rig), "the new owner waits for the first one")
            assert 0 not in other.counts
            slow.proceed.set()
            assert_each_once_in_order(rig, range(12))
        # The slow consumer has rejoined, and continues once the other one has left.
        send(rig, range(12, 24))
        assert_each_once_in_order(rig, range(24))

    assert ((0 in other.counts), 1) == (fails, rig.counts(KEYS[0]).count(0))


def test_every_handler_may_be_longer_than_the_poll_interval(rig):
    """
    Two consumers repeatedly take the partition from each other; the work still ends.
    """
    rig.send("a", *range(3), partition=0)

    def slow(event, session):
        until(lambda: is_blocked(rig), "the next owner waits for this handler")
        rig.handle(event, session)

    with (
        rig.running(handle=slow, settings=SHORT_TIMEOUTS),
        rig.running(handle=slow, settings=SHORT_TIMEOUTS),
    ):
        until(lambda: len(rig.counts()) == 3, "the work ends", timeout_s=120)
    assert [0, 1, 2] == rig.counts("a")
    assert [] == rig.parked()
