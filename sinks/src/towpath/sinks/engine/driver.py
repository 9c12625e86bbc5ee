"""
One process, one engine, several sinks that do not know of each other.

The sinks of a driver are those that the configuration gives to it. The file is looked
at every second: a sink that was added starts beside the others, one that is gone is let
go of, and one whose block has changed is checked, stopped and started anew; the rest is
not touched. A sink that runs well goes on as it was if its new block does not fit; the
block is checked again every few seconds, because its tables or its target may come to
fit it. A sink's folder is held while it runs: no two drivers run it, and nobody takes
it away meanwhile.
"""

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from pyspark.sql import SparkSession

from towpath.schemas.clock import Deadline
from towpath.schemas.failure import ConfigurationError, TowpathError, UnavailableError
from towpath.settings import Settings, Sink, WatchedFile
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.engine.report import Report
from towpath.sinks.engine.session import is_alive
from towpath.sinks.engine.supervisor import Supervisor, SupervisorParts
from towpath.sinks.errors import EngineDiedError, StateNotWrittenError
from towpath.sinks.state.files import SinkLock, lock_sink
from towpath.sinks.state.progress import State

LOOK_EVERY_S: Final = 1.0

# A check opens connections of its own to the broker and the target.
CHECK_AGAIN_EVERY_S: Final = 10.0

# The engine lets a running batch finish for 30 s; the sum of all stops is bounded.
STOP_WITHIN_S: Final = 40.0

_log = structlog.get_logger("towpath.sinks")


@dataclass(frozen=True, slots=True)
class SinkSelection:
    """Which sinks a driver runs: those named, or all that the file gives to it."""

    names: tuple[str, ...] = ()
    driver: str | None = None

    def of(self, settings: Settings) -> tuple[Sink, ...]:
        """Return the chosen sinks."""
        if self.names:
            return tuple(s for s in settings.sink if s.name in self.names)
        return tuple(s for s in settings.sink if s.driver == self.driver)


class _RefusedBlock(NamedTuple):
    """A block that did not fit, why, and when it is checked again."""

    sink: Sink
    why: str
    next: Deadline


@dataclass(frozen=True, slots=True)
class _RunningSink:
    """A sink that runs as declared, how it is told to stop, and its folder."""

    sink: Sink
    report: Report
    supervisor: Supervisor
    stop: threading.Event
    held: SinkLock


class Driver:
    """Runs sinks until it is told to stop."""

    def __init__(
        self,
        spark: SparkSession,
        choice: SinkSelection,
        configuration: WatchedFile,
        parts: SupervisorParts,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._choice = choice
        self._configuration = configuration
        self._parts = parts
        self._stop = stop
        self._settings: Settings | None = None
        self._running: dict[str, _RunningSink] = {}
        self._awaited: set[str] = set()
        self._unstarted: set[str] = set()
        self._refused: dict[str, _RefusedBlock] = {}
        self._mistakes: tuple[str, ...] = ()

    def run(self) -> None:
        """
        Keep every chosen sink running; return when all of them have stopped.

        Raises:
            EngineDiedError: The engine's process ended by itself.
        """
        while not self._stop.is_set():
            self._look()
            if not is_alive(self._spark):
                message = "the engine's Java process ended by itself"
                raise EngineDiedError(message)
            self._stop.wait(LOOK_EVERY_S)
        deadline = Deadline(self._parts.clock, STOP_WITHIN_S)
        for running in self._running.values():
            running.stop.set()
        for name, running in self._running.items():
            if not running.supervisor.join(deadline.remaining_s()):
                _log.warning("sink did not stop in time", sink=name)

    def _look(self) -> None:
        """Start the sinks that the configuration has and we have not; and let go."""
        try:
            settings = self._configuration.changed()
        except ConfigurationError as error:
            if error.mistakes != self._mistakes:
                self._mistakes = error.mistakes
                _log.warning("configuration not read", mistakes=error.mistakes)
            return
        if settings is not None:
            self._mistakes = ()
            self._settings = settings
        if self._settings is not None:
            self._match(self._settings)

    def _match(self, settings: Settings) -> None:
        wanted = {sink.name: sink for sink in self._choice.of(settings)}
        for name, running in tuple(self._running.items()):
            if name not in wanted or running.stop.is_set():
                self._let_go(name, running)
            elif running.supervisor.join(0):
                self._start_again(running, settings)
            elif wanted[name] == running.sink:
                self._forgive(running)
            elif self._is_to_be_checked(wanted[name]):
                self._change(running, wanted[name])
        for name, sink in wanted.items():
            if name not in self._running:
                self._try_to_start(sink, settings)

    def _is_to_be_checked(self, sink: Sink) -> bool:
        """Tell whether a changed block was not checked yet, or long ago."""
        refused = self._refused.get(sink.name)
        return refused is None or refused.sink != sink or refused.next.passed()

    def _change(self, running: _RunningSink, sink: Sink) -> None:
        """Have a sink stop, to start anew as it is declared now, if that will do."""
        is_well = running.report.progress.state is not State.FAILED
        try:
            # What fails as it is has nothing to lose, and tells what it fails of next.
            if is_well:
                self._parts.check(sink)
        except UnavailableError as error:
            _log.warning("changed block not checked", sink=sink.name, why=str(error))
            return
        except TowpathError as error:
            self._refuse(running, sink, error)
            return
        _log.info("block changed: the sink starts anew", sink=sink.name)
        self._forgive(running)
        running.stop.set()

    def _refuse(self, running: _RunningSink, sink: Sink, error: TowpathError) -> None:
        """Say once why a block does not fit, and check it again later."""
        mistakes = str(error).split("\n")
        why = f"{'; '.join(mistakes)}. {error.remedy}"
        before = self._refused.get(sink.name)
        if before is None or (before.sink, before.why) != (sink, why):
            _log.error(
                "changed block refused: the sink goes on as it was",
                sink=sink.name,
                mistakes=mistakes,
                remedy=error.remedy,
            )
        again = Deadline(self._parts.clock, CHECK_AGAIN_EVERY_S)
        self._refused[sink.name] = _RefusedBlock(sink, why, again)
        running.report.refused(why)

    def _forgive(self, running: _RunningSink) -> None:
        """Forget a block that was refused, and say no more of it."""
        self._refused.pop(running.sink.name, None)
        running.report.refused(None)

    def _let_go(self, name: str, running: _RunningSink) -> None:
        """Stop a sink; its folder is free once it has."""
        running.stop.set()
        if running.supervisor.join(0):
            if self._parts.monitor is not None:
                self._parts.monitor.forget(name)
            running.held.release()
            del self._running[name]
            _log.info("sink let go", sink=name)

    def _start_again(self, running: _RunningSink, settings: Settings) -> None:
        """Start a sink again whose supervisor has ended although nobody stopped it."""
        running.report.failed(
            "the sink's supervisor ended by itself",
            remedy="Read the driver's log; the sink starts again by itself.",
            retry_after_s=0,
        )
        again = self._supervisor(running.sink, settings, running.report, running.stop)
        self._running[running.sink.name] = replace(running, supervisor=again)
        again.start()

    def _try_to_start(self, sink: Sink, settings: Settings) -> None:
        """Start a sink; one whose folder cannot be written is tried again."""
        try:
            self._start(sink, settings)
        except StateNotWrittenError as error:
            if sink.name not in self._unstarted:
                _log.error(
                    "sink not started: trying again",
                    sink=sink.name,
                    error=str(error),
                    remedy=error.remedy,
                )
            self._unstarted.add(sink.name)
        else:
            self._unstarted.discard(sink.name)

    def _start(self, sink: Sink, settings: Settings) -> None:
        held = lock_sink(settings.state_folder, sink.name)
        if held is None:
            if sink.name not in self._awaited:
                _log.warning("another process has the sink: waiting", sink=sink.name)
            self._awaited.add(sink.name)
            return
        self._awaited.discard(sink.name)
        report = self._report(sink, settings.state_folder)
        # What is declared now is what runs, whatever was refused before.
        report.refused(None)
        stop = threading.Event()
        supervisor = self._supervisor(sink, settings, report, stop)
        self._running[sink.name] = _RunningSink(sink, report, supervisor, stop, held)
        _log.info("sink starting", sink=sink.name, routes=len(sink.route))
        supervisor.start()

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
