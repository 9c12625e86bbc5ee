"""
A driver: one process and one engine that run several independent sinks.

A driver runs the sinks that the configuration assigns to it. The configuration file is
checked every second: an added sink is started, a removed one is stopped, and one whose
block has changed is checked, stopped and started again; the others are untouched. A
healthy sink keeps its previous block if the new one does not fit. The new block is
checked again every ten seconds, because its tables or its target may change. A running
sink's folder is locked, so that no other driver runs it and no command drops it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from pyspark.sql import SparkSession

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import (
    ConfigurationError,
    TowpathError,
    UnavailableError,
    with_remedy,
)
from towpath.settings import Settings, Sink, WatchedFile
from towpath.sinks.engine.query import FINISH_WITHIN_S, QueryPlan
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.session import (
    STOP_QUERY_WITHIN_S,
    is_alive,
    is_waiting_for_executors,
)
from towpath.sinks.engine.supervisor import Supervisor, SupervisorParts
from towpath.sinks.errors import EngineDiedError
from towpath.sinks.state.files import FolderLock, lock_sink
from towpath.sinks.state.progress import State

CHECK_EVERY_S: Final = 1.0

# Each check opens new connections to the broker and the target.
CHECK_AGAIN_EVERY_S: Final = 10.0

# All sinks stop at the same time: each waits for its batch, has its query stopped, and
# then closes its connections.
_CLOSE_WITHIN_S: Final = 5.0
STOP_WITHIN_S: Final = FINISH_WITHIN_S + STOP_QUERY_WITHIN_S + _CLOSE_WITHIN_S

# Even a busy cluster starts an executor within seconds. Spark keeps restarting an
# executor that cannot run, and only the workers' logs show the reason.
EXECUTORS_WITHIN_S: Final = 30.0

_log = structlog.get_logger("towpath.sinks")


@dataclass(frozen=True, slots=True)
class SinkSelection:
    """
    The sinks that a driver runs.

    Either the named sinks, or all that the configuration assigns to the driver.
    """

    names: tuple[str, ...] = ()
    driver: str | None = None

    def of(self, settings: Settings) -> tuple[Sink, ...]:
        """Return the selected sinks."""
        if self.names:
            return tuple(s for s in settings.sink if s.name in self.names)
        return tuple(s for s in settings.sink if s.driver == self.driver)


class _RefusedBlock(NamedTuple):
    """A block that does not fit, the reason, and when it is checked again."""

    sink: Sink
    why: str
    next: Deadline


@dataclass(frozen=True, slots=True)
class _RunningSink:
    """A running sink as it was declared, with its folder's lock."""

    sink: Sink
    report: Report
    supervisor: Supervisor
    stop: threading.Event
    lock: FolderLock


class ExecutorWatch:
    """Logs once when jobs wait for executors, and once when they no longer do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline: Deadline | None = None
        self._is_missing = False

    def observe(self, *, is_waiting: bool) -> None:
        """Note whether jobs are now waiting for a first executor."""
        if not is_waiting:
            if self._is_missing:
                _log.info("executor no longer awaited: no batch waits")
            self._deadline, self._is_missing = None, False
        elif self._deadline is None:
            self._deadline = Deadline(self._clock, EXECUTORS_WITHIN_S)
        elif not self._is_missing and self._deadline.passed():
            self._is_missing = True
            _log.warning(
                "executor missing: batches wait for the cluster",
                waited_s=EXECUTORS_WITHIN_S,
                remedy="Look at the master's page for workers with free cores and "
                "memory, and at a worker's log for the reason executors end. "
                "spark.executor.memory must be at least 512m.",
            )


# The settings that a driver keeps while it runs.
_FIXED_SETTINGS: Final = ("state_folder", "kafka")


def with_fixed_settings(started: Settings, settings: Settings) -> Settings:
    """
    Return new settings with the state folder and brokers that the driver started with.

    A sink that starts later must find its state and its records where the other sinks
    find theirs.
    """
    own = {name: getattr(started, name) for name in _FIXED_SETTINGS}
    return settings.model_copy(update=own)


class Driver:
    """Runs sinks until it is stopped."""

    def __init__(
        self,
        spark: SparkSession,
        choice: SinkSelection,
        started: Settings,
        configuration: WatchedFile,
        parts: SupervisorParts,
        stop: threading.Event,
    ) -> None:
        """
        Store the parameters; no sink is started yet.

        Args:
            spark: The engine.
            choice: Selects the sinks of this driver.
            started: The settings with which the process started.
            configuration: The file, which may change while the driver runs.
            parts: The services of the supervisors.
            stop: Stops the driver.
        """
        self._spark = spark
        self._started = started
        self._choice = choice
        self._configuration = configuration
        self._parts = parts
        self._stop = stop
        self._settings: Settings | None = None
        self._running: dict[str, _RunningSink] = {}
        self._locked_elsewhere: set[str] = set()
        self._unstarted: set[str] = set()
        self._refused: dict[str, _RefusedBlock] = {}
        self._mistakes: tuple[str, ...] = ()
        self._executors = ExecutorWatch(parts.clock)

    def run(self) -> None:
        """
        Keep the selected sinks running until stopped; then wait for them to end.

        A sink that has not ended after ``STOP_WITHIN_S`` is abandoned.

        Raises:
            EngineDiedError: The engine's process ended unexpectedly.
        """
        while not self._stop.is_set():
            self._check_configuration()
            if not is_alive(self._spark):
                message = "the engine's Java process ended unexpectedly"
                raise EngineDiedError(message)
            self._executors.observe(is_waiting=is_waiting_for_executors(self._spark))
            self._stop.wait(CHECK_EVERY_S)
        deadline = Deadline(self._parts.clock, STOP_WITHIN_S)
        for running in self._running.values():
            running.stop.set()
        for name, running in self._running.items():
            if not running.supervisor.join(deadline.remaining_s()):
                _log.warning("sink not stopped in time: abandoning it", sink=name)

    def _check_configuration(self) -> None:
        """Read the configuration if it has changed, and reconcile the running sinks."""
        settings: Settings | None = None
        try:
            settings = self._configuration.changed()
        except ConfigurationError as error:
            if error.mistakes != self._mistakes:
                self._mistakes = found = error.mistakes
                _log.warning(
                    "configuration not loaded: it has mistakes", mistakes=found
                )
        if settings is not None:
            self._mistakes = ()
            self._settings = self._with_fixed_settings(settings)
        if self._settings is not None:
            self._reconcile(self._settings)

    def _with_fixed_settings(self, settings: Settings) -> Settings:
        """Keep the driver's folder and brokers in new settings; log edits to either."""
        kept = with_fixed_settings(self._started, settings)
        edited = [
            name
            for name in _FIXED_SETTINGS
            if getattr(settings, name) != getattr(kept, name)
        ]
        if edited:
            _log.warning(
                "configuration of the driver changed: it applies after a restart",
                names=edited,
            )
        return kept

    def _reconcile(self, settings: Settings) -> None:
        wanted = {sink.name: sink for sink in self._choice.of(settings)}
        for name, running in tuple(self._running.items()):
            if name not in wanted or running.stop.is_set():
                self._stop_sink(name, running)
            elif running.supervisor.join(0):
                start = partial(self._start_again, running, settings)
                self._try_to_start(running.sink, start)
            elif wanted[name] == running.sink:
                self._clear_refusal(running)
            elif self._is_check_due(wanted[name]):
                self._change(running, wanted[name])
        for name, sink in wanted.items():
            if name not in self._running:
                self._try_to_start(sink, partial(self._start, sink, settings))

    def _is_check_due(self, sink: Sink) -> bool:
        """Return whether a changed block is unchecked, or due for another check."""
        refused = self._refused.get(sink.name)
        return refused is None or refused.sink != sink or refused.next.passed()

    def _change(self, running: _RunningSink, sink: Sink) -> None:
        """Stop a sink whose new block fits, so that it starts again with that block."""
        is_healthy = running.report.progress.state is not State.FAILED
        try:
            # A failed sink has nothing to lose, and reports its next failure.
            if is_healthy:
                self._parts.check(sink)
        except UnavailableError as error:
            name, why = sink.name, str(error)
            _log.warning("sink block not checked: retrying", sink=name, why=why)
            return
        except TowpathError as error:
            self._refuse(running, sink, error)
            return
        _log.info("sink block changed: restarting the sink", sink=sink.name)
        self._clear_refusal(running)
        running.stop.set()

    def _refuse(self, running: _RunningSink, sink: Sink, error: TowpathError) -> None:
        """Log once why a block does not fit, and schedule the next check."""
        mistakes = str(error).split("\n")
        why = with_remedy("; ".join(mistakes), error.remedy)
        before = self._refused.get(sink.name)
        if before is None or (before.sink, before.why) != (sink, why):
            _log.error(
                "sink block refused: keeping the previous one",
                sink=sink.name,
                mistakes=mistakes,
                remedy=error.remedy,
            )
        again = Deadline(self._parts.clock, CHECK_AGAIN_EVERY_S)
        self._refused[sink.name] = _RefusedBlock(sink, why, again)
        running.report.refused(why)

    def _clear_refusal(self, running: _RunningSink) -> None:
        """Forget a refused block."""
        self._refused.pop(running.sink.name, None)
        running.report.refused(None)

    def _stop_sink(self, name: str, running: _RunningSink) -> None:
        """Stop a sink, and release its folder once it has stopped."""
        running.stop.set()
        if running.supervisor.join(0):
            self._unlock(name, running.lock)
            del self._running[name]
            _log.info("sink stopped: its block was removed or changed", sink=name)

    def _start_again(self, running: _RunningSink, settings: Settings) -> None:
        """Restart a sink whose supervisor has ended unexpectedly."""
        if running.sink.name not in self._unstarted:
            running.report.failed(
                "the sink's supervisor ended unexpectedly",
                remedy="Read the driver's log; the sink restarts automatically.",
                retry_after_s=0,
            )
        again = self._supervisor(running.sink, settings, running.report, running.stop)
        self._running[running.sink.name] = replace(running, supervisor=again)
        again.start()

    def _try_to_start(self, sink: Sink, start: Callable[[], None]) -> None:
        """Start a sink; if it cannot be started, the next check retries."""
        try:
            start()
        except TowpathError as error:
            if sink.name not in self._unstarted:
                _log.error(
                    "sink not started: retrying",
                    sink=sink.name,
                    error=str(error),
                    remedy=error.remedy,
                )
            self._unstarted.add(sink.name)
        else:
            self._unstarted.discard(sink.name)

    def _start(self, sink: Sink, settings: Settings) -> None:
        lock = lock_sink(settings.state_folder, sink.name)
        if lock is None:
            if sink.name not in self._locked_elsewhere:
                _log.warning("sink locked by another process: waiting", sink=sink.name)
            self._locked_elsewhere.add(sink.name)
            return
        self._locked_elsewhere.discard(sink.name)
        try:
            running = self._make_running(sink, settings, lock)
        except TowpathError:
            self._unlock(sink.name, lock)
            raise
        self._running[sink.name] = running
        _log.info("sink starting", sink=sink.name, routes=len(sink.route))
        running.supervisor.start()

    def _make_running(
        self, sink: Sink, settings: Settings, lock: FolderLock
    ) -> _RunningSink:
        """Make the parts of a sink, which is not started yet."""
        report = self._report(sink, settings.state_folder)
        # The sink runs with the current block: an earlier refusal is void.
        report.refused(None)
        stop = threading.Event()
        supervisor = self._supervisor(sink, settings, report, stop)
        return _RunningSink(sink, report, supervisor, stop, lock)

    def _unlock(self, name: str, lock: FolderLock) -> None:
        """Stop watching a sink, and release its folder."""
        if self._parts.monitor is not None:
            self._parts.monitor.forget(name)
        lock.release()

    def _supervisor(
        self, sink: Sink, settings: Settings, report: Report, stop: threading.Event
    ) -> Supervisor:
        plan = QueryPlan(sink, settings.kafka, settings.state_folder)
        return Supervisor(self._spark, plan, self._parts, report, stop)

    def _report(self, sink: Sink, state_folder: Path) -> Report:
        monitor = self._parts.monitor
        if monitor is not None:
            return monitor.report(state_folder, sink)
        return Report(state_folder, sink.name, self._parts.clock)
