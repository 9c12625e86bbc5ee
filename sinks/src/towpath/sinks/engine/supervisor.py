"""
Keeps one sink's query alive, and knows of no other.

::

    WAITING --a topic exists--> OPENING --opened--> RUNNING
       ^                                               |
       └------ back-off ------- any failure -----------┘

A batch that fails because some part does not answer is tried again where it stands: the
query does not even notice. Any other failure ends the query, which starts again from
its checkpoint, that is, with the same batch; before that, ``Recovery`` looks whether
the query can go on there.

Before its start and between batches the supervisor attends to what was asked for of
the dead letters.

How a query is ended that has a batch under way.

To stop it at once would end it between what the batch wrote and the engine's note of
it, and all of the batch would come again at the next start.

Does what is due between batches: a loss is noticed also while none comes.

The writer asks for what it has put off. Most sinks have nothing to do then; one that
has, has a verb for it (``Attending``). Both are called now and then, by the
supervisor's thread, and never beside a batch.

What a supervisor works with, made by the root; and who stands in for repairs.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from towpath.schemas.clock import Backoff, Clock, Deadline
from towpath.schemas.failure import (
    BusyError,
    Disposition,
    TowpathError,
    UnavailableError,
)
from towpath.settings import Sink as SinkSettings
from towpath.settings import WriteFrom
from towpath.sinks.apply.batch import BatchResult, BatchWriter, SinkContext
from towpath.sinks.apply.bisect import ConsecutiveRefusals
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.apply.sweeps import EarliestPositions, SafePosition, Sweeps
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetterStore
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.engine.block_changes import BlockChanges
from towpath.sinks.engine.bulk_writers import ColumnWriter, PipelinedWriter
from towpath.sinks.engine.checkpoint import read_offsets, span
from towpath.sinks.engine.column_changes import (
    AnnouncedShapes,
    ColumnChanges,
    NoAnnouncedShapes,
    ShapeCheckedWriter,
)
from towpath.sinks.engine.executors import DriverWriter, ExecutorWriter
from towpath.sinks.engine.monitor import Monitor
from towpath.sinks.engine.query import BatchRows, QueryPlan, start_query
from towpath.sinks.engine.recovery import Recovery
from towpath.sinks.engine.report import Report
from towpath.sinks.errors import PartitionsAddedError, TopicRemadeError
from towpath.sinks.kafka.fetch import Batches
from towpath.sinks.ports import (
    Cluster,
    Columnar,
    Pipelined,
    Repairs,
    Sink,
    SupportsUpkeep,
)
from towpath.sinks.state.progress import full_disk, records_in

# A batch that takes longer comes again. The driver's own patience is twice as long.
FINISH_WITHIN_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.02


def wait_for_batch(query: StreamingQuery, clock: Clock) -> None:
    """Wait until no batch is under way; whoever writes them begins no other."""
    deadline = Deadline(clock, FINISH_WITHIN_S)
    while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
        clock.wait(_LOOK_EVERY_S)


# Whoever reads a cache that was emptied sees nothing until this has passed, and the
# rows have been read. Some small calls each time.
LOOK_EVERY_S: Final = 5.0


class IdleUpkeep:
    """Attends to one sink between its batches."""

    def __init__(self, sink: Sink, writer: BatchWriter, clock: Clock) -> None:
        """
        Describe whom to attend to.

        Args:
            sink: The sink.
            writer: Who uses it.
            clock: The time.
        """
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._next = Deadline(clock, LOOK_EVERY_S)

    def look(self) -> None:
        """
        Attend to the sink, if that is due and nobody uses it.

        Raises:
            UnavailableError: The target does not answer.
            BusyError: The target asks for a pause.
            HaltError: The sink refuses to go on.
        """
        if not self._next.passed() or not self._writer.lock.acquire(blocking=False):
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        try:
            self._writer.request_overdue()
            if isinstance(self._sink, SupportsUpkeep):
                self._sink.maintain()
        finally:
            self._writer.lock.release()


class NoRepairs:
    """Nobody can be asked for rows; what would need it is set aside."""

    def request_keys(self, _route: str, _keys: object) -> bool:
        """Tell that they cannot be asked for."""
        return False

    def request_columns(self, _route: str, _columns: object, _why: str) -> None:
        """Tell that they cannot be asked for."""

    def request_all(self, _route: str, _why: str) -> bool:
        """Tell that they cannot be asked for."""
        return False


def _accept(_: SinkSettings) -> None:
    """Take every block for fit."""


def _no_repairs(_: SinkSettings) -> Repairs:
    return NoRepairs()


@dataclass(frozen=True, slots=True)
class SupervisorParts:
    """
    What a supervisor works with, made by the root.

    Attributes:
        make_batches: Makes what reads the batches of a sink, by its name.
        make_dead_letters: Makes the dead letters of a sink, by its name.
        make_repairs: Makes what has rows of a sink read anew.
        heads: What topics begin with; without it no tombstone is ever forgotten.
        monitor: Shows how the sinks are; without it only their files tell.
        check: Sees that a changed block fits its tables and its target.
        on_executor: Gives what makes a sink on an executor; it is sent there. Without
            it all is written from the driver.
        make_announced: Makes what knows the announced shapes of tables; without it
            altered columns are not noticed.
    """

    make_sink: Callable[[SinkSettings], Sink]
    make_batches: Callable[[str], Batches]
    make_dead_letters: Callable[[str], DeadLetterStore]
    cluster: Cluster
    clock: Clock
    make_repairs: Callable[[SinkSettings], Repairs] = _no_repairs
    earliest_positions: EarliestPositions | None = None
    monitor: Monitor | None = None
    check: Callable[[SinkSettings], None] = _accept
    on_executor: Callable[[SinkSettings], Callable[[], Sink]] | None = None
    make_announced: Callable[[], AnnouncedShapes] = NoAnnouncedShapes
    backoff: Backoff = Backoff()  # noqa: RUF009 - a frozen value


# How soon a stop is noticed, and the first topic of a sink that has none yet.
STOP_CHECK_S: Final = 1

_UNKNOWN_REMEDY: Final = "Read the driver's log."

# What the engine says of a topic that came up between our listing and its own, before
# its first batch: the next listing of ours has it.
_TOPIC_CAME_UP: Final = "specify all TopicPartitions"
MAX_STARTS_AT_ONCE: Final = 10


_Writing: TypeAlias = (
    ColumnWriter | DriverWriter | ExecutorWriter | PipelinedWriter | ShapeCheckedWriter
)


class _SinkRun(NamedTuple):
    """What is made anew for each start of the query."""

    writing: _Writing
    requests: DeadLetterRequests
    recovery: Recovery
    safe: SafePosition
    idle: IdleUpkeep


_log = structlog.get_logger("towpath.sinks")


class _StoppedError(Exception):
    """The driver is to stop; the batch comes again at the next start."""


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
        name = f"sink-{plan.sink.name}"
        # A daemon: what hangs in the engine must not keep the process.
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait until the query has ended; tell whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        with suppress(_StoppedError):
            while not self._stop.is_set():
                try:
                    self._report.starting()
                    self._wait_for_a_topic()
                    self._run()
                except Exception as error:  # noqa: BLE001 - whatever ends it, it starts again
                    self._pause(self._take_cause() or error)

    def _wait_for_a_topic(self) -> None:
        """The engine refuses a pattern that matches no topic at all."""
        while not self._topics():
            self._wait(STOP_CHECK_S)

    def _topics(self) -> list[str]:
        """List the topics of the sink that exist."""
        return Routes(self._plan.sink).matching(self._parts.cluster.names())

    def _run(self) -> None:
        sink = self._parts.make_sink(self._plan.sink)
        dead_letters: DeadLetterStore | None = None
        try:
            sink.open()
            repairs = self._parts.make_repairs(self._plan.sink)
            BlockChanges(self._plan, repairs, self._parts.clock).run()
            announced = self._parts.make_announced()
            reshaping = ColumnChanges(self._plan, announced, repairs, self._parts.clock)
            # Before any order of the dead letters writes a row.
            reshaping.look()
            dead_letters = self._parts.make_dead_letters(self._plan.sink.name)
            bench = self._bench(sink, dead_letters, repairs)
            bench = bench._replace(writing=ShapeCheckedWriter(reshaping, bench.writing))
            self._query_until_stopped(bench)
        finally:
            if dead_letters is not None:
                dead_letters.close()
            sink.close()

    def _bench(
        self, sink: Sink, dead_letters: DeadLetterStore, repairs: Repairs
    ) -> _SinkRun:
        plan, parts = self._plan, self._parts
        book, parked = OpenDeadLetters(wanted=frozenset()), ParkedKeys()
        for entry in dead_letters.entries():
            book.read([entry])
            parked.recall([entry])
        safe = SafePosition(parts.earliest_positions, parts.clock)
        sweeps = Sweeps(plan.state_folder, plan.sink.name, parts.cluster)
        names = [route.name for route in plan.sink.route]
        refetches = PendingRefetches(
            plan.state_folder, plan.sink.name, names, parts.clock
        )
        context = SinkContext(
            *(dead_letters, parked, sweeps, repairs, refetches, safe, parts.clock),
            self._refusals,
        )
        writer = BatchWriter(Routes(plan.sink), sink, context)
        requests = DeadLetterRequests(
            writer, dead_letters, parked, repairs, parts.clock
        )
        requests.restore(book)
        recovery = Recovery(plan, parts.cluster, repairs, parts.clock)
        writing: _Writing = DriverWriter(writer)
        if isinstance(sink, Columnar):
            writing = ColumnWriter(writer, sink, context)
        if isinstance(sink, Pipelined):
            writing = PipelinedWriter(plan.sink.name, writer, sink, context)
        if plan.sink.write_from is WriteFrom.EXECUTORS and parts.on_executor:
            make = parts.on_executor(plan.sink)
            writing = ExecutorWriter(plan, writer, sink, context, make)
        idle = IdleUpkeep(sink, writer, parts.clock)
        return _SinkRun(writing, requests, recovery, safe, idle)

    def _query_until_stopped(self, bench: _SinkRun) -> None:
        """Keep the query; start it at once where it only met a topic too early."""
        for attempt in range(MAX_STARTS_AT_ONCE):
            bench.recovery.run()
            try:
                self._query(bench)
            except StreamingQueryException as error:
                is_last = attempt == MAX_STARTS_AT_ONCE - 1
                if _TOPIC_CAME_UP not in str(error) or is_last:
                    raise
                _log.info("a topic came up while the query started", sink=self._name)
                continue
            return

    def _query(self, bench: _SinkRun) -> None:
        # An order may be the cure of what would end this query at once.
        self._attend(bench)
        batches = self._parts.make_batches(self._name)
        over = threading.Event()
        query = start_query(
            self._spark,
            self._plan,
            self._parts.cluster,
            partial(self._deliver, bench.writing, batches, over),
        )
        try:
            self._report.running()
            while not query.awaitTermination(STOP_CHECK_S):
                if self._stop.is_set():
                    wait_for_batch(query, self._parts.clock)
                    return
                self._attend(bench)
        finally:
            # First of all: the engine waits for a batch that would go on trying.
            over.set()
            batches.close()
            with suppress(Exception):
                query.stop()

    def _attend(self, bench: _SinkRun) -> None:
        """
        Do what is due beside the batches; what cannot be done now is due again.

        Raises:
            TopicRemadeError: The query must start again.
            PartitionsAddedError: The query must start again.
        """
        try:
            bench.requests.process()
            self._report.parked(bench.requests.parked_keys)
            bench.safe.look(self._topics)
            bench.recovery.look()
            bench.idle.look()
        except (TopicRemadeError, PartitionsAddedError):
            raise
        except (UnavailableError, BusyError) as error:
            _log.info("not attended to", sink=self._name, why=str(error))

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
        """Write a batch, however often it takes; called by the engine."""
        try:
            began_s = self._parts.clock.monotonic_s()
            wanted = span(self._plan.checkpoint, batch_id)
            rows = BatchRows(frame, partial(batches.slices, wanted), records_in(wanted))
            result = self._until_written(writing, rows, batch_id, over)
            applied = read_offsets(self._plan.checkpoint, batch_id)
            batch_s = self._parts.clock.monotonic_s() - began_s
            self._report.done(result, applied, round(batch_s * 1000))
            self._attempt = 0
        except Exception as error:
            self._cause = error
            raise

    def _until_written(
        self,
        writing: _Writing,
        rows: BatchRows,
        batch_id: int,
        over: threading.Event,
    ) -> BatchResult:
        while not (self._stop.is_set() or over.is_set()):
            try:
                with self._report.attempt():
                    return writing.write(rows, batch_id)
            except TowpathError as error:
                if error.disposition is not Disposition.RETRY:
                    raise
                self._pause(error, over)
        raise _StoppedError

    def _take_cause(self) -> Exception | None:
        """
        Return, once, what a batch failed of: the engine passes on only a text.

        A batch that was given up, because its query was over, is not what ended it.
        """
        cause, self._cause = self._cause, None
        return None if isinstance(cause, _StoppedError) else cause

    def _pause(self, error: Exception, over: threading.Event | None = None) -> None:
        """Tell of a failure, and wait before the next attempt, unless that is over."""
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
    """Return what an error says, and its remedy; never raises, whatever it is."""
    try:
        known = error if isinstance(error, TowpathError) else full_disk(error)
        if known is not None:
            return str(known), known.remedy
        return f"{type(error).__name__}: {error}", _UNKNOWN_REMEDY
    except Exception:  # noqa: BLE001 - an error of a dead engine cannot even be read
        return type(error).__name__, _UNKNOWN_REMEDY
