"""When a sink has passed a moment, and how it is told that it does not get there."""

from datetime import UTC, datetime

import pytest

from towpath.settings import Kafka, Registry, Route, Settings, Sink, SinkKind, Source
from towpath.sinks.progress import (
    DriverNote,
    Progress,
    progress_path,
    say_alive,
    write_progress,
)
from towpath.sinks.verify.errors import NotAtRestError
from towpath.sinks.verify.passing import Passing, Unread, records_to_go

TOPIC = "towpath.shop.orders"


class StepClock:
    """A clock on which only waiting takes time; ``steps`` happen while it waits."""

    def __init__(self, *steps):
        self._time_s = 0.0
        self._steps = list(steps)

    def now(self):
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        return self._time_s

    def wait(self, delay_s):
        self._time_s += delay_s
        step = self._steps.pop(0) if self._steps else self.then
        step()

    def then(self):
        """Happens at each wait after the steps."""


class FakeLog:
    """A database's log, as far as a slot has read it."""

    def __init__(self, confirmed=100, tables=0, paused=0):
        self.confirmed_lsn = confirmed
        self.tables = tables
        self.paused = paused
        self.moved = 0
        self.oldest = 50
        self.answers = 0

    def mark(self):
        return 100

    def confirmed(self, _slot):
        return self.confirmed_lsn

    def unread(self, _sink):
        return Unread(self.tables, self.paused, self.moved)

    def answered(self, _signals):
        return self.answers

    def refusals(self, _signals):
        return ()

    def next_transaction(self):
        return 50

    def oldest_transaction(self):
        return self.oldest


class FakeCluster:
    """One topic with ten records, and one more each time that somebody looks."""

    def __init__(self):
        self._records = 9

    def names(self):
        return [TOPIC, "other"]

    def end_offsets(self, names):
        self._records += 1
        return {name: {"0": self._records, "1": 0} for name in names}


@pytest.fixture
def sink():
    """Describe a cache with one route."""
    route = Route(topic=TOPIC, name="orders")
    return Sink(name="cache", kind=SinkKind.CACHE, url="redis://x", route=(route,))


@pytest.fixture
def settings(tmp_path, sink):
    """Describe the platform around it."""
    return Settings(
        version=1,
        state_folder=tmp_path,
        source=(Source(dsn="postgresql://x/y"),),
        kafka=Kafka(bootstrap_servers="x"),
        registry=Registry(url="x"),
        sink=(sink,),
    )


def applied(settings, offset, error=None):
    """State how far the sink is."""
    progress = Progress("cache", applied={TOPIC: {"0": offset}}, error=error)
    path = progress_path(settings.state_folder, "cache")
    write_progress(path, progress, datetime(2026, 1, 1, tzinfo=UTC))


def passing(settings, sink, log, clock):
    """Make what waits."""
    return Passing(settings, sink, log, FakeCluster(), clock)


def test_the_sink_is_waited_for_in_order(settings, sink):
    """Snapshots first, then the slot, then the sink: each brings more to the next."""
    log = FakeLog(confirmed=1, tables=1)
    applied(settings, 0)
    looks = []
    clock = StepClock(
        lambda: setattr(log, "tables", 0),
        lambda: setattr(log, "confirmed_lsn", 100),
        lambda: applied(settings, 10),
    )
    passing(settings, sink, log, clock).wait(lambda: looks.append(clock.monotonic_s()))

    assert ([0, 1, 1, 2, 2, 3], 3) == (
        [round(look_s * 10) for look_s in looks],
        round(clock.monotonic_s() * 10),
    )


def test_what_is_written_meanwhile_is_not_waited_for(settings, sink):
    """The topics' ends are those of one moment, however quickly they grow."""
    applied(settings, 10)
    clock = StepClock()
    passing(settings, sink, FakeLog(), clock).wait()

    assert clock.monotonic_s() == 0


def test_a_sink_that_gets_on_is_waited_for(settings, sink):
    """A minute is the bound of standing still, not of the way."""
    applied(settings, 0)
    minutes = [lambda: None] * 590
    clock = StepClock(*minutes, lambda: applied(settings, 5), *minutes)
    clock.then = lambda: applied(settings, 10)
    passing(settings, sink, FakeLog(), clock).wait()

    assert 110 < clock.monotonic_s() < 125


def read_on(log, minutes, end):
    """Have a snapshot read some rows every half minute, and then end something."""
    half = [lambda: None] * 299

    def read():
        log.moved += 100

    return StepClock(*[*half, read] * (2 * minutes), end)


def test_one_table_is_waited_for_as_long_as_its_rows_are_read(settings, sink):
    """Half an hour of one table is no standing still."""
    log = FakeLog(tables=1)
    applied(settings, 10)
    clock = read_on(log, 30, lambda: setattr(log, "tables", 0))
    passing(settings, sink, log, clock).wait()

    assert round(clock.monotonic_s()) == 30 * 60


def test_an_answer_is_waited_for_behind_another_snapshot(settings, sink):
    """What a repair asks for is read when it is its turn."""
    log = FakeLog()
    clock = read_on(log, 10, lambda: setattr(log, "answers", 2))
    refused = passing(settings, sink, log, clock).wait_for_answers(["a", "b"])

    assert ((), 10 * 60) == (refused, round(clock.monotonic_s()))


def test_an_answer_that_nobody_works_at_is_given_up(settings, sink):
    """A snapshot that stands still is no reason to wait for longer."""
    log = FakeLog(tables=1)
    log.moved = 700

    with pytest.raises(NotAtRestError, match="has not answered 2 signals"):
        passing(settings, sink, log, StepClock()).wait_for_answers(["a", "b"])


def test_whoever_writes_is_waited_for_until_it_is_seen(settings, sink):
    """A commit can be in the sink before others see it in the source."""
    log = FakeLog()
    log.oldest = 48
    clock = StepClock(lambda: None, lambda: setattr(log, "oldest", 51))
    passing(settings, sink, log, clock).wait_until_seen()

    assert round(clock.monotonic_s(), 3) == 0.2


def test_a_transaction_that_stays_open_is_not_waited_for_long(settings, sink):
    """It has no commit in the log that anybody could have carried."""
    log = FakeLog()
    log.oldest = 7
    clock = StepClock()
    passing(settings, sink, log, clock).wait_until_seen()

    assert 9 < clock.monotonic_s() < 12


@pytest.mark.parametrize(
    ("log", "offset", "expected"),
    [
        (FakeLog(confirmed=1), 10, r"confirmed 0/1 of 0/64, 99 bytes to go"),
        (FakeLog(tables=2), 10, "2 tables to read"),
        (FakeLog(tables=2, paused=1), 10, "2 tables to read, 1 of them paused"),
        (FakeLog(), 7, r"cache has 3 records to go \(Redis is full\)"),
        (FakeLog(confirmed=None), 10, "the slot towpath does not exist"),
    ],
)
def test_what_is_still_on_its_way_is_told(settings, sink, log, offset, expected):
    """After a minute without a step the wait gives up, and says what it was for."""
    applied(settings, offset, error="Redis is full")
    clock = StepClock()

    with pytest.raises(NotAtRestError, match=f"not at rest: .*{expected}") as failure:
        passing(settings, sink, log, clock).wait()

    assert (3, True) == (failure.value.exit_code, clock.monotonic_s() <= 60.5)


def test_a_sink_that_never_ran_has_everything_to_go():
    """Topics and partitions that the sink never read count whole."""
    ends = {"a": {"0": 5, "1": 7}, "b": {"0": 0}}

    assert (12, 4) == (
        records_to_go(ends, {}),
        records_to_go(ends, {"a": {"0": 5, "1": 3}}),
    )


@pytest.mark.parametrize("is_writing", [True, False])
def test_a_batch_that_takes_long_is_waited_for_while_it_is_written(
    settings, sink, is_writing
):
    """
    Its records count only once all are durable; one that nobody writes is not at rest.
    """
    clock = StepClock()
    applied(settings, 9)

    def then():
        note = DriverNote("127.0.0.1", None, is_writing)
        say_alive(settings.state_folder, "cache", note, clock.now())
        if clock.monotonic_s() > 600:
            applied(settings, 99)

    clock.then = then
    passing = Passing(settings, sink, FakeLog(), FakeCluster(), clock)
    if is_writing:
        passing.wait()
    else:
        with pytest.raises(NotAtRestError, match="records to go"):
            passing.wait()

    assert is_writing == (clock.monotonic_s() > 600)
