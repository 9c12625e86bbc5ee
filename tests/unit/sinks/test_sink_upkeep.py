"""Upkeep of a sink runs between batches, at intervals."""

import threading

import pytest

from support.dead_letters import Letters, context_of
from towpath.settings import Sink
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.query import CHECK_EVERY_S, IdleUpkeep
from towpath.sinks.errors import TargetBusyError
from towpath.sinks.targets.memory import MemorySink

ROUTES = Routes(
    Sink.model_validate(
        {
            "name": "cache",
            "kind": "cache",
            "url": "redis://unused",
            "route": [{"topic": "towpath.shop.orders", "name": "orders"}],
        }
    )
)


class Clock:
    """A clock that a test advances."""

    at_s = 0.0

    def monotonic_s(self):
        """Return the test's time."""
        return self.at_s


class MaintainedSink(MemorySink):
    """A sink that counts its upkeep runs, which may fail."""

    runs = 0
    failure = None

    def maintain(self):
        """Count the run, and fail if the test requests it."""
        self.runs += 1
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def clock():
    """Return a clock."""
    return Clock()


@pytest.fixture
def sink():
    """Return a sink with upkeep."""
    return MaintainedSink()


def writer_of(sink):
    """Make the writer of a sink."""
    return RecordWriter(ROUTES, sink, context_of(Letters()))


def test_sink_upkeep_runs_at_intervals(sink, clock):
    """
    It does not run at every check of the supervisor; a failed run counts too.
    """
    idle = IdleUpkeep(sink, writer_of(sink), clock)
    counts = []
    for at_s in (0.0, CHECK_EVERY_S, CHECK_EVERY_S + 1, 2 * CHECK_EVERY_S):
        clock.at_s = at_s
        idle.check()
        counts.append(sink.runs)
    sink.failure = TargetBusyError("full", retry_after_s=1)
    clock.at_s = 3 * CHECK_EVERY_S
    with pytest.raises(TargetBusyError):
        idle.check()
    idle.check()

    assert ([0, 1, 1, 2], 3) == (counts, sink.runs)


def test_no_sink_upkeep_runs_during_a_batch(sink, clock):
    """
    A check does not wait for the batch; the upkeep remains due.
    """
    writer = writer_of(sink)
    idle = IdleUpkeep(sink, writer, clock)
    clock.at_s = CHECK_EVERY_S
    is_held, is_over = threading.Event(), threading.Event()

    def write():
        with writer.lock:
            is_held.set()
            is_over.wait(timeout=5)

    batch = threading.Thread(target=write)
    batch.start()
    is_held.wait(timeout=5)
    idle.check()
    during = sink.runs
    is_over.set()
    batch.join()
    idle.check()

    assert (0, 1) == (during, sink.runs)


def test_the_overdue_routes_of_a_sink_without_upkeep_are_requested(clock, monkeypatch):
    """
    Most sinks have no method ``maintain``.
    """
    sink, requests = MemorySink(), []
    writer = writer_of(sink)
    monkeypatch.setattr(writer, "request_overdue", lambda: requests.append(sink))
    idle = IdleUpkeep(sink, writer, clock)
    clock.at_s = CHECK_EVERY_S
    idle.check()

    assert [sink] == requests
