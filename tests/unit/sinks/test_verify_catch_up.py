"""A verification waits until the sink has caught up, and reports a stall."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from support.published import OneDriver
from towpath.settings import Kafka, Registry, Route, Settings, Sink, SinkKind, Source
from towpath.sinks.state.progress import Progress
from towpath.sinks.verify.errors import NotAtRestError
from towpath.sinks.verify.progress import CatchUpWaiter, PendingSnapshots, records_to_go

TOPIC = "towpath.shop.orders"


class StepClock:
    """A clock that advances only in ``wait``, and runs one of the ``steps`` there."""

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
        """Do nothing in the waits after the last step; a test may replace this."""


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

    def pending_snapshots(self, _sink):
        return PendingSnapshots(self.tables, self.paused, self.moved)

    def answered(self, _signals):
        return self.answers

    def refusals(self, _signals):
        return ()

    def next_transaction(self):
        return 50

    def oldest_transaction(self):
        return self.oldest


class FakeCluster:
    """One topic with ten records, which gains another one after each request."""

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
    """Describe the platform around the sink."""
    return Settings(
        version=1,
        state_folder=tmp_path,
        source=(Source(dsn="postgresql://x/y"),),
        kafka=Kafka(bootstrap_servers="x"),
        registry=Registry(url="x"),
        sink=(sink,),
    )


@pytest.fixture
def driver():
    """Return the sink's driver, which has published nothing yet."""
    return OneDriver()


def applied(driver, offset, error=None, **fields):
    """Publish the sink's progress."""
    progress = Progress("cache", applied={TOPIC: {"0": offset}}, error=error)
    driver.set(progress, **fields)


def catch_up(settings, driver, sink, log, clock):
    """Make the waiter."""
    parts = {"log": log, "cluster": FakeCluster(), "clock": clock}
    return CatchUpWaiter(settings, sink, driver, **parts)


def test_the_wait_follows_the_pipelines_order(settings, driver, sink):
    """
    It waits for snapshots, then the slot, then the sink: each feeds the next.
    """
    log = FakeLog(confirmed=1, tables=1)
    applied(driver, 0)
    polls = []
    clock = StepClock(
        lambda: setattr(log, "tables", 0),
        lambda: setattr(log, "confirmed_lsn", 100),
        lambda: applied(driver, 10),
    )
    catch_up(settings, driver, sink, log, clock).wait(
        lambda: polls.append(clock.monotonic_s())
    )

    assert ([0, 1, 1, 2, 2, 3], 3) == (
        [round(poll_s * 100) for poll_s in polls],
        round(clock.monotonic_s() * 100),
    )


def test_a_long_wait_polls_less_often(settings, driver, sink):
    """
    The first polls are milliseconds apart, and later ones a tenth of a second.
    """
    applied(driver, 0)
    clock = StepClock(*[lambda: None] * 20, lambda: applied(driver, 10))
    polls = []
    catch_up(settings, driver, sink, FakeLog(), clock).wait(
        lambda: polls.append(clock.monotonic_s())
    )
    pauses = [later - earlier for earlier, later in pairwise(polls[2:])]

    assert (0.01, 0.1) == (round(pauses[0], 6), round(pauses[-1], 6))
    assert pauses[:6] == sorted(pauses[:6])


def test_the_wait_ignores_records_written_meanwhile(settings, driver, sink):
    """
    The ends of topics are read once, however quickly they grow.
    """
    applied(driver, 10)
    clock = StepClock()
    catch_up(settings, driver, sink, FakeLog(), clock).wait()

    assert clock.monotonic_s() == 0


def test_verify_waits_while_a_sink_makes_progress(settings, driver, sink):
    """
    The limit of one minute applies to a stall, not to the whole wait.
    """
    applied(driver, 0)
    minutes = [lambda: None] * 590
    clock = StepClock(*minutes, lambda: applied(driver, 5), *minutes)
    clock.then = lambda: applied(driver, 10)
    catch_up(settings, driver, sink, FakeLog(), clock).wait()

    assert 110 < clock.monotonic_s() < 125


def read_on(log, minutes, end):
    """Make a clock on which a snapshot reads rows every half minute, and then ends."""
    half = [lambda: None] * 299

    def read():
        log.moved += 100

    return StepClock(*[*half, read] * (2 * minutes), end)


def test_the_wait_continues_while_rows_of_a_table_are_read(settings, driver, sink):
    """
    Reading one table for half an hour is not a stall.
    """
    log = FakeLog(tables=1)
    applied(driver, 10)
    clock = read_on(log, 30, lambda: setattr(log, "tables", 0))
    catch_up(settings, driver, sink, log, clock).wait()

    assert round(clock.monotonic_s()) == 30 * 60


def test_the_wait_for_a_refetch_includes_an_earlier_snapshot(settings, driver, sink):
    """
    The relay reads the rows of a repair after those of earlier requests.
    """
    log = FakeLog()
    clock = read_on(log, 10, lambda: setattr(log, "answers", 2))
    refused = catch_up(settings, driver, sink, log, clock).wait_for_answers(["a", "b"])

    assert ((), 10 * 60) == (refused, round(clock.monotonic_s()))


def test_the_wait_for_a_stalled_refetch_ends(settings, driver, sink):
    """
    A stalled snapshot is not a reason to wait longer.
    """
    log = FakeLog(tables=1)
    log.moved = 700

    with pytest.raises(NotAtRestError, match="has not answered 2 signals"):
        catch_up(settings, driver, sink, log, StepClock()).wait_for_answers(["a", "b"])


def test_the_wait_lasts_until_a_writer_is_visible(settings, driver, sink):
    """
    A commit can be in the sink before it is visible in the source.
    """
    log = FakeLog()
    log.oldest = 48
    clock = StepClock(lambda: None, lambda: setattr(log, "oldest", 51))
    catch_up(settings, driver, sink, log, clock).wait_until_seen()

    assert round(clock.monotonic_s(), 3) == 0.025


def test_an_open_transaction_delays_the_wait_only_briefly(settings, driver, sink):
    """
    Such a transaction has no commit in the log yet.
    """
    log = FakeLog()
    log.oldest = 7
    clock = StepClock()
    catch_up(settings, driver, sink, log, clock).wait_until_seen()

    assert 9 < clock.monotonic_s() < 12


@pytest.mark.parametrize(
    ("log", "offset", "expected"),
    [
        (FakeLog(confirmed=1), 10, r"confirmed 0/1, not yet 0/64: 99 bytes to go"),
        (FakeLog(tables=2), 10, "2 tables to read"),
        (FakeLog(tables=2, paused=1), 10, "2 tables to read, 1 of them paused"),
        (FakeLog(), 7, r"cache has 3 records to go \(Redis is full\)"),
        (FakeLog(confirmed=None), 10, "slot towpath does not exist or is not ready"),
    ],
)
def test_the_missing_progress_is_reported(
    settings, driver, sink, log, offset, expected
):
    """
    After a minute without progress, the wait ends, and its error names what is missing.
    """
    applied(driver, offset, error="Redis is full")
    clock = StepClock()

    pattern = f"the sink has not caught up: .*{expected}"
    with pytest.raises(NotAtRestError, match=pattern) as failure:
        catch_up(settings, driver, sink, log, clock).wait()

    assert (3, True) == (failure.value.exit_code, clock.monotonic_s() <= 60.5)


def test_a_sink_that_never_ran_lacks_everything():
    """
    Topics and partitions that the sink never read count in full.
    """
    ends = {"a": {"0": 5, "1": 7}, "b": {"0": 0}}

    assert (12, 4) == (
        records_to_go(ends, {}),
        records_to_go(ends, {"a": {"0": 5, "1": 3}}),
    )


@pytest.mark.parametrize("is_writing", [True, False])
def test_the_wait_continues_while_a_long_batch_is_written(
    settings, driver, sink, is_writing
):
    """
    Its records count only once all are durable; an idle sink makes no progress.
    """
    clock = StepClock()
    applied(driver, 9)

    def then():
        is_done = clock.monotonic_s() > 150
        applied(driver, 99 if is_done else 9, is_writing=is_writing)

    clock.then = then
    waiting = catch_up(settings, driver, sink, FakeLog(), clock)
    if is_writing:
        waiting.wait()
    else:
        with pytest.raises(NotAtRestError, match="records to go"):
            waiting.wait()

    assert is_writing == (clock.monotonic_s() > 150)


def test_a_stopped_sink_that_has_everything_is_compared(settings, driver, sink):
    """
    Its driver need not run; if records are missing, the error reports that it ended.
    """
    applied(driver, 10, is_running=False)
    catch_up(settings, driver, sink, FakeLog(), StepClock()).wait()
    applied(driver, 9, is_running=False)

    with pytest.raises(NotAtRestError, match=r"1 records to go .the driver .* ended"):
        catch_up(settings, driver, sink, FakeLog(), StepClock()).wait()
