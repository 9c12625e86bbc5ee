"""When a comparison would prove something, and when it is told that it would not."""

from datetime import UTC, datetime

import pytest

from towpath.settings import Kafka, Registry, Route, Settings, Sink, SinkKind, Source
from towpath.sinks.progress import Progress, progress_path, write_progress
from towpath.sinks.verify.at_rest import records_to_go, wait_until_at_rest
from towpath.sinks.verify.errors import NotAtRestError

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
        if self._steps:
            self._steps.pop(0)()


class FakeLog:
    """A database's log, as far as a slot has read it."""

    def __init__(self, confirmed=100, tables=0):
        self.confirmed_lsn = confirmed
        self.tables = tables

    def mark(self):
        return 100

    def confirmed(self, _slot):
        return self.confirmed_lsn

    def unfinished_tables(self, _sink):
        return self.tables


class FakeCluster:
    """One topic with ten records."""

    def names(self):
        return [TOPIC, "other"]

    def end_offsets(self, names):
        return {name: {"0": 10, "1": 0} for name in names}


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


def test_rest_is_waited_for_in_order(settings, sink):
    """The slot first, then snapshots, then the sink: each brings more to the next."""
    log = FakeLog(confirmed=1, tables=1)
    applied(settings, 0)
    clock = StepClock(
        lambda: setattr(log, "confirmed_lsn", 100),
        lambda: setattr(log, "tables", 0),
        lambda: applied(settings, 10),
    )
    wait_until_at_rest(settings, sink, log, FakeCluster(), clock)

    assert round(clock.monotonic_s(), 3) == 0.6


@pytest.mark.parametrize(
    ("log", "offset", "expected"),
    [
        (FakeLog(confirmed=1), 10, r"confirmed 0/1 of 0/64, 99 bytes to go"),
        (FakeLog(tables=2), 10, "2 tables to read"),
        (FakeLog(), 7, r"cache has 3 records to go \(Redis is full\)"),
        (FakeLog(confirmed=None), 10, "the slot towpath does not exist"),
    ],
)
def test_what_is_still_on_its_way_is_told(settings, sink, log, offset, expected):
    """After a minute the verification gives up, and says what it waited for."""
    applied(settings, offset, error="Redis is full")
    clock = StepClock()

    with pytest.raises(NotAtRestError, match=f"not at rest: .*{expected}") as failure:
        wait_until_at_rest(settings, sink, log, FakeCluster(), clock)

    assert (3, True) == (failure.value.exit_code, clock.monotonic_s() <= 60.5)


def test_a_sink_that_never_ran_has_everything_to_go():
    """Topics and partitions that the sink never read count whole."""
    ends = {"a": {"0": 5, "1": 7}, "b": {"0": 0}}

    assert (12, 4) == (
        records_to_go(ends, {}),
        records_to_go(ends, {"a": {"0": 5, "1": 3}}),
    )
