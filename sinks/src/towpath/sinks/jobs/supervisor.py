"""
Keeps one sink's query alive, and knows of no other.

::

    WAITING --a topic exists--> OPENING --opened--> RUNNING
       ^                                               |
       └------ back-off ------- any failure -----------┘

A batch that fails because some part does not answer is tried again where it stands: the
query does not even notice. Any other failure ends the query, which starts again from
its checkpoint, that is, with the same batch.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock
from towpath.schemas.failure import BusyError, Disposition, TowpathError
from towpath.settings import Sink as SinkSettings
from towpath.sinks.jobs.batch import BatchResult, BatchWriter
from towpath.sinks.jobs.checkpoint import read_offsets
from towpath.sinks.jobs.query import QueryPlan, start_query
from towpath.sinks.jobs.report import Report
from towpath.sinks.jobs.sweeps import Sweeps
from towpath.sinks.ports import Cluster, DeadLetters, Sink
from towpath.sinks.routes import Routes

# How soon a stop is noticed, and the first topic of a sink that has none yet.
GLANCE_S: Final = 1

_UNKNOWN_REMEDY: Final = "Read the driver's log."


@dataclass(frozen=True, slots=True)
class Parts:
    """What a supervisor works with, made by the root."""

    make_sink: Callable[[SinkSettings], Sink]
    make_dead_letters: Callable[[str], DeadLetters]
    cluster: Cluster
    clock: Clock


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
        routes = Routes(self._plan.sink)
        while not routes.matching(self._parts.cluster.names()):
            self._wait(GLANCE_S)

    def _run(self) -> None:
        sink = self._parts.make_sink(self._plan.sink)
        query: StreamingQuery | None = None
        try:
            sink.open()
            letters = self._parts.make_dead_letters(self._plan.sink.name)
            sweeps = Sweeps(
                self._plan.state_folder, self._plan.sink.name, self._parts.cluster
            )
            writer = BatchWriter(Routes(self._plan.sink), sink, letters, sweeps)
            query = start_query(
                self._spark,
                self._plan,
                self._parts.cluster,
                lambda table, batch_id: self._deliver(writer, table, batch_id),
            )
            self._report.running()
            while not query.awaitTermination(GLANCE_S):
                if self._stop.is_set():
                    return
        finally:
            if query is not None:
                with suppress(Exception):
                    query.stop()
            sink.close()

    def _deliver(self, writer: BatchWriter, table: pa.Table, batch_id: int) -> None:
        """Write a batch, however often it takes; called by the engine."""
        try:
            began_s = self._parts.clock.monotonic_s()
            result = self._until_written(writer, table, batch_id)
            applied = read_offsets(self._plan.checkpoint, batch_id)
            batch_s = self._parts.clock.monotonic_s() - began_s
            self._report.done(result, applied, round(batch_s * 1000))
            self._attempt = 0
        except Exception as error:
            self._cause = error
            raise

    def _until_written(
        self, writer: BatchWriter, table: pa.Table, batch_id: int
    ) -> BatchResult:
        while True:
            try:
                return writer.write(table, batch_id)
            except TowpathError as error:
                if error.disposition is not Disposition.RETRY:
                    raise
                self._pause(error)

    def _take_cause(self) -> Exception | None:
        """Return, once, what a batch failed of: the engine passes on only a text."""
        cause, self._cause = self._cause, None
        return cause

    def _pause(self, error: Exception) -> None:
        """Tell of a failure, and wait before the next attempt."""
        if self._stop.is_set() or isinstance(error, _StoppedError):
            raise _StoppedError
        delay_s = self._backoff.delay_s(self._attempt)
        if isinstance(error, BusyError):
            delay_s = max(delay_s, error.retry_after_s)
        self._attempt += 1
        known = isinstance(error, TowpathError)
        self._report.failed(
            str(error) if known else f"{type(error).__name__}: {error}",
            remedy=error.remedy if isinstance(error, TowpathError) else _UNKNOWN_REMEDY,
            retry_after_s=round(delay_s, 3),
        )
        self._wait(delay_s)

    def _wait(self, delay_s: float) -> None:
        if self._stop.wait(delay_s):
            raise _StoppedError
