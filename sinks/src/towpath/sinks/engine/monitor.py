"""
Publishes the state of a driver's sinks: metrics on a port, their lag, and alarms.

::

    batches -- reports ----------> progress, stored and published; counters, durations
    engine  -- listener ---------> durations of a trigger's steps
    broker  -- every two seconds -> lag, and the alarm above twice the budget

Nothing here delays a batch. A system that does not answer is logged once, and tried
again at the next check; any other failure is logged at each check.

PySpark's own listener fetches each field of an event with a separate call into the
engine, about sixty in all: at several triggers per second, that costs more than writing
small batches. ``EngineListener`` makes one call, for the event as JSON.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from towpath.schemas.clock import Clock
from towpath.schemas.failure import UnavailableError
from towpath.schemas.lineage import NO_REPORTER, Job, JobDatasets, LineageReporter
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.lineage import SinkRuns
from towpath.sinks.engine.metrics import MetricsPort, SinkMetrics, WatchedSink
from towpath.sinks.engine.publisher import ProgressPublisher
from towpath.sinks.engine.report import Report
from towpath.sinks.ports import Cluster
from towpath.sinks.state.lag import Alarm, Lag, RecordAges, budget_s, lag_of
from towpath.sinks.state.progress import sink_folder
from towpath.sinks.state.published import ProgressStore

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


# A cache's budget is 10 s: its alarm is late by at most a fifth of the budget.
CHECK_EVERY_S: Final = 2.0

_log = structlog.get_logger("towpath.sinks")


def _unreported(sink: Sink) -> Job:
    return Job(sink.name, "SINK", JobDatasets)


class Monitor:
    """
    Watches the sinks of one driver.

    Call order: ``report`` for each sink that starts and ``forget`` for each that has
    stopped, at any time; ``start`` once, ``close`` once.
    """

    def __init__(
        self,
        cluster: Cluster,
        oldest: RecordAges,
        store: ProgressStore,
        clock: Clock,
        lineage: LineageReporter = NO_REPORTER,
        job_of: Callable[[Sink], Job] = _unreported,
    ) -> None:
        """
        Store the parameters.

        Args:
            cluster: The topics of the broker.
            oldest: Looks up the timestamps of records.
            store: Reads and publishes progress.
            clock: The time.
            lineage: Reports the runs of sinks.
            job_of: Describes the job of a sink.
        """
        self._lineage = lineage
        self._job_of = job_of
        self._store = store
        self._cluster = cluster
        self._oldest = oldest
        self._clock = clock
        self._sinks: dict[str, Sink] = {}
        self._reports: dict[str, Report] = {}
        self.metrics = SinkMetrics(self._published)
        # Held during a check, so that no value of a forgotten sink is written again.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)
        self._port: MetricsPort | None = None
        self._unknown: str | None = None

    def report(self, state_folder: Path, sink: Sink) -> Report:
        """Create the report of a sink that is about to start, and watch the sink."""
        publisher = ProgressPublisher(state_folder, sink.name, self._store, self._clock)
        report = Report(
            *(state_folder, sink.name, self._clock, self.metrics, publisher),
            SinkRuns(self._lineage, self._job_of(sink)),
        )
        alarm = Alarm(budget_s(sink))
        self.metrics.sinks[sink.name] = WatchedSink(
            *(lambda: report.progress, alarm, lambda: publisher.failures),
            folder=sink_folder(state_folder, sink.name),
            verification=lambda: self._store.verification(sink.name),
        )
        self._reports[sink.name] = report
        self._sinks[sink.name] = sink
        return report

    def forget(self, sink: str) -> None:
        """Stop watching a sink, and publish the end of its run."""
        with self._lock:
            self._sinks.pop(sink, None)
            self.metrics.sinks.pop(sink, None)
            report = self._reports.pop(sink, None)
        if report is not None:
            report.end()

    def start(self, settings: Settings, driver: str) -> int:
        """
        Start the metrics port and the lag checks; return the port.

        Raises:
            MetricsPortError: The port is in use, or the address is not this host's.
        """
        options = settings.sinks
        wanted = options.metrics_ports.get(driver, 0)
        host = options.metrics_host
        self._port = MetricsPort(host, wanted, self.metrics.page)
        _log.info("metrics port opened", host=host, port=self._port.port)
        self._thread.start()
        return self._port.port

    def listen(self, spark: SparkSession) -> None:
        """Record the engine's durations from now on."""
        spark.streams.addListener(EngineListener(self.metrics))  # type: ignore[arg-type]  # no subclass

    def close(self) -> None:
        """Stop the checks and the metrics port, and publish the end of all runs."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._port is not None:
            self._port.close()
        for report in self._reports.values():
            report.end()

    def check(self) -> None:
        """Publish each sink's progress, determine its lag, and log alarms."""
        with self._lock:
            self._check()

    def _published(self) -> Mapping[str, datetime]:
        """Return when each sink last published; read nothing if no sink is watched."""
        return self._store.times() if self._reports else {}

    def _check(self) -> None:
        # A broker that does not answer is waited for only once.
        is_answering = True
        for report in list(self._reports.values()):
            is_answering = is_answering and report.begin_run()
            report.store()
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

    def _take(self, sink: str, watched: WatchedSink, lag: Lag) -> None:
        watched.lag = lag
        if not watched.alarm.update(lag.seconds):
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
        while not self._stop.wait(CHECK_EVERY_S):
            try:
                self.check()
            except Exception:  # noqa: BLE001 - the sinks continue
                _log.exception("sink lag check failed: retrying")
