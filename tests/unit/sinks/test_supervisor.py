"""A supervisor's reaction to failures: retry in place, or return to the checkpoint."""

import errno
import json
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from threading import Event, Thread
from typing import ClassVar

import pytest
import structlog
from pyspark.errors import StreamingQueryException
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from support.dead_letters import Letters
from support.parked_shop import KEY, change
from towpath.schemas.clock import Backoff
from towpath.settings import Kafka
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.task import AbandonedTasks
from towpath.sinks.dead_letters.entries import DeadLetter, DeadLetterRequest, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.engine import supervisor as module
from towpath.sinks.engine.column_changes import NoAnnouncedShapes
from towpath.sinks.engine.query import FINISH_WITHIN_S, QueryPlan, wait_for_batch
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.supervisor import Supervisor, SupervisorParts
from towpath.sinks.errors import (
    CacheRefusedError,
    PartitionsAddedError,
    RecordsGoneError,
    TargetBusyError,
    TargetUnavailableError,
    TopicRemadeError,
)
from towpath.sinks.kinds import kind_of
from towpath.sinks.ports import Checkpoint
from towpath.sinks.state.files import TopicIds
from towpath.sinks.state.progress import (
    Progress,
    State,
    progress_path,
    replace_file,
    stored_progress,
    write_progress,
)
from towpath.sinks.targets.memory import MemorySink

SINK = SinkSettings.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [{"topic": "towpath.shop.orders", "name": "orders"}],
    }
)


LOG = structlog.get_logger("towpath.sinks.cache")


class Clock:
    """A clock that stands still."""

    def now(self):
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        """Return a fixed time."""
        return 0.0


class UnreadBatches:
    """Batches that are never read."""

    def __init__(self, _sink=None):
        """Accept any sink."""

    def slices(self, _span):
        """Return nothing."""
        return iter(())

    def take_oldest_ms(self):
        """Return no time."""

    def check(self, _span):
        """Find nothing."""

    def close(self):
        """Do nothing."""


class RecordedBackoff:
    """A backoff that records the attempts."""

    def __init__(self, delay_s):
        self.attempts = []
        self._delay_s = delay_s

    def delay_s(self, attempt):
        """Return the fixed delay."""
        self.attempts.append(attempt)
        return self._delay_s


class RecordedStop(Event):
    """A stop event that records the waits for it, and returns immediately."""

    def __init__(self, *, after_waits=None):
        super().__init__()
        self.waits = []
        self._after_waits = after_waits

    def wait(self, timeout=None):
        """Return immediately; the stop may be requested during one of the waits."""
        self.waits.append(round(timeout, 3))
        if len(self.waits) == self._after_waits:
            self.set()
        return self.is_set()


class Topics:
    """A cluster with the sink's topic."""

    def names(self):
        """List the topic."""
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


class Target(MemorySink):
    """
    A sink that fails as the test requests, then writes two of three rows.

    It reads the progress before each attempt, and records when it is opened and closed.
    """

    def __init__(self, bench):
        super().__init__()
        self.failures = []
        self.attempts = []
        self._bench = bench

    def open(self):
        """Record the call."""
        self._bench.seen.append("open sink")
        LOG.info("target opened")

    def flush(self):
        """Fail, or return fixed counts."""
        LOG.info("target flushed")
        self.attempts.append(self._bench.read_progress())
        if self.failures:
            raise self.failures.pop(0)
        return Checkpoint(applied=2, stale=1)

    def close(self):
        """Record the call."""
        self._bench.seen.append("close sink")


class Query:
    """
    A query that takes its steps while it is awaited; after them, the driver stops.

    A number is a batch to deliver, a string is an engine failure; anything else is
    called with the query.
    """

    isActive = True  # noqa: N815 - the engine's name
    status: ClassVar = {"isTriggerActive": False}

    def __init__(self, engine, deliver, steps):
        self._engine = engine
        self._deliver = deliver
        self._steps = steps

    def awaitTermination(self, _timeout_s):  # noqa: N802 - the engine's name
        """Take the steps, and run until the stop; fail at the first that fails."""
        for step in self._steps:
            if isinstance(step, str):
                raise StreamingQueryException(step)
            if callable(step):
                step(self)
            elif error := self.batch(step):
                raise StreamingQueryException(type(error).__name__)
        self._engine.stop.set()
        return False

    def begin(self, batch_id):
        """Deliver a batch in its own thread, as the engine does; return the thread."""
        thread = Thread(target=self.batch, args=(batch_id,), daemon=True)
        thread.start()
        return thread

    def batch(self, batch_id):
        """Deliver a batch; keep and return its error."""
        self._engine.write_offsets(batch_id)
        try:
            self._deliver(None, batch_id)
        except Exception as error:  # noqa: BLE001 - as the engine does
            self._engine.errors.append(error)
            return error
        return None

    def stop(self):
        """Run the action that the test has set for the end of the query."""
        self._engine.at_end(self)


class Engine:
    """
    The engine: each start of a query takes the next list of steps.

    It keeps the errors of batches, and the error that the progress shows at each start.
    """

    def __init__(self, bench):
        self.stop = bench.stop
        self.errors = []
        self.reported = []
        self.runs = []
        self.at_end = lambda _query: None
        self.ends = {0: 3}
        self._checkpoint = bench.plan.checkpoint
        self._seen = bench.seen
        self._read_progress = bench.read_progress

    def write_offsets(self, batch_id):
        """Write the start of the query and the end of a batch to the checkpoint."""
        for name in ("offsets", "sources/0"):
            (self._checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self._checkpoint / "sources/0/0").write_text('v1\n{"t":{"0":0}}')
        end = json.dumps({"t": {"0": self.ends[batch_id]}})
        path = self._checkpoint / "offsets" / str(batch_id)
        path.write_text(f"v1\n{{}}\n{end}")

    def start(self, _spark, _plan, _cluster, deliver):
        """Start a query."""
        self._seen.append("start")
        self.reported.append(self._read_progress().error)
        return Query(self, deliver, self.runs.pop(0) if self.runs else ())


class RecordingLetters(Letters):
    """Dead letters that record when they are read, resolved and closed."""

    def __init__(self, seen):
        super().__init__()
        self._calls = seen
        self._before = None

    def opened(self, before):
        """Keep the step that precedes resolutions."""
        self._before = before
        return self

    def resolve(self, resolutions):
        """Record the call, after that step."""
        self._before()
        self._calls.append("resolve")
        super().resolve(resolutions)

    def entries(self):
        """Record the call."""
        self._calls.append("read letters")
        return super().entries()

    def close(self):
        """Record the call."""
        self._calls.append("close letters")


class Bench:
    """A supervisor with a simulated engine, target and cluster."""

    def __init__(self, folder, monkeypatch):
        self.seen = []
        self.stop = RecordedStop()
        self.backoff = Backoff(first_s=0.001)
        self.letters = RecordingLetters(self.seen)
        self.target = Target(self)
        self.topics = Topics()
        self._folder = folder
        self._patch = monkeypatch
        self.plan = self._plan(SINK)
        self.engine = Engine(self)

    def read_progress(self):
        """Return the sink's progress."""
        return stored_progress(progress_path(self._folder, "cache"), "cache")

    def record(self, owner, name, label, error=None):
        """Record each call of a method instead of making it; the first may fail."""
        errors = [] if error is None else [error]

        def called(*_):
            self.seen.append(label)
            if errors:
                raise errors.pop()

        self._patch.setattr(owner, name, called)

    def run(self, *runs, sink=SINK, **parts):
        """Supervise until the driver stops; return the number of query starts."""
        self.engine.runs = [*runs]
        self.engine.stop = self.stop
        self._patch.setattr(module, "start_query", self.engine.start)
        made = SupervisorParts(
            lambda _: closing(self.target),
            UnreadBatches,
            lambda _, before: self.letters.opened(before),
            self.topics,
            Clock(),
            backoff=self.backoff,
            **parts,
        )
        report = Report(self._folder, "cache", Clock())
        supervisor = Supervisor(None, self._plan(sink), made, report, self.stop)
        supervisor.start()
        assert supervisor.join(20)
        return len(self.engine.reported)

    def _plan(self, sink):
        return QueryPlan(sink, Kafka(bootstrap_servers="unused:9092"), self._folder)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Return a bench with a supervisor."""
    return Bench(tmp_path, monkeypatch)


UNAVAILABLE = TargetUnavailableError("the cache does not answer")
FELL_OVER = ["the engine fell over"]
RACE = [
    "startingOffsets contains specific offsets, you must specify all TopicPartitions."
]


def test_log_records_of_a_target_name_the_sink(bench):
    """
    Several sinks of one kind share a driver, and targets do not know their sink's name.
    """
    with capture_logs([merge_contextvars]) as logs:
        bench.run([0])
        LOG.info("after the sink")

    assert [("target opened", "cache"), ("target flushed", "cache")] == [
        (log["event"], log.get("sink"))
        for log in logs
        if log["event"].startswith("target")
    ]
    assert "sink" not in logs[-1]


def test_an_unavailable_target_is_retried_in_place(bench):
    """
    The batch is written eventually; until then, the progress shows the error.
    """
    full = TargetBusyError("the cache is full", retry_after_s=0.001)
    bench.target.failures = [UNAVAILABLE, full]
    started = bench.run([0])
    attempts, done = bench.target.attempts, bench.read_progress()

    assert (
        1,
        [State.RUNNING, State.FAILED, State.FAILED],
        True,
        (State.RUNNING, None, 1, 2, 1, {"t": {"0": 3}}),
    ) == (
        started,
        [progress.state for progress in attempts],
        "the cache is full" in attempts[2].error,
        (done.state, done.error, done.batches, done.rows, done.stale, done.applied),
    )


def test_a_permanent_failure_ends_the_query(bench):
    """
    The batch's own error is reported, but not again for the next failure.
    """
    refused = CacheRefusedError("no permission for FCALL")
    bench.target.failures = [refused]
    bench.run([0], FELL_OVER)
    none, first, second = bench.engine.reported

    assert (1, [refused], None) == (
        len(bench.target.attempts),
        bench.engine.errors,
        none,
    )
    assert first.startswith("no permission for FCALL")
    assert "the engine fell over" in second


def test_a_supervisor_backs_off_further_with_each_failure(bench):
    """After a written batch, the first delay applies again."""
    bench.backoff = RecordedBackoff(0.0)
    bench.target.failures = [UNAVAILABLE, UNAVAILABLE, UNAVAILABLE]
    bench.run([0, lambda _: bench.target.failures.append(UNAVAILABLE), 0])

    assert [0, 1, 2, 0] == bench.backoff.attempts


def test_a_supervisor_waits_as_long_as_the_backoff_requires(bench):
    """It waits in steps, to notice a stop; a busy target may request a longer wait."""
    bench.backoff = RecordedBackoff(2.5)
    bench.target.failures = [
        UNAVAILABLE,
        TargetBusyError("the cache is full", retry_after_s=4.0),
        TargetBusyError("the cache is full", retry_after_s=1.0),
    ]
    bench.run([0])

    assert [1, 1, 0.5, *[1] * 4, 1, 1, 0.5] == bench.stop.waits


def test_no_wait_follows_a_failure_once_the_driver_stops(bench):
    """A stop during an attempt is followed by neither a wait nor another attempt."""
    bench.backoff = RecordedBackoff(2.5)
    bench.target = InterruptedTarget(bench, bench.stop.set)
    bench.run([0])

    assert (1, [], 0) == (
        len(bench.target.attempts),
        bench.stop.waits,
        bench.read_progress().retries,
    )


def test_a_full_disk_is_reported_as_such(bench):
    """
    The error is the operating system's, not one of ours.
    """
    bench.target.failures = [OSError(errno.ENOSPC, "No space left on device")]
    bench.run([0])

    assert bench.engine.reported[1].startswith("disk full: No space left on device")


def test_a_stop_ends_the_backoff_of_a_sink(bench):
    """
    A stopping driver does not wait for an unavailable target.
    """
    bench.stop = RecordedStop(after_waits=2)
    bench.backoff = RecordedBackoff(60.0)
    bench.target.failures = [UNAVAILABLE, UNAVAILABLE]
    bench.run([0])

    assert (1, 2) == (len(bench.target.attempts), len(bench.stop.waits))


def test_the_reports_counters_continue_after_a_restart(bench, tmp_path, monkeypatch):
    """
    A new report begins where the old one ended.
    """
    bench.run([0])
    later = Bench(tmp_path, monkeypatch)
    later.engine.ends = {0: 6}
    later.run([0])

    assert (2, 4) == (bench.read_progress().batches, bench.read_progress().rows)


def test_a_topic_created_while_a_query_starts_is_not_a_failure(bench):
    """
    The engine lists the topic before we do; an immediate second start includes it.
    """
    started = bench.run(RACE, RACE)

    assert (3, 0, None) == (
        started,
        bench.read_progress().retries,
        bench.read_progress().error,
    )


def test_a_race_that_does_not_end_is_a_failure(bench):
    """
    Nothing is retried forever without a report.
    """
    bench.run(*[RACE] * module.MAX_IMMEDIATE_STARTS)

    assert 1 == bench.read_progress().retries


def test_any_other_failure_of_a_query_is_reported(bench):
    """
    The query restarts after a pause.
    """
    assert (2, 1) == (bench.run(FELL_OVER), bench.read_progress().retries)


def test_an_abandoned_batch_does_not_count_as_the_cause_of_a_failure(bench):
    """
    The query's own error is reported, and the query restarts; no batch is attempted.
    """
    bench.engine.at_end = lambda query: query.batch(0)

    assert (2, 1, []) == (
        bench.run(FELL_OVER),
        bench.read_progress().retries,
        bench.target.attempts,
    )


def test_a_command_is_carried_out_even_if_each_query_fails(bench):
    """
    The command may remove the cause of the failures.
    """
    letters = bench.letters
    letters.put([DeadLetter(change(3, note="bad"), "too long", "orders", True)])
    letters.request(DeadLetterRequest("one", Verb.DISCARD, KEY))
    bench.run(FELL_OVER)
    open_dead_letters = OpenDeadLetters().read(letters.entries())

    assert ({}, "discarded", []) == (
        open_dead_letters.requests,
        open_dead_letters.replies["one"].how,
        open_dead_letters.of(KEY),
    )


class BusyQuery:
    """A query whose batch runs for a number of checks; the query may end by itself."""

    def __init__(self, checks, *, ends_after=99):
        self.checks = checks
        self._ends_after = ends_after

    @property
    def isActive(self):  # noqa: N802 - the engine's name
        """Return whether it is running."""
        return self._ends_after > 0

    @property
    def status(self):
        """Return whether a batch is running."""
        self.checks -= 1
        self._ends_after -= 1
        return {"isTriggerActive": self.checks > 0}


class Waiting(Clock):
    """A clock that advances only in ``wait``."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the time spent waiting."""
        return self.now_s

    def wait(self, timeout_s):
        """Advance the clock."""
        self.now_s += timeout_s


@pytest.mark.parametrize(
    ("checks", "ends_after", "left"), [(5, 99, 0), (5, 2, 3), (10**6, 10**7, None)]
)
def test_a_running_batch_is_finished_at_a_stop(checks, ends_after, left):
    """
    The wait ends once the batch is committed, the query has ended, or time is up.
    """
    query, clock = BusyQuery(checks, ends_after=ends_after), Waiting()
    wait_for_batch(query, clock)

    assert (left is None) == (clock.now_s >= FINISH_WITHIN_S)
    assert left is None or query.checks == left


def test_no_batch_begins_once_the_driver_stops(bench):
    """
    None of the batch is written, so none of it is repeated.
    """
    bench.run([lambda _: bench.stop.set(), 0])

    assert [] == bench.target.attempts


def test_a_deleted_batch_ends_the_query(bench):
    """
    Its next start finds the missing records, and requests their rows.
    """
    bench.engine.ends[1] = 2
    bench.run([0, 1])

    assert (1, [RecordsGoneError]) == (
        len(bench.target.attempts),
        [type(error) for error in bench.engine.errors],
    )


class InterruptedTarget(Target):
    """An unavailable target that runs an action during each attempt."""

    def __init__(self, bench, during):
        super().__init__(bench)
        self._during = during

    def flush(self):
        """Run the action, then fail."""
        self._during()
        self.failures = [UNAVAILABLE]
        return super().flush()


def test_a_batch_of_an_ended_query_is_not_retried(bench):
    """
    The engine waits for it before the next query of the same name may start.
    """
    is_running, has_ended = Event(), Event()
    bench.backoff = RecordedBackoff(60.0)
    bench.target = InterruptedTarget(
        bench, lambda: is_running.set() or has_ended.wait(20)
    )
    batches = []

    def end(_query):
        has_ended.set()
        batches[0].join(20)

    bench.engine.at_end = end
    bench.run(
        [
            lambda query: batches.append(query.begin(0)),
            lambda _: is_running.wait(20),
            *FELL_OVER,
        ]
    )

    assert 1 == len(bench.target.attempts)


def test_a_start_runs_its_steps_in_order(bench):
    """The query starts after routes, columns, dead letters, checkpoint and requests."""
    bench.record(module.BlockChanges, "run", "routes")
    bench.record(module.ColumnChanges, "check", "columns")
    bench.record(module.Recovery, "run", "checkpoint")
    bench.record(module.DeadLetterRequests, "restore", "recall requests")
    bench.record(module.DeadLetterRequests, "process", "requests")
    bench.record(module, "wait_for_batch", "finish")
    bench.run()

    expected = [
        *("open sink", "routes", "columns", "read letters", "recall requests"),
        *("checkpoint", "requests", "start", "finish", "close letters", "close sink"),
    ]

    assert expected == bench.seen


def test_the_connection_of_the_announced_shapes_is_closed(bench):
    """It is closed even after an error of the query whose traceback refers to it."""
    announced = NoAnnouncedShapes()
    bench.record(announced, "close", "close shapes")
    bench.run(FELL_OVER, make_announced=lambda: announced)

    closes = [label for label in bench.seen if label.startswith("close")]

    assert 2 * ["close letters", "close shapes", "close sink"] == closes


def test_a_recreated_topic_counts_as_unapplied_before_its_first_batch(bench):
    """
    The offsets of the deleted topic would otherwise be taken for those of the new one.
    """
    topic = "towpath.shop.orders"
    old = b'{"%s": {"0": 3}}' % topic.encode()
    for name in ("metadata", "offsets/0", "commits/0"):
        replace_file(bench.plan.checkpoint / name, b"v1\n{}\n" + old)
    replace_file(bench.plan.checkpoint / "metadata", b"{}")
    applied = Progress("cache", applied={topic: {"0": 3}}, batches=1)
    write_progress(progress_path(bench.plan.state_folder, "cache"), applied)
    TopicIds(bench.plan.checkpoint.parent).note({topic: "the deleted topic's"})
    found = []
    bench.run([lambda _query: found.append(bench.read_progress().applied)])

    assert [{topic: {"0": 0}}] == found


def test_parked_keys_are_recalled_at_a_start(bench):
    """No record of a key is written before its parked records."""
    bench.letters.put([DeadLetter(change(3, note="bad"), "too long", "orders", True)])
    bench.run()

    assert 1 == bench.read_progress().parked


def test_a_sink_waits_for_its_first_topic(bench):
    """The engine refuses a pattern that matches nothing."""
    answers = iter([[], []])
    bench.topics.names = lambda: next(answers, ["towpath.shop.orders"])
    bench.run()

    assert [module.STOP_CHECK_S] * 2 == bench.stop.waits


class Copies:
    """Copies that record calls, for a sink that a driver elsewhere has run."""

    was_running = True

    def __init__(self, seen):
        self._seen = seen

    @contextmanager
    def kept(self):
        """Record the end."""
        yield
        self._seen.append("release")

    def claim(self):
        """Replace nothing."""
        self._seen.append("claim")
        return False

    def check(self):
        """Refuse nothing."""
        self._seen.append("check")

    def save(self):
        """Record the call."""
        self._seen.append("copy")


def test_a_resolved_dead_letter_has_its_refetch_in_the_copies(bench):
    """
    Otherwise the loss of the machine would lose the refetch, but not the resolution.
    """
    bench.letters.put([DeadLetter(change(3, note="bad"), "too long", "orders", True)])
    bench.letters.request(DeadLetterRequest("one", Verb.DISCARD, KEY))
    bench.run(make_copies=lambda _: Copies(bench.seen))

    seen = [one for one in bench.seen if one in {"claim", "copy", "resolve", "release"}]
    assert "copy" == seen[seen.index("resolve") - 1]
    assert ("claim", "release") == (seen[0], seen[-1])
    # Once between batches, and once before the resolution.
    assert ["claim", "copy", "copy", "resolve"] == seen[:4]


class UncopiedBatch(Copies):
    """Copies that cannot be stored after the first batch, and can be from then on."""

    def save(self):
        """Record the call, and fail after the first batch."""
        before = self._seen[-1]
        super().save()
        if before == "check" and self._seen.count("check") == 1:
            message = "no broker"
            raise TargetUnavailableError(message)


def test_a_batch_whose_state_was_not_copied_is_counted_once(bench):
    """
    The engine repeats it, because the copy failed after its report.
    """
    started = bench.run([0], [0], make_copies=lambda _: UncopiedBatch(bench.seen))

    assert 2 == started
    assert (1, 2) == (bench.read_progress().batches, bench.read_progress().rows)


def test_a_sink_of_an_earlier_driver_is_checked_and_its_floors_wait(bench, monkeypatch):
    """
    The earlier driver may have calls in flight, and another may take over at any time.
    """
    made = []

    def abandoned(clock, **facts):
        made.append(facts)
        return AbandonedTasks(clock, **facts)

    monkeypatch.setattr(module, "AbandonedTasks", abandoned)
    bench.run([0], make_copies=lambda _: Copies(bench.seen))

    assert [{"is_first_run": True, "was_running": True}] == made
    assert "check" in bench.seen


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        (TopicRemadeError("it was recreated"), 2),
        (PartitionsAddedError("there are more"), 2),
        (TargetUnavailableError("no answer"), 1),
        (TargetBusyError("full", retry_after_s=1.0), 1),
    ],
)
def test_outside_of_batches_only_changed_topics_end_a_query(bench, error, starts):
    """
    An upkeep failure is retried later; the query continues.
    """
    bench.record(module.Recovery, "check", "check topics", error)
    bench.run()

    assert (starts, starts - 1) == (
        bench.seen.count("check topics"),
        bench.read_progress().retries,
    )


@pytest.mark.parametrize(("has_executor", "expected"), [(True, True), (False, False)])
def test_executors_write_if_the_driver_is_built_with_them(
    bench, monkeypatch, has_executor, expected
):
    """
    Otherwise the driver applies every batch.
    """
    made = []
    real = module.SinkWriter
    monkeypatch.setattr(
        module, "SinkWriter", lambda *given: made.append(given) or real(*given)
    )
    bench.run(on_executor=lambda _: MemorySink if has_executor else None)

    assert expected == (made[-1][3] is not None)
    assert kind_of(SINK).pipelined_records == made[-1][4]
