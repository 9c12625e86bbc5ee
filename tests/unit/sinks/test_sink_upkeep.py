"""A sink that looks after itself does so between batches, now and then."""

import threading

import pytest

from support.dead_letters import Letters, desk_of
from towpath.settings import Sink
from towpath.sinks.errors import TargetBusyError
from towpath.sinks.jobs.batch import BatchWriter
from towpath.sinks.jobs.idle import LOOK_EVERY_S, Idle
from towpath.sinks.memory import MemorySink
from towpath.sinks.routes import Routes

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
    """A clock that a test moves on."""

    at_s = 0.0

    def monotonic_s(self):
        """Tell the test's time."""
        return self.at_s


class Careful(MemorySink):
    """A sink that counts how often it was attended to, and may fail at it."""

    attended = 0
    failure = None

    def attend(self):
        """Count."""
        self.attended += 1
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def clock():
    """Lend a clock."""
    return Clock()


@pytest.fixture
def sink():
    """Lend a sink that looks after itself."""
    return Careful()


def writer_of(sink):
    """Make the one who uses a sink."""
    return BatchWriter(ROUTES, sink, desk_of(Letters()))


def test_a_sink_is_attended_to_now_and_then(sink, clock):
    """
    Not at every glance of its supervisor; also after an attempt that failed.
    """
    idle = Idle(sink, writer_of(sink), clock)
    counts = []
    for at_s in (0.0, LOOK_EVERY_S, LOOK_EVERY_S + 1, 2 * LOOK_EVERY_S):
        clock.at_s = at_s
        idle.look()
        counts.append(sink.attended)
    sink.failure = TargetBusyError("full", retry_after_s=1)
    clock.at_s = 3 * LOOK_EVERY_S
    with pytest.raises(TargetBusyError):
        idle.look()
    idle.look()

    assert ([0, 1, 1, 2], 3) == (counts, sink.attended)


def test_no_sink_is_attended_to_beside_a_batch(sink, clock):
    """
    While a batch is written nobody waits for it; it is due again afterwards.
    """
    writer = writer_of(sink)
    idle = Idle(sink, writer, clock)
    clock.at_s = LOOK_EVERY_S
    is_held, is_over = threading.Event(), threading.Event()

    def write():
        with writer.alone:
            is_held.set()
            is_over.wait(timeout=5)

    batch = threading.Thread(target=write)
    batch.start()
    is_held.wait(timeout=5)
    idle.look()
    beside = sink.attended
    is_over.set()
    batch.join()
    idle.look()

    assert (0, 1) == (beside, sink.attended)


def test_a_sink_without_the_verb_is_left_alone(clock):
    """
    Four verbs are enough for most.
    """
    idle = Idle(MemorySink(), writer_of(MemorySink()), clock)
    clock.at_s = LOOK_EVERY_S

    assert idle.look() is None
