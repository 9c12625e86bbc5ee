"""A supervisor's reaction to failures: retry in place, or return to the checkpoint."""

import errno
import threading
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from typing import ClassVar

import pytest
from pyspark.errors import StreamingQueryException

from support.dead_letters import Letters
from support.parked_shop import KEY, change
from towpath.schemas.clock import Backoff
from towpath.settings import Kafka, WriteFrom
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.batch import BatchResult
from towpath.sinks.dead_letters.letter import Letter, Order, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.engine import supervisor as module
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.supervisor import (
    FINISH_WITHIN_S,
    Supervisor,
    SupervisorParts,
    _StoppedError,
    let_finish,
)
from towpath.sinks.errors import (
    CacheRefusedError,
    PartitionsAddedError,
    RecordsGoneError,
    TargetBusyError,
    TargetUnavailableError,
    TopicRemadeError,
)
from towpath.sinks.state.progress import State, progress_path, read_progress
from towpath.sinks.targets.memory import MemorySink

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
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        """Return a fixed time."""
        return 0.0


class Writer:
    """Fails as the test says, then writes; reads the progress before each attempt."""

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


class Unread:
    """Batches that are never read."""

    def __init__(self, _sink):
        """Accept any sink."""

    def portions(self, _span):
        """Return nothing."""
        return iter(())

    def close(self):
        """Do nothing."""


@pytest.fixture
def supervisor(tmp_path):
    """Return a supervisor without an engine and with little patience."""
    plan = QueryPlan(SINK, Kafka(bootstrap_servers="unused:9092"), tmp_path)
    (plan.checkpoint / "offsets").mkdir(parents=True)
    (plan.checkpoint / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":3}}')
    (plan.checkpoint / "sources" / "0").mkdir(parents=True)
    (plan.checkpoint / "sources" / "0" / "0").write_text('v1\n{"t":{"0":0}}')
    parts = SupervisorParts(lambda _: None, Unread, lambda _: None, None, Clock())
    report = Report(tmp_path, "cache", Clock())
    made = Supervisor(None, plan, parts, report, threading.Event())
    made._backoff = Backoff(first_s=0.001)
    return made


@pytest.fixture
def look(tmp_path):
    """Return a look at the sink's progress."""
    return lambda: read_progress(progress_path(tmp_path, "cache"), "cache")


def test_an_unavailable_target_is_retried_in_place(supervisor, look):
    """
    The batch is written in the end; meanwhile the progress has the error.
    """
    failures = (
        TargetUnavailableError("the cache does not answer"),
        TargetBusyError("the cache is full", retry_after_s=0.001),
    )
    writer = Writer(look, *failures)
    supervisor._deliver(writer, Unread(None), Event(), None, 0)
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


def test_a_permanent_failure_ends_the_query(supervisor, look):
    """
    The error reaches the engine, and its cause is kept for the report.
    """
    writer = Writer(look, CacheRefusedError("no right to FCALL"))
    with pytest.raises(CacheRefusedError):
        supervisor._deliver(writer, Unread(None), Event(), None, 0)

    assert (1, "no right to FCALL", None) == (
        len(writer.seen),
        str(supervisor._take_cause()),
        supervisor._take_cause(),
    )


class Steps:
    """A back-off that keeps the attempts that it was asked for."""

    def __init__(self, delay_s):
        self.attempts = []
        self._delay_s = delay_s

    def delay_s(self, attempt):
        """Return the fixed delay."""
        self.attempts.append(attempt)
        return self._delay_s


class Stop(Event):
    """A stop that keeps how long it was waited for, and lets no time pass."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        """Return at once."""
        self.waits.append(round(timeout, 3))
        return self.is_set()


def test_a_supervisor_backs_off_further_with_each_failure(supervisor, look):
    """A batch that was written begins with the first delay again."""
    supervisor._backoff = steps = Steps(0.0)
    away = TargetUnavailableError("the cache does not answer")
    supervisor._deliver(Writer(look, away, away, away), Unread(None), Event(), None, 0)
    supervisor._deliver(Writer(look, away), Unread(None), Event(), None, 0)

    assert [0, 1, 2, 0] == steps.attempts


def test_a_supervisor_waits_as_long_as_the_back_off_says(supervisor, look):
    """In pieces, so that a stop is noticed; a busy target may ask for longer."""
    supervisor._backoff, supervisor._stop = Steps(2.5), Stop()
    failures = (
        TargetUnavailableError("the cache does not answer"),
        TargetBusyError("the cache is full", retry_after_s=4.0),
        TargetBusyError("the cache is full", retry_after_s=1.0),
    )
    supervisor._deliver(Writer(look, *failures), Unread(None), Event(), None, 0)

    expected = [1, 1, 0.5, *[1] * 4, 1, 1, 0.5]

    assert expected == supervisor._stop.waits


def test_a_failure_that_stops_the_driver_is_not_waited_for(supervisor, look):
    """A stop in the middle of an attempt ends it, without another one."""
    supervisor._stop, supervisor._backoff = Stop(), Steps(2.5)

    class Stopping(Writer):
        def write(self, table, batch_id):
            supervisor._stop.set()
            return super().write(table, batch_id)

    writer = Stopping(look, TargetUnavailableError("the cache does not answer"))
    with pytest.raises(_StoppedError):
        supervisor._deliver(writer, Unread(None), Event(), None, 0)

    assert (1, [], 0) == (len(writer.seen), supervisor._stop.waits, look().retries)


def test_a_full_disk_is_reported_as_such(supervisor, look):
    """
    Its error is not one of ours.
    """
    writer = Writer(look, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space"):
        supervisor._deliver(writer, Unread(None), Event(), None, 0)
    supervisor._stop = Stop()
    supervisor._pause(supervisor._take_cause())

    assert look().error.startswith("disk full: No space left on device")


def test_a_stop_ends_a_sinks_back_off(supervisor, look):
    """
    A stopping driver does not wait for an unavailable target.
    """
    supervisor._stop.set()
    writer = Writer(look, TargetUnavailableError("the cache does not answer"))

    with pytest.raises(_StoppedError):
        supervisor._deliver(writer, Unread(None), Event(), None, 0)


def test_the_reports_counters_continue_after_a_restart(supervisor, look, tmp_path):
    """
    A new report begins where the old one ended.
    """
    supervisor._deliver(Writer(look), Unread(None), Event(), None, 0)
    supervisor._report = Report(tmp_path, "cache", Clock())
    supervisor._deliver(Writer(look), Unread(None), Event(), None, 0)

    assert (2, 4) == (look().batches, look().rows)


RACE = (
    "startingOffsets contains specific offsets, you must specify all TopicPartitions."
)


class Topics:
    """A cluster with the sink's topic."""

    def names(self):
        """List it."""
        return ["towpath.shop.orders"]

    def end_offsets(self, names):
        """Return its end."""
        return {name: {"0": 3} for name in names}

    def first_offsets(self, names):
        """Return its beginning."""
        return {name: {"0": 0} for name in names}

    def topic_ids(self, names):
        """Return its id."""
        return dict.fromkeys(names, "one")


class Query:
    """
    A query that fails as the test says, once it is waited for; else the driver stops.
    """

    isActive = True  # noqa: N815 - the engine's name
    status: ClassVar = {"isTriggerActive": False}

    def __init__(self, supervisor, failure):
        self._supervisor = supervisor
        self._failure = failure

    def awaitTermination(self, _timeout_s):  # noqa: N802 - the engine's name
        """Fail, or run until the stop."""
        if self._failure:
            raise StreamingQueryException(self._failure)
        self._supervisor._stop.set()
        return False

    def stop(self):
        """Do nothing."""


def run_with(supervisor, monkeypatch, *failures, letters=None):
    """Let queries fail in turn; return the number of starts."""
    supervisor._parts = SupervisorParts(
        lambda _: MemorySink(),
        Unread,
        lambda _: letters or Letters(),
        Topics(),
        Clock(),
    )
    waiting = list(failures)
    started = []

    def start(*_):
        started.append(1)
        return Query(supervisor, waiting.pop(0) if waiting else None)

    monkeypatch.setattr(module, "start_query", start)
    supervisor._supervise()
    return len(started)


def test_a_topic_created_while_a_query_starts_is_no_failure(
    supervisor, look, monkeypatch
):
    """
    The engine lists it and we do not: the next start, at once, has it.
    """
    started = run_with(supervisor, monkeypatch, RACE, RACE)

    assert (3, 0, None) == (started, look().retries, look().error)


def test_a_race_that_does_not_end_is_a_failure(supervisor, look, monkeypatch):
    """
    Nothing is retried for ever without a report.
    """
    run_with(supervisor, monkeypatch, *[RACE] * module.MAX_STARTS_AT_ONCE)

    assert 1 == look().retries


def test_any_other_failure_of_a_query_is_reported(supervisor, look, monkeypatch):
    """
    It restarts after a pause.
    """
    started = run_with(supervisor, monkeypatch, "the engine fell over")

    assert (2, 1) == (started, look().retries)


def test_an_abandoned_batch_did_not_end_its_query(supervisor, look, monkeypatch):
    """
    The query's own error is reported, and it restarts.
    """
    supervisor._cause = _StoppedError()
    started = run_with(supervisor, monkeypatch, "the engine fell over")

    assert (2, 1) == (started, look().retries)


def test_a_command_is_carried_out_though_no_query_lives_long(supervisor, monkeypatch):
    """
    The command may repair the cause that ends the query each time.
    """
    letters = Letters()
    letters.put([Letter(change(3, note="bad"), "too long", "orders", True)])
    letters.ask(Order("one", Verb.DISCARD, KEY))
    run_with(supervisor, monkeypatch, "the engine fell over", letters=letters)
    book = OpenDeadLetters().read(letters.entries())

    assert ({}, "discarded", []) == (
        book.orders,
        book.answers["one"].how,
        book.of(KEY),
    )


class Busy:
    """A query with a running batch for so many looks; it may end by itself."""

    def __init__(self, looks, *, ends_after=99):
        self.looks = looks
        self._ends_after = ends_after

    @property
    def isActive(self):  # noqa: N802 - the engine's name
        """Return whether it runs."""
        return self._ends_after > 0

    @property
    def status(self):
        """Return whether a batch runs."""
        self.looks -= 1
        self._ends_after -= 1
        return {"isTriggerActive": self.looks > 0}


class Waiting(Clock):
    """A clock that advances as it is waited for."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the waited time."""
        return self.now_s

    def wait(self, timeout_s):
        """Let time pass."""
        self.now_s += timeout_s


@pytest.mark.parametrize(
    ("looks", "ends_after", "left"), [(5, 99, 0), (5, 2, 3), (10**6, 10**7, None)]
)
def test_a_running_batch_is_finished_at_a_stop(looks, ends_after, left):
    """
    The wait ends when the engine has committed it, the query has ended, or time is out.
    """
    query, clock = Busy(looks, ends_after=ends_after), Waiting()
    let_finish(query, clock)

    assert (left is None) == (clock.now_s >= FINISH_WITHIN_S)
    assert left is None or query.looks == left


def test_no_batch_begins_once_the_driver_stops(supervisor, look):
    """
    None of it is written, so none of it is repeated.
    """
    supervisor._stop.set()
    writer = Writer(look)

    with pytest.raises(_StoppedError):
        supervisor._deliver(writer, Unread(None), Event(), None, 0)
    assert [] == writer.seen


def test_a_deleted_batch_ends_the_query(supervisor, look):
    """
    Its next start finds the missing records, and has them refetched.
    """
    (supervisor._plan.checkpoint / "offsets" / "1").write_text('v1\n{}\n{"t":{"0":2}}')
    writer = Writer(look)
    with pytest.raises(RecordsGoneError):
        supervisor._deliver(writer, Unread(None), Event(), None, 1)

    assert ([], True) == (
        writer.seen,
        isinstance(supervisor._take_cause(), RecordsGoneError),
    )


def test_a_batch_of_an_ended_query_is_not_retried(supervisor, look):
    """
    The engine waits for it before the next query of its name may start.
    """
    over = Event()

    class Ending(Writer):
        def write(self, table, batch_id):
            over.set()
            return super().write(table, batch_id)

    supervisor._backoff = Backoff(first_s=60.0)
    writer = Ending(look, TargetUnavailableError("the cache does not answer"))
    with pytest.raises(_StoppedError):
        supervisor._deliver(writer, Unread(None), over, None, 0)

    assert len(writer.seen) == 1


class Starting:
    """One start of a query: the driver stops as soon as it runs."""

    def __init__(self, supervisor, monkeypatch, *failures):
        self.seen = []
        self.delivers = []
        self.letters = Noting(self.seen)
        self.topics = Topics()
        self.supervisor = supervisor
        self.make_sink = lambda _: Closing(self.seen)
        self._patch = monkeypatch
        self._failures = list(failures)

    def note(self, owner, name, word, error=None):
        """Note each call of a method, instead of making it; the first may fail."""
        errors = [] if error is None else [error]

        def called(*_):
            self.seen.append(word)
            if errors:
                raise errors.pop()

        self._patch.setattr(owner, name, called)

    def run(self, **parts):
        """Supervise until the driver stops; return what was noted."""
        self.supervisor._parts = SupervisorParts(
            self.make_sink,
            Unread,
            lambda _: self.letters,
            self.topics,
            Clock(),
            **parts,
        )
        self._patch.setattr(module, "start_query", self._start)
        self.supervisor._supervise()
        return self.seen

    def _start(self, _spark, _plan, _cluster, deliver):
        self.seen.append("start")
        self.delivers.append(deliver)
        failure = self._failures.pop(0) if self._failures else None
        return Query(self.supervisor, failure)


class Closing(MemorySink):
    """A sink that notes when it is opened and closed."""

    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def open(self):
        self._seen.append("open sink")

    def close(self):
        self._seen.append("close sink")


class Noting(Letters):
    """Dead letters that note when they are read and closed."""

    def __init__(self, seen):
        super().__init__()
        self._noted = seen

    def entries(self):
        """Note it."""
        self._noted.append("read letters")
        return super().entries()

    def close(self):
        """Note it."""
        self._noted.append("close letters")


def test_a_start_attends_to_everything_in_order(supervisor, monkeypatch):
    """Routes, altered columns, dead letters, checkpoint and orders; then it runs."""
    starting = Starting(supervisor, monkeypatch)
    starting.note(module.BlockChanges, "run", "routes")
    starting.note(module.ColumnChanges, "look", "columns")
    starting.note(module.Recovery, "run", "checkpoint")
    starting.note(module.DeadLetterOrders, "recall", "recall orders")
    starting.note(module.DeadLetterOrders, "attend", "orders")
    starting.note(module, "let_finish", "finish")

    expected = [
        *("open sink", "routes", "columns", "read letters", "recall orders"),
        *("checkpoint", "orders", "start", "finish", "close letters", "close sink"),
    ]

    assert expected == starting.run()


def test_parked_keys_are_recalled_at_a_start(supervisor, look, monkeypatch):
    """Nothing of a key is written before what waits of it."""
    starting = Starting(supervisor, monkeypatch)
    starting.letters.put([Letter(change(3, note="bad"), "too long", "orders", True)])
    starting.run()

    assert 1 == look().parked


def test_a_first_topic_is_waited_for(supervisor, monkeypatch):
    """The engine refuses a pattern that matches nothing."""
    starting = Starting(supervisor, monkeypatch)
    answers = iter([[], []])
    starting.topics.names = lambda: next(answers, ["towpath.shop.orders"])
    supervisor._stop = Stop()
    starting.run()

    assert [module.GLANCE_S] * 2 == supervisor._stop.waits


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        (TopicRemadeError("it was made again"), 2),
        (PartitionsAddedError("there are more"), 2),
        (TargetUnavailableError("away"), 1),
        (TargetBusyError("full", retry_after_s=1.0), 1),
    ],
)
def test_only_changed_topics_end_a_query_from_beside_its_batches(
    supervisor, look, monkeypatch, error, starts
):
    """
    An upkeep failure is retried later; the query continues.
    """
    starting = Starting(supervisor, monkeypatch)
    starting.note(module.Recovery, "look", "look", error)
    seen = starting.run()

    assert (starts, starts - 1) == (seen.count("look"), look().retries)


def test_a_batch_is_tried_no_more_once_its_query_has_ended(supervisor, monkeypatch):
    """The engine waits for the batch before it starts the query again."""
    starting = Starting(supervisor, monkeypatch, "the engine fell over")
    starting.run()

    assert [True, True] == [d.args[-1].is_set() for d in starting.delivers]


class InColumns(Closing):
    """A sink that takes columns."""

    def lay_out(self, _columns):
        """Lay out nothing."""

    def take_rows(self, _route, _rows):
        """Take nothing."""


class Sending(Closing):
    """A sink that is sent portions."""

    def send(self, _batch):
        """Take nothing."""

    def send_columns(self, _columns):
        """Take nothing."""


@pytest.mark.parametrize(
    ("kind", "write_from", "has_executor", "expected"),
    [
        (Closing, "driver", True, "FromDriver"),
        (InColumns, "driver", True, "FromColumns"),
        (Sending, "driver", True, "InPortions"),
        (InColumns, "executors", True, "FromExecutors"),
        (InColumns, "executors", False, "FromColumns"),
    ],
)
def test_a_sink_is_written_in_the_way_that_it_offers(
    supervisor, monkeypatch, kind, write_from, has_executor, expected
):
    """By the executors only where that is configured and possible."""
    starting = Starting(supervisor, monkeypatch)
    starting.make_sink = lambda _: kind(starting.seen)
    sink = SINK.model_copy(update={"write_from": WriteFrom(write_from)})
    supervisor._plan = replace(supervisor._plan, sink=sink)
    made = []
    for name in ("FromDriver", "FromColumns", "InPortions", "FromExecutors"):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, real=real, n=name: made.append(n) or real(*a)
        )
    starting.run(on_executor=(lambda _: MemorySink) if has_executor else None)

    assert expected == made[-1]
