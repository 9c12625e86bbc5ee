"""Rebalances while handlers run: each effect once, in order, and no consumer stalls."""

import threading

import pytest

from support.inbox_place import InboxPlace
from support.waiting import TIMEOUT_S, until
from towpath.inbox import Observer, consumer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

# The smallest that a broker and the client accept together.
SHORT = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
KEYS = [f"k{number}" for number in range(6)]


class Handler:
    """A handler of one consumer, which stops in the middle of a chosen event."""

    def __init__(self, place, stops_at=None):
        self._place = place
        self._stops_at = stops_at
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.fails = False
        self.counts = []

    def __call__(self, event, session):
        count = event.payload["count"]
        self.counts.append(count)
        if count == self._stops_at and not self.go_on.is_set():
            self.begun.set()
            assert self.go_on.wait(TIMEOUT_S)
            if self.fails:
                raise ValueError
        self._place.handle(event, session)


class Partitions(Observer):
    """The partitions that a consumer reads."""

    def __init__(self):
        self.read = set()

    def lag(self, topic, partition, records):
        """Note it."""
        change = self.read.discard if records is None else self.read.add
        change((topic, partition))


@pytest.fixture
def place(stack, database, unique, monkeypatch):
    """Provide a consumer's database and topic; the partitions are reported at once."""
    stack.up("postgres", "kafka")
    monkeypatch.setattr(consumer, "OBSERVE_INTERVAL_S", 0.0)
    made = InboxPlace(database, stack.kafka, unique)
    yield made
    made.close()


def send(place, counts):
    """Produce one event of each count, a key after the other, into all partitions."""
    for count in counts:
        key = count % len(KEYS)
        place.send(KEYS[key], count, partition=key % 3)


def assert_each_once_in_order(place, counts):
    """Compare the effects of each key with what was sent."""
    until(lambda: len(place.counts()) >= len(counts), "all events are applied")
    expected = [[c for c in counts if c % len(KEYS) == n] for n in range(len(KEYS))]
    assert expected == [place.counts(key) for key in KEYS]
    assert [] == place.parked()


def is_blocked(place):
    """Tell whether a transaction of the database waits for another one."""
    statement = (
        "select count(*) > 0 from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock'"
    )
    return place.connection.execute(statement).fetchone()[0]


def test_a_consumer_that_joins_while_a_handler_runs_gets_its_share(place):
    """
    The rebalance waits for the handler, which is not repeated; then both go on.
    """
    send(place, range(30))
    slow, fast = Handler(place, stops_at=6), Handler(place)
    parts = Partitions(), Partitions()
    with place.running(handle=slow, observer=parts[0]):
        assert slow.begun.wait(TIMEOUT_S)
        with place.running(handle=fast, observer=parts[1]):
            send(place, range(30, 60))
            joined = place.connection.execute("select count(*) from effects").fetchone()
            slow.go_on.set()
            until(lambda: len(place.counts()) == 60, "all that was sent is applied")
            # Where each reads some partitions, none is read by both.
            count = 60
            while not (parts[0].read and parts[1].read):
                send(place, range(count, count + 6))
                count += 6
                until(lambda n=count: len(place.counts()) == n, "both go on")
            until(lambda: len(parts[0].read | parts[1].read) == 3, "all are read")
            assert not parts[0].read & parts[1].read
    assert_each_once_in_order(place, range(count))
    assert joined[0] < 30
    assert 1 == slow.counts.count(6)


def test_a_partition_that_comes_back_while_it_is_retried_goes_on(place):
    """
    It left while it was paused; its event is still to be applied.
    """
    send(place, range(6))
    place.refused = {*range(6)}
    first, second = Partitions(), Partitions()
    with place.running(attempts=1_000, observer=first):
        until(lambda: len(set(place.calls)) == 3, "each partition is retried")
        with place.running(attempts=1_000, observer=second):
            until(lambda: second.read and len(first.read) < 3, "some have moved")
        until(lambda: len(first.read) == 3, "they have come back")
        place.refused.clear()
        assert_each_once_in_order(place, range(6))


@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
def test_a_handler_longer_than_the_poll_interval_repeats_and_loses_nothing(
    place, fails
):
    """
    Its partitions go to another consumer, which waits for the open transaction.
    """
    send(place, range(12))
    slow, other = Handler(place, stops_at=0), Handler(place)
    slow.fails = fails
    with place.running(handle=slow, settings=SHORT):
        assert slow.begun.wait(TIMEOUT_S)
        with place.running(handle=other, settings=SHORT):
            until(lambda: is_blocked(place), "the new owner waits for the first one")
            assert 0 not in other.counts
            slow.go_on.set()
            assert_each_once_in_order(place, range(12))
        # The slow one is a member again, and reads what the other one leaves.
        send(place, range(12, 24))
        assert_each_once_in_order(place, range(24))

    assert ((0 in other.counts), 1) == (fails, place.counts(KEYS[0]).count(0))


def test_every_handler_may_be_longer_than_the_poll_interval(place):
    """
    Two consumers take the partition from each other again and again; the work ends.
    """
    place.send("a", *range(3), partition=0)

    def slow(event, session):
        until(lambda: is_blocked(place), "the next owner waits for this handler")
        place.handle(event, session)

    with (
        place.running(handle=slow, settings=SHORT),
        place.running(handle=slow, settings=SHORT),
    ):
        until(lambda: len(place.counts()) == 3, "the work ends", timeout_s=120)
    assert [0, 1, 2] == place.counts("a")
    assert [] == place.parked()
