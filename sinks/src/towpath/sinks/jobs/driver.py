"""
One process, one engine, several sinks that do not know of each other.

The sinks of a driver are those that the configuration gives to it. The file is looked
at every second: a sink that was added starts beside the others, which are not touched.
"""

import threading
from dataclasses import dataclass
from typing import Final

import structlog
from pyspark.sql import SparkSession

from towpath.schemas.clock import Deadline
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, Sink, WatchedFile
from towpath.sinks.errors import EngineDiedError
from towpath.sinks.jobs.query import QueryPlan
from towpath.sinks.jobs.report import Report
from towpath.sinks.jobs.session import is_alive
from towpath.sinks.jobs.supervisor import Parts, Supervisor

LOOK_EVERY_S: Final = 1.0

# The engine lets a running batch finish for 30 s; the sum of all stops is bounded.
STOP_WITHIN_S: Final = 40.0

_log = structlog.get_logger("towpath.sinks.jobs")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which sinks a driver runs: those named, or all that the file gives to it."""

    names: tuple[str, ...] = ()
    driver: str | None = None

    def of(self, settings: Settings) -> tuple[Sink, ...]:
        """Return the chosen sinks."""
        if self.names:
            return tuple(s for s in settings.sink if s.name in self.names)
        return tuple(s for s in settings.sink if s.driver == self.driver)


class Driver:
    """Runs sinks until it is told to stop."""

    def __init__(
        self,
        spark: SparkSession,
        choice: Choice,
        configuration: WatchedFile,
        parts: Parts,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._choice = choice
        self._configuration = configuration
        self._parts = parts
        self._stop = stop
        self._supervisors: dict[str, Supervisor] = {}
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
        for name, supervisor in self._supervisors.items():
            if not supervisor.join(deadline.remaining_s()):
                _log.warning("sink did not stop in time", sink=name)

    def _look(self) -> None:
        """Start the sinks that the configuration has and we have not."""
        try:
            settings = self._configuration.changed()
        except ConfigurationError as error:
            if error.mistakes != self._mistakes:
                self._mistakes = error.mistakes
                _log.warning("configuration not read", mistakes=error.mistakes)
            return
        if settings is None:
            return
        self._mistakes = ()
        for sink in self._choice.of(settings):
            if sink.name not in self._supervisors:
                self._start(sink, settings)

    def _start(self, sink: Sink, settings: Settings) -> None:
        plan = QueryPlan(sink, settings.kafka.bootstrap_servers, settings.state_folder)
        report = Report(settings.state_folder, sink.name, self._parts.clock)
        supervisor = Supervisor(self._spark, plan, self._parts, report, self._stop)
        self._supervisors[sink.name] = supervisor
        _log.info("sink starting", sink=sink.name, routes=len(sink.route))
        supervisor.start()
