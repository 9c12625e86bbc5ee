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
"""

import threading
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from towpath.schemas.backoff import Backoff
from towpath.schemas.failure import (
    BusyError,
    Disposition,
    TowpathError,
    UnavailableError,
)
from towpath.settings import WriteFrom
from towpath.sinks.batches import Batches
from towpath.sinks.dead_letters.book import Book
from towpath.sinks.dead_letters.box import LetterBox
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.disk import full_disk
from towpath.sinks.errors import PartitionsAddedError, TopicRemadeError
from towpath.sinks.jobs.batch import BatchWriter, Desk
from towpath.sinks.jobs.batch_result import BatchResult
from towpath.sinks.jobs.checkpoint import read_offsets, span
from towpath.sinks.jobs.columnar import FromColumns
from towpath.sinks.jobs.delivery import InARow
from towpath.sinks.jobs.finishing import let_finish
from towpath.sinks.jobs.idle import Idle
from towpath.sinks.jobs.owed import Owed
from towpath.sinks.jobs.parts import Parts
from towpath.sinks.jobs.portions import InPortions
from towpath.sinks.jobs.query import QueryPlan, Rows, start_query
from towpath.sinks.jobs.recovery import Recovery
from towpath.sinks.jobs.replay import Orders
from towpath.sinks.jobs.report import Report
from towpath.sinks.jobs.rerouting import Rerouting
from towpath.sinks.jobs.reshaping import AfterLook, Reshaping
from towpath.sinks.jobs.safe import SafePosition
from towpath.sinks.jobs.spread import FromDriver, FromExecutors
from towpath.sinks.jobs.sweeps import Sweeps
from towpath.sinks.ports import Columnar, Pipelined, Repairs, Sink
from towpath.sinks.progress import records_in
from towpath.sinks.routes import Routes

# How soon a stop is noticed, and the first topic of a sink that has none yet.
GLANCE_S: Final = 1

_UNKNOWN_REMEDY: Final = "Read the driver's log."

# What the engine says of a topic that came up between our listing and its own, before
# its first batch: the next listing of ours has it.
_TOPIC_CAME_UP: Final = "specify all TopicPartitions"
MAX_STARTS_AT_ONCE: Final = 10


_Writing: TypeAlias = FromColumns | FromDriver | FromExecutors | InPortions | AfterLook


class _Bench(NamedTuple):
    """What is made anew for each start of the query."""

    writing: _Writing
    orders: Orders
    recovery: Recovery
    safe: SafePosition
    idle: Idle


_log = structlog.get_logger("towpath.sinks.jobs")


class _StoppedError(Exception):
    """The driver is to stop; the batch comes again at the next start."""


class Supervisor:
    """One thread, one sink, one query."""

    def __init__(
        self,
        spark: SparkSession,
        plan: QueryPlan,
        parts: Parts,
        report: Report,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._parts = parts
        self._report = report
        self._stop = stop
        self._backoff = Backoff()
        self._attempt = 0
        self._cause: Exception | None = None
        self._in_a_row = InARow()
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
            self._wait(GLANCE_S)

    def _topics(self) -> list[str]:
        """List the topics of the sink that exist."""
        return Routes(self._plan.sink).matching(self._parts.cluster.names())

    def _run(self) -> None:
        sink = self._parts.make_sink(self._plan.sink)
        letters: LetterBox | None = None
        try:
            sink.open()
            repairs = self._parts.make_repairs(self._plan.sink)
            Rerouting(self._plan, repairs, self._parts.clock).run()
            announced = self._parts.make_announced()
            reshaping = Reshaping(self._plan, announced, repairs, self._parts.clock)
            # Before any order of the dead letters writes a row.
            reshaping.look()
            letters = self._parts.make_dead_letters(self._plan.sink.name)
            bench = self._bench(sink, letters, repairs)
            bench = bench._replace(writing=AfterLook(reshaping, bench.writing))
            self._query_until_stopped(bench)
        finally:
            if letters is not None:
                letters.close()
            sink.close()

    def _bench(self, sink: Sink, letters: LetterBox, repairs: Repairs) -> _Bench:
        plan, parts = self._plan, self._parts
        book, parked = Book(wanted=frozenset()), ParkedKeys()
        for entry in letters.entries():
            book.read([entry])
            parked.recall([entry])
        safe = SafePosition(parts.heads, parts.clock)
        sweeps = Sweeps(plan.state_folder, plan.sink.name, parts.cluster)
        names = [route.name for route in plan.sink.route]
        owed = Owed(plan.state_folder, plan.sink.name, names, parts.clock)
        desk = Desk(
            *(letters, parked, sweeps, repairs, owed, safe, parts.clock),
            self._in_a_row,
        )
        writer = BatchWriter(Routes(plan.sink), sink, desk)
        orders = Orders(writer, letters, parked, repairs, parts.clock)
        orders.recall(book)
        recovery = Recovery(plan, parts.cluster, repairs, parts.clock)
        writing: _Writing = FromDriver(writer)
        if isinstance(sink, Columnar):
            writing = FromColumns(writer, sink, desk)
        if isinstance(sink, Pipelined):
            writing = InPortions(plan.sink.name, writer, sink, desk)
        if plan.sink.write_from is WriteFrom.EXECUTORS and parts.on_executor:
            make = parts.on_executor(plan.sink)
            writing = FromExecutors(plan, writer, sink, desk, make)
        idle = Idle(sink, writer, parts.clock)
        return _Bench(writing, orders, recovery, safe, idle)

    def _query_until_stopped(self, bench: _Bench) -> None:
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

    def _query(self, bench: _Bench) -> None:
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
            while not query.awaitTermination(GLANCE_S):
                if self._stop.is_set():
                    let_finish(query, self._parts.clock)
                    return
                self._attend(bench)
        finally:
            # First of all: the engine waits for a batch that would go on trying.
            over.set()
            batches.close()
            with suppress(Exception):
                query.stop()

    def _attend(self, bench: _Bench) -> None:
        """
        Do what is due beside the batches; what cannot be done now is due again.

        Raises:
            TopicRemadeError: The query must start again.
            PartitionsAddedError: The query must start again.
        """
        try:
            bench.orders.attend()
            self._report.parked(bench.orders.parked_keys)
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
            rows = Rows(frame, partial(batches.portions, wanted), records_in(wanted))
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
        rows: Rows,
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
            self._wait(min(delay_s, GLANCE_S))
            delay_s -= GLANCE_S

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
