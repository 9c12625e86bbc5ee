"""How a supervisor takes failures: again in place, or back to the checkpoint."""

import threading
from datetime import UTC, datetime

import pytest

from towpath.schemas.backoff import Backoff
from towpath.settings import Sink as SinkSettings
from towpath.sinks.errors import (
    CacheRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.jobs.batch import BatchResult
from towpath.sinks.jobs.query import QueryPlan
from towpath.sinks.jobs.report import Report
from towpath.sinks.jobs.supervisor import Parts, Supervisor, _StoppedError
from towpath.sinks.progress import State, progress_path, read_progress

RESULT = BatchResult(records=3, rows=2, stale=1, dead_letters=0)
SINK = SinkSettings.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [{"topic": "towpath.shop.orders", "name": "orders"}],
    }
)


class Clock:
    """A clock that stands still."""

    def now(self):
        """Tell a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        """Tell no time."""
        return 0.0


class Writer:
    """Fails as told, then writes; looks at the progress before each attempt."""

    def __init__(self, look, *failures):
        self.seen = []
        self._look = look
        self._failures = list(failures)

    def write(self, _table, _batch_id):
        """Fail, or write."""
        self.seen.append(self._look())
        if self._failures:
            raise self._failures.pop(0)
        return RESULT


@pytest.fixture
def supervisor(tmp_path):
    """Lend a supervisor that has no engine and little patience."""
    plan = QueryPlan(SINK, "unused:9092", tmp_path)
    (plan.checkpoint / "offsets").mkdir(parents=True)
    (plan.checkpoint / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":3}}')
    parts = Parts(lambda _: None, lambda _: None, None, Clock())
    report = Report(tmp_path, "cache", Clock())
    made = Supervisor(None, plan, parts, report, threading.Event())
    made._backoff = Backoff(first_s=0.001)
    return made


@pytest.fixture
def look(tmp_path):
    """Lend a glance at the sink's progress."""
    return lambda: read_progress(progress_path(tmp_path, "cache"), "cache")


def test_a_target_that_does_not_answer_is_tried_again_in_place(supervisor, look):
    """The batch is written in the end; meanwhile the progress tells what is wrong."""
    failures = (
        TargetUnavailableError("the cache does not answer"),
        TargetBusyError("the cache is full", retry_after_s=0.001),
    )
    writer = Writer(look, *failures)
    supervisor._deliver(writer, None, 0)
    states = [progress.state for progress in writer.seen]
    done = look()

    assert (
        [State.STARTING, State.FAILED, State.FAILED],
        True,
        (State.RUNNING, None, 1, 2, 1, {"t": {"0": 3}}),
    ) == (
        states,
        "the cache is full" in writer.seen[2].error,
        (done.state, done.error, done.batches, done.rows, done.stale, done.applied),
    )


def test_a_failure_that_waiting_does_not_cure_ends_the_query(supervisor, look):
    """The error reaches the engine, and its cause is kept for the report."""
    writer = Writer(look, CacheRefusedError("no right to FCALL"))
    with pytest.raises(CacheRefusedError):
        supervisor._deliver(writer, None, 0)

    assert (1, "no right to FCALL", None) == (
        len(writer.seen),
        str(supervisor._take_cause()),
        supervisor._take_cause(),
    )


def test_a_stop_ends_the_waiting(supervisor, look):
    """A driver that is told to stop does not wait for a dead target."""
    supervisor._stop.set()
    writer = Writer(look, TargetUnavailableError("the cache does not answer"))

    with pytest.raises(_StoppedError):
        supervisor._deliver(writer, None, 0)


def test_counters_go_on_after_a_restart(supervisor, look, tmp_path):
    """A new report begins where the old one ended."""
    supervisor._deliver(Writer(look), None, 0)
    supervisor._report = Report(tmp_path, "cache", Clock())
    supervisor._deliver(Writer(look), None, 0)

    assert (2, 4) == (look().batches, look().rows)
