"""
Keeps one sink's query running, independently of other sinks.

::

    WAITING --a topic exists--> OPENING --opened--> RUNNING
       ^                                               |
       └------- backoff ------- any failure -----------┘

A batch that fails because a system does not answer is retried in place, unnoticed by
the query. Any other failure ends the query, which starts again from its checkpoint,
that is, with the same batch; before that, ``Recovery`` checks whether it can continue
there.

Before the start and between batches, never during a batch, the supervisor carries out
dead-letter requests, requests overdue refetches, and has the target maintained
(``SupportsUpkeep``). A query is stopped after the batch under way: otherwise the engine
might not commit a batch that was written, and would deliver all of it again.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from structlog.contextvars import bind_contextvars, bound_contextvars

from towpath.schemas.clock import Backoff, Clock
from towpath.schemas.failure import (
    BusyError,
    Disposition,
    TowpathError,
    UnavailableError,
)
from towpath.schemas.tracing import NO_TRACER, Tracer
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.batch import BatchResult, RecordWriter, SinkContext
from towpath.sinks.apply.bisect import ConsecutiveRefusals
from towpath.sinks.apply.encoded import EngineWritten
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.apply.sweeps import EarliestPositions, SafePosition, Sweeps
from towpath.sinks.apply.task import AbandonedTasks
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetterStore
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.engine.block_changes import BlockChanges
from towpath.sinks.engine.checkpoint import read_offsets, span
from towpath.sinks.engine.column_changes import (
    AnnouncedShapes,
    ColumnChanges,
    NoAnnouncedShapes,
    ShapeCheckedWriter,
)
from towpath.sinks.engine.executors import EncodingExecutors, Executors
from towpath.sinks.engine.monitor import Monitor
from towpath.sinks.engine.query import (
    BatchRows,
    IdleUpkeep,
    PartitionTasks,
    QueryPlan,
    start_query,
    wait_for_batch,
)
from towpath.sinks.engine.recovery import Recovery
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.spans import WriteSpans
from towpath.sinks.engine.writer import AnyExecutors, SinkWriter
from towpath.sinks.errors import PartitionsAddedError, TopicRemadeError
from towpath.sinks.kafka.fetch import Batches
from towpath.sinks.kinds import kind_of
from towpath.sinks.ports import Cluster, Repairs, Sink
from towpath.sinks.state.copies import NoCopies, StateCopies
from towpath.sinks.state.progress import full_disk, records_in


class NoRepairs:
    """
    Repairs that can request no rows.

    Changes that need a refetch become dead letters.
    """

    def request_keys(self, _route: str, _keys: object) -> bool:
        """Return False: no rows can be requested."""
        return False

    def request_columns(self, _route: str, _columns: object, _why: str) -> None:
        """Return None: no rows can be requested."""

    def request_all(self, _route: str, _why: str) -> bool:
        """Return False: no rows can be requested."""
        return False


def _accept(_: SinkSettings) -> None:
    """Accept every block."""


def _no_repairs(_: SinkSettings) -> Repairs:
    return NoRepairs()


def _no_copies(_: SinkSettings) -> NoCopies:
    return NoCopies()


@dataclass(frozen=True, slots=True)
class SupervisorParts:
    """
    The services of a supervisor, made by the composition root.

    Attributes:
        make_sink: Makes a sink, and closes it at the end.
        make_batches: Makes the reader of a sink's batches, from the sink's name.
        make_dead_letters: Makes the dead-letter store of a sink, from its name and a
            step that precedes each resolution.
        make_repairs: Makes the repairs of a sink.
        earliest_positions: The positions at the start of topics; without them no
            tombstone is ever dropped.
        monitor: Publishes the state of the sinks; without it, their state is only in
            their files.
        check: Checks that a changed block fits its tables and its target.
        on_executor: Returns the function that makes a sink on an executor and is sent
            there; ``None`` for a sink that is written from the driver.
        make_announced: Makes the reader of announced shapes; without it altered columns
            go undetected.
        make_copies: Makes the copies of a sink's state.
        tracer: Records the spans of sampled records.
        backoff: The pauses between attempts.
    """

    make_sink: Callable[[SinkSettings], AbstractContextManager[Sink]]
    make_batches: Callable[[str], Batches]
    make_dead_letters: Callable[[str, Callable[[], None]], DeadLetterStore]
    cluster: Cluster
    clock: Clock
    make_repairs: Callable[[SinkSettings], Repairs] = _no_repairs
    earliest_positions: EarliestPositions | None = None
    monitor: Monitor | None = None
    check: Callable[[SinkSettings], None] = _accept
    on_executor: Callable[[SinkSettings], Callable[[], Sink] | None] | None = None
    make_announced: Callable[[], AnnouncedShapes] = NoAnnouncedShapes
    make_copies: Callable[[SinkSettings], StateCopies | NoCopies] = _no_copies
    tracer: Tracer = NO_TRACER
    backoff: Backoff = Backoff()  # noqa: RUF009 - a frozen value


# The longest delay before a stop, or the first topic of a sink, is noticed.
STOP_CHECK_S: Final = 1

_UNKNOWN_REMEDY: Final = "Read the driver's log."

# Part of the engine's error about a topic that appeared between our listing and its
# own, before the first batch: our next listing includes it.
_TOPIC_APPEARED: Final = "specify all TopicPartitions"
MAX_IMMEDIATE_STARTS: Final = 10


_Writing: TypeAlias = SinkWriter | ShapeCheckedWriter


class _SinkRun(NamedTuple):
    """The objects of one run of the query."""

    writing: _Writing
    requests: DeadLetterRequests
    recovery: Recovery
    safe: SafePosition
    idle: IdleUpkeep


_log = structlog.get_logger("towpath.sinks")


class _StoppedError(Exception):
    """The driver is stopping, or the query ended; the next start repeats the batch."""


class Supervisor:
    """One thread, one sink, one query."""

    def __init__(
        self,
        spark: SparkSession,
        plan: QueryPlan,
        parts: SupervisorParts,
        report: Report,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._parts = parts
        self._report = report
        self._stop = stop
        self._backoff = parts.backoff
        self._attempt = 0
        self._cause: Exception | None = None
        self._refusals = ConsecutiveRefusals()
        self._copies = parts.make_copies(plan.sink)
        name = f"sink-{plan.sink.name}"
        # A daemon: a call that hangs in the engine must not keep the process alive.
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait until the query has ended; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        # For the log records of targets, which do not know the name of their sink.
        bind_contextvars(sink=self._name)
        with self._copies.kept(), suppress(_StoppedError):
            while not self._stop.is_set():
                try:
                    # The claim comes before anything reads the state.
                    if self._copies.claim():
                        self._report.reload()
                    self._report.starting()
                    self._wait_for_a_topic()
                    self._open_and_run()
                except Exception as error:  # noqa: BLE001 - any failure restarts the sink
                    self._pause(self._take_cause() or error)

    def _wait_for_a_topic(self) -> None:
        """Wait for the first topic: the engine refuses a pattern without a match."""
        while not self._topics():
            self._wait(STOP_CHECK_S)

    def _topics(self) -> list[str]:
        """Return the existing topics of the sink."""
        return Routes(self._plan.sink).matching(self._parts.cluster.names())

    def _open_and_run(self) -> None:
        plan, parts = self._plan, self._parts
        with ExitStack() as opened:
            sink = opened.enter_context(parts.make_sink(plan.sink))
            sink.open()
            repairs = parts.make_repairs(plan.sink)
            BlockChanges(plan, repairs, parts.clock).run()
            announced = opened.enter_context(closing(parts.make_announced()))
            column_changes = ColumnChanges(plan, announced, repairs, parts.clock)
            # This check precedes any request about dead letters that writes a row.
            column_changes.check()
            # A dead letter's refetch is copied before the dead letter is resolved.
            dead_letters = parts.make_dead_letters(self._name, self._copies.save)
            opened.callback(dead_letters.close)
            run = self._sink_run(sink, dead_letters, repairs)
            run = run._replace(writing=ShapeCheckedWriter(column_changes, run.writing))
            self._query_until_stopped(run)

    def _sink_run(
        self, sink: Sink, dead_letters: DeadLetterStore, repairs: Repairs
    ) -> _SinkRun:
        plan, parts = self._plan, self._parts
        open_dead_letters, parked = OpenDeadLetters(wanted=frozenset()), ParkedKeys()
        for entry in dead_letters.entries():
            open_dead_letters.read([entry])
            parked.restore([entry])
        safe = SafePosition(parts.earliest_positions, parts.clock)
        sweeps = Sweeps(plan.state_folder, plan.sink.name, parts.cluster)
        names = [route.name for route in plan.sink.route]
        refetches = PendingRefetches(
            plan.state_folder, plan.sink.name, names, parts.clock
        )
        make = parts.on_executor(plan.sink) if parts.on_executor else None
        # If the engine writes to the target, the tasks write nothing themselves.
        has_tasks = make is not None and not isinstance(sink, EngineWritten)
        abandoned = self._abandoned(has_tasks=has_tasks)
        context = SinkContext(
            *(dead_letters, parked, sweeps, repairs, refetches, safe, parts.clock),
            *(self._refusals, abandoned),
            self._copies.check,
        )
        writer = RecordWriter(Routes(plan.sink), sink, context)
        requests = DeadLetterRequests(
            writer, dead_letters, parked, repairs, parts.clock
        )
        requests.restore(open_dead_letters)
        recovery = Recovery(plan, parts.cluster, repairs, parts.clock)
        executors: AnyExecutors | None = None
        if make is not None and isinstance(sink, EngineWritten):
            executors = EncodingExecutors(plan.sink, sink)
        elif make is not None and abandoned is not None:
            executors = Executors(plan.sink, make, abandoned)
        pipelined_records = kind_of(plan.sink).pipelined_records
        writing = SinkWriter(writer, sink, context, executors, pipelined_records)
        idle = IdleUpkeep(sink, writer, parts.clock)
        return _SinkRun(writing, requests, recovery, safe, idle)

    def _abandoned(self, *, has_tasks: bool) -> AbandonedTasks | None:
        """
        Return the time until which an earlier run, here or elsewhere, may still write.

        ``None`` if the sink has no tasks and no earlier driver may still run.
        """
        was_running = self._copies.was_running
        if not (has_tasks or was_running):
            return None
        plan = self._plan
        has_run = plan.checkpoint.exists() or plan.resumes_file.exists()
        return AbandonedTasks(
            self._parts.clock,
            is_first_run=not (has_tasks and has_run),
            was_running=was_running,
        )

    def _query_until_stopped(self, run: _SinkRun) -> None:
        """Run the query; restart it immediately if a topic appeared as it started."""
        for attempt in range(MAX_IMMEDIATE_STARTS):
            run.recovery.run()
            try:
                self._query(run)
            except StreamingQueryException as error:
                is_last = attempt == MAX_IMMEDIATE_STARTS - 1
                if _TOPIC_APPEARED not in str(error) or is_last:
                    raise
                _log.info(
                    "sink topic appeared while the query started: restarting",
                    sink=self._name,
                )
                continue
            return

    def _query(self, run: _SinkRun) -> None:
        # A request may resolve the failure that would otherwise end this query, too.
        self._do_idle_work(run)
        batches = self._parts.make_batches(self._name)
        over = threading.Event()
        query = start_query(
            self._spark,
            self._plan,
            self._parts.cluster,
            partial(self._deliver, run.writing, batches, over),
        )
        try:
            self._report.running(run.recovery.resumed())
            while not query.awaitTermination(STOP_CHECK_S):
                if self._stop.is_set():
                    wait_for_batch(query, self._parts.clock)
                    return
                self._do_idle_work(run)
        finally:
            # First: the engine waits for a batch, which would otherwise keep retrying.
            over.set()
            batches.close()
            with suppress(Exception):
                query.stop()

    def _do_idle_work(self, run: _SinkRun) -> None:
        """
        Do the work that is due between batches; work that fails is retried later.

        Raises:
            TopicRemadeError: The query must start again.
            PartitionsAddedError: The query must start again.
            UnavailableError: The query must start again: the state was not copied.
            HaltError: The sink refuses to continue.
        """
        self._copies.save()
        try:
            for work in (
                run.requests.process,
                partial(run.safe.check, self._topics),
                run.recovery.check,
                run.idle.check,
            ):
                self._do_one(work)
        finally:
            self._report.parked(run.requests.parked_keys)
            self._report.publish_missing_rows()

    def _do_one(self, work: Callable[[], None]) -> None:
        """Do one piece of idle work; its failure does not prevent the next one."""
        try:
            work()
        except (TopicRemadeError, PartitionsAddedError):
            raise
        except (UnavailableError, BusyError) as error:
            _log.info(
                "sink idle work not done: retrying", sink=self._name, why=str(error)
            )

    @property
    def _name(self) -> str:
        return self._plan.sink.name

    def _deliver(
        self,
        writing: _Writing,
        batches: Batches,
        over: threading.Event,
        frame: DataFrame,
        batch_id: int,
    ) -> None:
        """Write a batch, with retries; called by the engine."""
        try:
            began_s = self._parts.clock.monotonic_s()
            spans = WriteSpans(self._parts.tracer, self._parts.clock, self._plan.sink)
            wanted = span(self._plan.checkpoint, batch_id)
            tasks = PartitionTasks(frame, self._plan.kafka, self._name, wanted)
            rows = BatchRows(
                read=spans.watch(partial(batches.slices, wanted)),
                most=records_in(wanted),
                tasks=tasks,
                check=partial(batches.check, wanted),
            )
            result = self._until_written(writing, rows, batch_id, over)
            applied = read_offsets(self._plan.checkpoint, batch_id)
            batch_s = self._parts.clock.monotonic_s() - began_s
            oldest_ms = batches.take_oldest_ms()
            self._report.done(result, applied, round(batch_s * 1000), oldest_ms)
            spans.written()
            self._copies.save()
            self._attempt = 0
        except Exception as error:
            self._cause = error
            raise

    def _until_written(
        self, writing: _Writing, rows: BatchRows, batch_id: int, over: threading.Event
    ) -> BatchResult:
        while not (self._stop.is_set() or over.is_set()):
            try:
                # The engine calls from a thread that may serve several sinks.
                with bound_contextvars(sink=self._name), self._report.attempt():
                    return writing.write(rows, batch_id)
            except TowpathError as error:
                if error.disposition is not Disposition.RETRY:
                    raise
                self._pause(error, over)
        raise _StoppedError

    def _take_cause(self) -> Exception | None:
        """
        Return, once, the error that ended a batch: the engine only passes on its text.

        A batch that was abandoned because its query had ended is not the cause.
        """
        cause, self._cause = self._cause, None
        return None if isinstance(cause, _StoppedError) else cause

    def _pause(self, error: Exception, over: threading.Event | None = None) -> None:
        """Report a failure; wait for the next attempt, unless the query has ended."""
        is_over = over is not None and over.is_set()
        if self._stop.is_set() or is_over or isinstance(error, _StoppedError):
            raise _StoppedError
        delay_s = self._backoff.delay_s(self._attempt)
        if isinstance(error, BusyError):
            delay_s = max(delay_s, error.retry_after_s)
        self._attempt += 1
        message, remedy = _described(error)
        self._report.failed(message, remedy=remedy, retry_after_s=round(delay_s, 3))
        while delay_s > 0 and not (over is not None and over.is_set()):
            self._wait(min(delay_s, STOP_CHECK_S))
            delay_s -= STOP_CHECK_S

    def _wait(self, delay_s: float) -> None:
        if self._stop.wait(delay_s):
            raise _StoppedError


def _described(error: Exception) -> tuple[str, str]:
    """Return an error's message and remedy; never raises."""
    try:
        known = error if isinstance(error, TowpathError) else full_disk(error)
        if known is not None:
            return str(known), known.remedy
        return f"{type(error).__name__}: {error}", _UNKNOWN_REMEDY
    except Exception:  # noqa: BLE001 - an error of a dead engine cannot even be read
        return type(error).__name__, _UNKNOWN_REMEDY
