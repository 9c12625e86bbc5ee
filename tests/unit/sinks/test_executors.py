"""A batch on the executors: who writes which rows, in which order, and the outcomes."""

import itertools
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from support.dead_letters import FixedPositions, Letters, RecordedRepairs, context_of
from support.kafka_rows import (
    BACKFILL,
    TOPIC,
    batch_of,
    row,
    rows_of,
    table,
)
from support.parked_shop import change
from support.slice_tasks import ListedTasks, Results
from towpath.schemas import headers as names
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Sink as SinkSettings
from towpath.settings import WriteFrom
from towpath.sinks.apply import task as tasks
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.task import (
    AbandonedTasks,
    Opening,
    PartitionTask,
    encode_slice,
    run_task,
)
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetter, ParkedKey
from towpath.sinks.engine import executors
from towpath.sinks.engine.executors import EncodingExecutors, Executors
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.errors import (
    BatchRefusedError,
    BrokerUnavailableError,
    ExecutorsFailedError,
    IndexGoneError,
    RecordsGoneError,
    SinkTakenOverError,
    TargetBusyError,
    TargetUnavailableError,
    TasksAbandonedError,
)
from towpath.sinks.targets.memory import MemorySink

SINK = SinkSettings.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "write_from": "executors",
        "spread_from_records": 3,
        "route": [{"topic": TOPIC, "name": "orders"}],
    }
)


LOG = structlog.get_logger("towpath.sinks.cache")


class RecordingSink(MemorySink):
    """A sink that records its calls."""

    def __init__(self, name, notes, failure=None, rows=None):
        super().__init__()
        self.name = name
        self.notes = notes
        self.failure = failure
        if rows is not None:
            self.rows = rows

    def open(self):
        self.notes.append((self.name, "open"))

    def apply(self, batch):
        self.notes.append((self.name, "apply", len(batch.changes), batch.safe))
        if self.failure is not None:
            raise self.failure
        super().apply(batch)

    def flush(self):
        self.notes.append((self.name, "flush"))
        LOG.info("target flushed")
        return super().flush()

    def close(self):
        self.notes.append((self.name, "close"))


class SingleTask:
    """A single task that reads through a function."""

    def __init__(self, read):
        self._read = read

    def run(self, function, _schema):
        """Run the task."""
        return Results([*function(self._read)])


class ManualClock:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the time that the test has set."""
        return self.now_s


class Bench:
    """A sink's query whose batches run on executors, and a record of its calls."""

    def __init__(self, failure=None, heads=None):
        self.notes = []
        self.letters = Letters()
        self.clock = ManualClock()
        self.abandoned = AbandonedTasks(self.clock, is_first_run=True)
        self.context = replace(
            context_of(self.letters, repairs=RecordedRepairs(), heads=heads),
            abandoned=self.abandoned,
        )
        self.driver_sink = RecordingSink("driver", self.notes)
        self.failure = failure
        self.writer = RecordWriter(Routes(SINK), self.driver_sink, self.context)
        self.writing = self.writer_with(self.make)

    def writer_with(self, make):
        """Make the writer of batches from the function that makes executors' sinks."""
        spread = Executors(SINK, make, self.abandoned)
        return SinkWriter(self.writer, self.driver_sink, self.context, spread)

    def make(self):
        """Make the sink of an executor, on the same rows."""
        return RecordingSink(
            "executor", self.notes, self.failure, self.driver_sink.rows
        )

    def write(self, *rows, batch_id=1, records=10):
        """Write a batch with a bound on its records."""
        self.notes.clear()
        batch = batch_of(rows_of(rows).slices, records, ListedTasks(table(*rows)))
        return self.writing.write(batch, batch_id)


@pytest.fixture
def bench():
    """Return a bench; no executor has a sink open."""
    tasks.close_sink("cache")
    yield Bench()
    tasks.close_sink("cache")


def test_the_drivers_flush_encloses_the_executors_writes(bench):
    """
    The driver connects before the rows are written, and writes its witness afterwards.
    """
    filled = row(3, "r", order=8, topic=BACKFILL)
    result = bench.write(row(1, "c"), row(2, "u"), filled)
    steps = [note[:2] for note in bench.notes]

    assert [("driver", "apply"), ("executor", "open")] == steps[:2]
    assert [("executor", "flush"), ("driver", "flush")] == steps[-2:]
    assert 2 == steps.count(("executor", "flush"))
    assert (3, 2, 0, f"{24:016x}.0000000000") == (
        result.records,
        result.rows,
        result.dead_letters,
        result.position,
    )


def test_all_changes_of_a_key_are_folded_in_one_task(bench):
    """
    Wherever it is in the batch, a partial change finds the row to merge with.
    """
    read = row(1, "c", note="kept", status="placed")
    partial = row(5, "u", status="paid", unchanged=["note"])
    bench.write(partial, read, row(2, "c", order=8), row(3, "c", order=9))
    stored = bench.driver_sink.rows["orders"]["7"]

    assert {"order_id": 7, "note": "kept", "status": "paid"} == stored.row
    assert {0} == {note[2] for note in bench.notes if note[:2] == ("driver", "apply")}


def test_a_change_that_needs_a_refetch_is_left_to_the_driver(bench):
    """
    A partial change of an incomplete route, or of a row being refetched, is not plain.

    The guard merges a partial change with a READ row of a different partition.
    """
    for order in (7, 8, 9):
        bench.write(row(1, "c", order=order, note="a", status="placed"), records=1)
    read = row(2, "r", topic=BACKFILL, note="old", status="placed")
    partial = row(3, "u", status="paid", unchanged=["note"])
    seen = []
    for incomplete_routes, batch in (
        ((), [row(3, "u", order=8, unchanged=["note"]), row(3, "u", order=9)]),
        ((), [read, partial]),
        (("orders",), [row(4, "u", order=8, unchanged=["note"]), row(4, "u", order=9)]),
        ((), [row(5, "u", order=8, unchanged=["note"]), row(5, "u", order=9)]),
    ):
        bench.context.refetches.routes = set(incomplete_routes)
        bench.write(*batch)
        found = [note[2] for note in bench.notes if note[:2] == ("driver", "apply")]
        seen.append(bool(sum(found)))

    assert ([False, False, True, True], [("orders", (8,))]) == (
        seen,
        bench.context.repairs.keys,
    )


def test_a_loss_found_by_the_drivers_flush_repeats_the_batch(bench):
    """
    The batch's partial changes may have been merged with incomplete rows.
    """
    bench.write(row(1, "c", note="a"), row(2, "c", order=8), row(3, "c", order=9))
    flush = bench.driver_sink.flush

    def find():
        bench.context.refetches.routes.add("orders")
        return flush()

    bench.driver_sink.flush = find
    bench.write(row(4, "u", unchanged=["note"]), row(5, "c", order=8))

    assert [("orders", (7,))] == bench.context.repairs.keys


def test_tombstones_are_purged_only_after_the_batch():
    """
    The batch may have records from below the safe position, which was read later.
    """
    bench = Bench(heads=FixedPositions("safe"))
    bench.write(row(1, "c"))
    found = [note[3] for note in bench.notes if note[:2] == ("driver", "apply")]

    assert [None, "safe"] == found


def test_executors_purge_no_tombstone_above_a_dead_letter():
    """
    A dead letter can be replayed, so the safe position after a batch is not above it.
    """
    bench = Bench(heads=FixedPositions("f" * 16))
    bench.context.parked.restore(
        [DeadLetter(change(1, note="bad"), "bad", "orders", True)]
    )
    lowest = bench.context.parked.lowest()
    bench.write(row(2, "c", order=8))
    found = [note[3] for note in bench.notes if note[:2] == ("driver", "apply")]

    assert [None, lowest] == found
    assert lowest is not None


def test_a_small_batch_is_written_by_the_driver(bench):
    """
    A task would cost more than the write.
    """
    bench.write(row(1, "c"), records=2)
    small = {note[0] for note in bench.notes}
    bench.write(row(1, "c"), records=3)

    assert ({"driver"}, True) == (small, ("executor", "flush") in bench.notes)


@pytest.mark.parametrize(
    ("strange", "left", "letters", "requests"),
    [
        ((TOPIC, 0, 9, b'{"order_id": 5}', b"{", []), {"7", "8"}, 1, 0),
        (row(9, "t"), {"8"}, 0, 0),
        (row(9, "u", order=5, unchanged=["note"]), {"7", "8"}, 0, 1),
    ],
    ids=["unreadable", "floor", "refused"],
)
def test_records_that_are_not_plain_are_written_by_the_driver(
    bench, strange, left, letters, requests
):
    """
    The driver handles dead letters, floors and refetches; repeated writes are absorbed.
    """
    result = bench.write(row(1, "c", note="a"), row(10, "c", order=8), strange)

    assert (3, letters, requests, left) == (
        result.records,
        result.dead_letters,
        result.refetches_requested,
        bench.driver_sink.rows["orders"].keys(),
    )


def test_a_parked_key_is_left_to_the_driver(bench):
    """
    Its changes are parked; executors write the other keys.
    """
    unreadable = (TOPIC, 0, 2, b'{"order_id":7}', b"{", row(2, "c")[-1])
    bench.write(row(1, "c", order=8), unreadable)
    follower = bench.write(row(3, "u"), row(4, "u", order=8), batch_id=2)
    without = bench.write(row(5, "u", order=8), batch_id=3)

    assert ParkedKey(TOPIC, b'{"order_id":7}') in bench.context.parked
    assert (1, 1, 1) == (follower.held_back, follower.dead_letters, without.parked)
    assert ("executor", "apply", 1, None) in bench.notes


def test_executors_reopen_a_sink_after_a_floor(bench):
    """
    Executors read the floors when they open the sink; other batches do not reopen it.
    """
    bench.write(row(1, "c"))
    bench.write(row(2, "u"), batch_id=2, records=1)
    bench.write(row(3, "u"), batch_id=3)
    kept = ("executor", "open") in bench.notes
    bench.write(row(4, "t"), batch_id=4)
    bench.write(row(5, "c"), batch_id=5)

    assert not kept
    assert [("executor", "close"), ("executor", "open")] == bench.notes[1:3]


@pytest.mark.parametrize(
    "failure",
    [
        TargetUnavailableError("the cache does not answer"),
        TargetBusyError("the cache is full", retry_after_s=5.0),
    ],
)
def test_a_batch_is_retried_if_its_target_is_unavailable(bench, failure):
    """
    The error keeps the pause that the target requested.
    """
    bench.failure = failure
    with pytest.raises(type(failure), match=str(failure)) as raised:
        bench.write(row(1, "c"))

    assert getattr(failure, "retry_after_s", None) == getattr(
        raised.value, "retry_after_s", None
    )


@pytest.mark.parametrize(
    ("failure", "is_closed"),
    [
        (IndexGoneError("no index"), True),
        (KeyError("x"), True),
        (BatchRefusedError("too large"), False),
    ],
)
def test_any_other_failure_of_an_executor_is_left_to_the_driver(
    bench, failure, is_closed
):
    """
    The driver recreates an index, halves a batch, or ends the query with that error.
    """
    bench.failure = failure
    bench.write(row(1, "c"))

    assert ("driver", "apply", 1, None) in bench.notes
    assert is_closed == (("executor", "close") in bench.notes)


def test_a_failed_task_leaves_only_its_own_records_to_the_driver(bench):
    """
    The executors write the records of the other partition.
    """
    make = bench.make

    def fail_first():
        bench.failure, failure = None, bench.failure
        sink = make()
        sink.failure = failure
        return sink

    bench.writing = bench.writer_with(fail_first)
    bench.failure = KeyError("x")
    bench.write(row(1, "c"), row(2, "r", order=8, topic=BACKFILL))
    applied = [note[:3] for note in bench.notes if note[1] == "apply"]

    assert [
        *(("driver", "apply", 0), ("executor", "apply", 1), ("executor", "apply", 1)),
        ("driver", "apply", 1),
    ] == applied
    assert {"7", "8"} == bench.driver_sink.rows["orders"].keys()


TASK = PartitionTask(SINK, frozenset(), frozenset(), 0)


def opening(bench, ago_s):
    """Describe the sink of a task that the driver sent some seconds ago."""
    return Opening("a", bench.make, SystemClock().now().timestamp() - ago_s)


@pytest.mark.parametrize(("ago_s", "rows"), [(60.0, 1), (121.0, 0)])
def test_the_time_limit_of_a_task_begins_when_it_is_sent(bench, ago_s, rows):
    """
    A suspended executor that resumes later begins no call.
    """
    read = partial(iter, [table(row(1, "c"))])
    result = run_task(TASK, opening(bench, ago_s), read)

    assert (rows, not rows) == (result.outcome.rows, result.retry is not None)
    assert bool(rows) == ("orders" in bench.driver_sink.rows)


class EncodingSink(RecordingSink):
    """An encoder that encodes nothing."""

    def encoded(self):
        """Return nothing."""
        return ()


def test_log_records_of_a_target_in_a_task_name_the_sink(bench):
    """
    The tasks of all sinks share the executors' processes.
    """
    read = partial(iter, [table(row(1, "c"))])
    with capture_logs([merge_contextvars]) as logs:
        run_task(TASK, opening(bench, 0.0), read)
        encode_slice(TASK, partial(EncodingSink, "encoder", bench.notes), read)
        LOG.info("after the tasks")

    assert [("target flushed", "cache"), ("target flushed", "cache")] == [
        (log["event"], log["sink"]) for log in logs if "sink" in log
    ]
    assert "sink" not in logs[-1]


def test_a_task_without_changes_writes_nothing(bench):
    """
    A barrier is not a change, and does not count as skipped.
    """
    barrier = (TOPIC, 0, 1, b"{}", None, [(names.BARRIER, b"1")])
    result = run_task(TASK, opening(bench, 0.0), partial(iter, [table(barrier)]))

    assert (1, 0, 0, 0, "") == (
        *(result.outcome.records, result.outcome.rows, result.outcome.skipped),
        *(len(result.outcome.left), result.failure),
    )
    assert ("executor", "apply") not in {note[:2] for note in bench.notes}


def unreadable(error):
    """Read a record, and fail at the next one."""
    yield table(row(1, "c"))
    raise error


def deleted():
    """Report that the records have been deleted."""
    message = "deleted"
    raise RecordsGoneError(message)


@pytest.mark.parametrize(
    "error", [BrokerUnavailableError, RecordsGoneError, UsageError]
)
def test_a_batch_is_retried_if_a_task_cannot_read(bench, error):
    """
    The driver writes none of the batch: it does not know the records.
    """
    result = run_task(TASK, opening(bench, 0.0), lambda: unreadable(error("no broker")))

    assert (ExecutorsFailedError, "no broker", 0) == (
        *(result.retry, result.failure),
        result.outcome.records,
    )


def test_a_task_reads_once_if_the_broker_is_unavailable(bench):
    """
    The batch is retried immediately; it is neither read again nor left to the driver.
    """
    broken = unreadable(BrokerUnavailableError("no broker"))
    reads = iter([broken, iter([table(row(1, "c"))])])
    result = run_task(TASK, opening(bench, 0.0), lambda: next(reads))

    assert (ExecutorsFailedError, 0) == (result.retry, len(result.outcome.left))


def test_a_task_that_fails_before_it_has_read_all_leaves_all_records(bench):
    """
    Records that it has not read yet are left to the driver, too.
    """
    bench.failure = KeyError("x")
    read = partial(iter, [table(row(1, "c")), table(row(2, "u"))])
    pipelined = replace(TASK, sink=SINK.model_copy(update={"kind": "search"}))
    result = run_task(pipelined, opening(bench, 0.0), read)

    assert ("KeyError: 'x'", [1, 2]) == (
        result.failure,
        result.outcome.left.column("offset").to_pylist(),
    )


def test_records_that_no_task_can_read_are_checked_for_deletion(bench):
    """
    If they were deleted, the query ends and recovers instead of reading forever.
    """
    read = partial(unreadable, RecordsGoneError("gone"))
    rows = batch_of(read, 10, SingleTask(read), deleted)
    with pytest.raises(RecordsGoneError, match="deleted"):
        bench.writing.write(rows, 1)


def test_a_floor_waits_for_abandoned_tasks(bench, monkeypatch):
    """
    Such tasks may write rows below the floor for as long as a task and a call take.

    Other batches do not wait; nor does a floor without such a task.
    """
    bench.write(row(1, "c"), row(2, "t"))
    monkeypatch.setattr(executors, "_is_repeated", lambda: True)
    bench.write(row(3, "c"), batch_id=2)
    monkeypatch.setattr(executors, "_is_repeated", lambda: False)
    bench.write(row(4, "c"), batch_id=3)
    with pytest.raises(TasksAbandonedError) as raised:
        bench.write(row(5, "t"), batch_id=4)
    pause_s = raised.value.retry_after_s
    kept = "7" in bench.driver_sink.rows["orders"]
    bench.clock.now_s = pause_s + 1
    bench.write(row(5, "t"), batch_id=4)

    assert (True, {}) == (kept, bench.driver_sink.rows["orders"])
    assert tasks.WRITES_WITHIN_S < pause_s


def test_a_floor_waits_after_a_restart(bench):
    """
    An earlier driver's tasks may still write.
    """
    with pytest.raises(TasksAbandonedError):
        AbandonedTasks(bench.clock, is_first_run=False).check_floor()


def test_a_floor_waits_for_the_calls_of_an_earlier_driver(bench):
    """
    The earlier driver begins no more calls; those in flight end within their timeout.
    """
    earlier = AbandonedTasks(bench.clock, is_first_run=True, was_running=True)
    with pytest.raises(TasksAbandonedError) as raised:
        earlier.check_floor()
    bench.clock.now_s += raised.value.retry_after_s
    earlier.check_floor()

    assert raised.value.retry_after_s < tasks.WRITES_WITHIN_S


@pytest.mark.parametrize("records", [1, 10])
def test_a_sink_that_was_taken_over_is_not_written(bench, records):
    """
    Neither the executors nor the driver write to it, whatever the size of the batch.
    """

    def check():
        message = "taken over"
        raise SinkTakenOverError(message)

    bench.context = replace(bench.context, check=check)
    bench.writer = RecordWriter(Routes(SINK), bench.driver_sink, bench.context)
    bench.writing = bench.writer_with(bench.make)
    with pytest.raises(SinkTakenOverError):
        bench.write(row(1, "c"), records=records)
    with pytest.raises(SinkTakenOverError):
        bench.writer.write_rest(table(row(2, "c")), 1)

    assert ([], {}) == (bench.notes, bench.driver_sink.rows)


def test_the_tasks_of_a_lost_job_count_as_abandoned(bench, monkeypatch):
    """
    The engine does not report their state.
    """

    def lose(_tasks, _task, _opening):
        message = "lost"
        raise ExecutorsFailedError(message)

    monkeypatch.setattr(executors, "_results", lose)
    with pytest.raises(ExecutorsFailedError):
        bench.write(row(1, "c"))
    with pytest.raises(TasksAbandonedError):
        bench.abandoned.check_floor()


def test_a_batch_on_which_executors_fail_twice_is_written_by_the_driver(
    bench, monkeypatch
):
    """
    Its results may be too large at every attempt; executors get the next batch.
    """

    def fail(*_):
        message = "the results are larger than spark.driver.maxResultSize"
        raise ExecutorsFailedError(message)

    monkeypatch.setattr(executors, "_results", fail)
    with pytest.raises(ExecutorsFailedError):
        bench.write(row(1, "c"))
    with capture_logs() as logs:
        result = bench.write(row(1, "c"))
    with pytest.raises(ExecutorsFailedError):
        bench.write(row(2, "c"), batch_id=2)

    assert (1, ["7"]) == (result.rows, [*bench.driver_sink.rows["orders"]])
    assert ["batch not written by the executors: the driver writes it"] == [
        log["event"] for log in logs if "maxResultSize" in log.get("why", "")
    ]


def test_a_floor_of_a_batch_that_executors_cannot_write_is_applied(bench, monkeypatch):
    """
    Executors get no further tasks of the batch, which would delay the floor again.
    """
    calls = []

    def fail(*_):
        calls.append("failed")
        message = "executors lost"
        raise ExecutorsFailedError(message)

    monkeypatch.setattr(executors, "_results", fail)
    rows = row(1, "c"), row(4, "t")
    with pytest.raises(ExecutorsFailedError):
        bench.write(*rows)
    for _ in range(2):
        with pytest.raises(TasksAbandonedError) as waiting:
            bench.write(*rows)
    kept = [*bench.driver_sink.rows.get("orders", {})]
    bench.clock.now_s += waiting.value.retry_after_s
    bench.write(*rows)

    assert (["7"], {}, 2) == (kept, bench.driver_sink.rows["orders"], len(calls))


class EngineFrame:
    """Encoded rows that the engine could not compute."""

    def persist(self, _level):
        """Do nothing."""

    def unpersist(self):
        """Do nothing."""


class EncodedByTasks(RecordingSink):
    """A sink whose engine writes the rows that tasks encode."""

    def make_encoder(self):
        """Return nothing: no task runs."""

    def write_encoded(self, _rows):
        """Do nothing."""


def test_a_batch_whose_encoding_fails_twice_is_written_by_the_driver(
    bench, monkeypatch
):
    """
    The first failure may be a fault of the cluster, so the batch is retried.
    """

    def fail(_encoded):
        message = "OverflowError"
        raise ExecutorsFailedError(message)

    monkeypatch.setattr(executors, "_encoded", lambda *_: EngineFrame())
    monkeypatch.setattr(executors, "_outcomes", fail)
    sink = EncodedByTasks("driver", bench.notes, rows=bench.driver_sink.rows)
    bench.writer = RecordWriter(Routes(SINK), sink, bench.context)
    encoding = EncodingExecutors(SINK, sink)
    bench.writing = SinkWriter(bench.writer, sink, bench.context, encoding)
    with pytest.raises(ExecutorsFailedError):
        bench.write(row(1, "c"))
    with pytest.raises(ExecutorsFailedError):
        bench.write(row(1, "c"), batch_id=2)

    assert 1 == bench.write(row(1, "c"), batch_id=2).rows


def test_a_task_makes_no_call_after_its_time_limit(bench, monkeypatch):
    """
    Its batch is written again, from the beginning.
    """
    monkeypatch.setattr(tasks, "WRITES_WITHIN_S", 0.0)
    with pytest.raises(TargetUnavailableError, match="too long"):
        bench.write(row(1, "c"))

    assert ("executor", "apply") not in {note[:2] for note in bench.notes}
    assert "orders" not in bench.driver_sink.rows


def test_a_task_makes_no_call_after_its_machine_was_suspended(bench, monkeypatch):
    """
    The monotonic clock stood still meanwhile, and the wall clock was set afterwards.
    """

    class ResumedClock(SystemClock):
        times = itertools.count()

        def now(self):
            suspended_s = tasks.WRITES_WITHIN_S if next(self.times) else 0.0
            return super().now() + timedelta(seconds=suspended_s)

    monkeypatch.setattr(tasks, "SystemClock", ResumedClock)
    with pytest.raises(TargetUnavailableError, match="too long"):
        bench.write(row(1, "c"))

    assert "orders" not in bench.driver_sink.rows


def test_a_wall_clock_that_is_set_back_gives_a_task_no_more_time(bench, monkeypatch):
    """
    The task was sent a minute before it started, and another minute has passed since.
    """

    class SetBackClock(SystemClock):
        readings = itertools.count()
        times = itertools.count()

        def now(self):
            ahead_s = -3600.0 if next(self.readings) else 0.0
            return super().now() + timedelta(seconds=ahead_s)

        def monotonic_s(self):
            return 61.0 if next(self.times) else 0.0

    sent = opening(bench, 60.0)
    monkeypatch.setattr(tasks, "SystemClock", SetBackClock)
    result = run_task(TASK, sent, partial(iter, [table(row(1, "c"))]))

    assert (0, True) == (result.outcome.rows, "too long" in result.failure)


@pytest.mark.parametrize(
    ("kind", "write_from", "master", "expected"),
    [
        ("cache", "auto", "local[2]", False),
        ("cache", "auto", "spark://master:7077", True),
        ("warehouse", "auto", "spark://master:7077", True),
        ("webhook", "auto", "spark://master:7077", False),
        ("cache", "driver", "spark://master:7077", False),
        ("cache", "executors", "local[2]", True),
    ],
)
def test_executors_write_on_a_cluster_by_default(kind, write_from, master, expected):
    """
    The default applies to kinds that executors can write; a block may override it.
    """
    block = {"kind": kind, "write_from": WriteFrom(write_from)}

    assert expected == executors.is_spread(SINK.model_copy(update=block), master)
