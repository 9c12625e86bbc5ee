"""
Publishes the state of a driver's sinks: metrics on a port, their lag, and alarms.

::

    batches -- reports ----------> progress files, counters, durations by stage
    engine  -- listener ---------> durations of a trigger's steps
    broker  -- every two seconds -> lag, and the alarm above twice the budget

Nothing here delays a batch: a failure is logged once and retried at the next check.

PySpark's own listener fetches each field of an event by a separate call into the
engine, about sixty in all: at several triggers a second that costs more than writing
small batches. ``EngineListener`` makes one call, for the event as JSON.
"""

import threading
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from towpath.schemas.clock import Clock
from towpath.schemas.failure import UnavailableError
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.metrics import MetricsPort, SinkMetrics, WatchedSink
from towpath.sinks.engine.report import Report
from towpath.sinks.errors import StateNotWrittenError
from towpath.sinks.ports import Cluster
from towpath.sinks.state.lag import Alarm, Lag, RecordAges, budget_s, lag_of
from towpath.sinks.state.progress import (
    DriverHeartbeat,
    remove_heartbeat,
    write_heartbeat,
)

# The step that is missing from a trigger without a batch.
_BATCH_STEP: Final = "addBatch"


class EngineListener:
    """Records the durations of triggers; ``spark.streams.addListener`` registers it."""

    class Java:
        """The interface that py4j implements."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, metrics: SinkMetrics) -> None:
        self._metrics = metrics

    @cached_property
    def _jlistener(self) -> Any:  # noqa: ANN401 - py4j's
        """The Java side of the listener, where PySpark looks for it."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]  # noqa: SLF001 - as PySpark's own

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Record the durations of a trigger's steps."""
        progress = orjson.loads(event.progress().json())
        steps_ms = progress["durationMs"]
        if progress["name"] in self._metrics.sinks and _BATCH_STEP in steps_ms:
            took_ms = {step: float(took) for step, took in steps_ms.items()}
            self._metrics.engine(progress["name"], took_ms)

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Do nothing: the supervisor reports it."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Do nothing: no step took any time."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Do nothing: the supervisor reports it."""


# A cache's budget is 10 s: its alarm is late by a fifth of that at most.
LOOK_EVERY_S: Final = 2.0

_log = structlog.get_logger("towpath.sinks")


class Monitor:
    """
    Watches the sinks of one driver.

    Call order: ``report`` for each sink that starts and ``forget`` for each that has
    stopped, at any time; ``start`` once, ``close`` once.
    """

    def __init__(self, cluster: Cluster, oldest: RecordAges, clock: Clock) -> None:
        self.metrics = SinkMetrics()
        self._cluster = cluster
        self._oldest = oldest
        self._clock = clock
        self._sinks: dict[str, Sink] = {}
        self._folders: dict[str, Path] = {}
        self._reports: dict[str, Report] = {}
        self._host = ""
        self._unwritten: set[str] = set()
        # Held during a check, so that no file of a forgotten sink is written again.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)
        self._port: MetricsPort | None = None
        self._unknown: str | None = None

    def report(self, state_folder: Path, sink: Sink) -> Report:
        """Create the report of a sink that is about to start, and watch the sink."""
        report = Report(state_folder, sink.name, self._clock, self.metrics)
        alarm = Alarm(budget_s(sink))
        self.metrics.sinks[sink.name] = WatchedSink(lambda: report.progress, alarm)
        self._folders[sink.name] = state_folder
        self._reports[sink.name] = report
        self._sinks[sink.name] = sink
        return report

    def forget(self, sink: str) -> None:
        """Stop watching a sink, and remove its heartbeat."""
        with self._lock:
            self._sinks.pop(sink, None)
            self.metrics.sinks.pop(sink, None)
            self._reports.pop(sink, None)
            folder = self._folders.pop(sink, None)
        if folder is not None:
            remove_heartbeat(folder, sink)

    def start(self, settings: Settings, driver: str) -> int:
        """
        Start the metrics port and the lag checks; return the port.

        Raises:
            MetricsPortError: The port is in use.
        """
        options = settings.sinks
        wanted = options.metrics_ports.get(driver, 0)
        self._host = options.metrics_host
        self._port = MetricsPort(
            self._host, wanted, self.metrics.page, self.metrics.progress
        )
        _log.info("metrics port opened", host=self._host, port=self._port.port)
        self._thread.start()
        return self._port.port

    def listen(self, spark: SparkSession) -> None:
        """Record the engine's durations from now on."""
        spark.streams.addListener(EngineListener(self.metrics))  # type: ignore[arg-type]  # no subclass

    def close(self) -> None:
        """Stop the lag checks and the metrics port."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._port is not None:
            self._port.close()
        for name, folder in self._folders.items():
            remove_heartbeat(folder, name)

    def check(self) -> None:
        """Write the heartbeats, determine each sink's lag, and log alarms."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        for name in list(self._folders):
            self._write_heartbeat(name)
        try:
            topics = self._cluster.names()
            for name, sink in list(self._sinks.items()):
                ends = self._cluster.end_offsets(Routes(sink).matching(topics))
                watched = self.metrics.sinks[name]
                applied = watched.progress().applied
                now = self._clock.now()
                lag = lag_of(sink, applied, ends, self._oldest, now)
                self._take(name, watched, lag)
            self._unknown = None
        except UnavailableError as error:
            for watched in self.metrics.sinks.values():
                watched.lag = None
            if self._unknown is None:
                why = self._unknown = str(error)
                _log.warning(
                    "sink lag unknown: retrying", error=why, remedy=error.remedy
                )

    def _write_heartbeat(self, sink: str) -> None:
        """Write the heartbeat of a sink; a failure delays nothing."""
        port = None if self._port is None else self._port.port
        report = self._reports[sink]
        note = DriverHeartbeat(self._host, port, report.is_writing)
        report.store()
        try:
            write_heartbeat(self._folders[sink], sink, note, self._clock.now())
            self._unwritten.discard(sink)
        except StateNotWrittenError as error:
            if sink not in self._unwritten:
                why = str(error)
                _log.warning(
                    "sink heartbeat not written: retrying", sink=sink, error=why
                )
            self._unwritten.add(sink)

    def _take(self, sink: str, watched: WatchedSink, lag: Lag) -> None:
        watched.lag = lag
        if not watched.alarm.take(lag.seconds):
            return
        fields = {
            "sink": sink,
            "lag_s": round(lag.seconds, 1),
            "lag_records": lag.records,
            "budget_s": watched.alarm.budget_s,
        }
        if watched.alarm.is_raised:
            _log.warning("sink lag above twice its budget", **fields)
        else:
            _log.info("sink lag within its budget again", **fields)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                self.check()
            except Exception:  # noqa: BLE001 - the sinks continue
                _log.exception("sink lag check failed: retrying")
