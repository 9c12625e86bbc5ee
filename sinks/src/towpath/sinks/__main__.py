"""
The entry point of a driver, which joins the engine and the targets.

``run`` is the process of one Spark driver. The engine is found through ``JAVA_HOME``
and ``TOWPATH_SPARK_JARS`` (a folder), and ``TOWPATH_SPARK_MEMORY`` sets its heap;
``spark-submit`` brings its own engine (``submit``).
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

import pyspark
import structlog
from pyspark.sql import SparkSession

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import ConfigurationError, TowpathError
from towpath.schemas.lineage import (
    LineageReporter,
    lineage_folders,
    start_lineage,
)
from towpath.schemas.tracing import Tracer, start_tracing
from towpath.settings import Settings, WatchedFile, load
from towpath.settings import Sink as SinkSettings
from towpath.settings.logs import configure_logs
from towpath.sinks.engine.driver import Driver, SinkSelection, with_fixed_settings
from towpath.sinks.engine.executors import executor_spec, is_spread
from towpath.sinks.engine.lineage import sink_job
from towpath.sinks.engine.monitor import Monitor
from towpath.sinks.engine.session import (
    Engine,
    SparkSql,
    scratch_folder,
    start_session,
    tune_interpreter,
)
from towpath.sinks.engine.supervisor import SupervisorParts
from towpath.sinks.errors import EngineMissingError, SinkUnfitError
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.fetch import KafkaBatches
from towpath.sinks.kafka.offsets import KafkaEarliestPositions, KafkaRecordAges
from towpath.sinks.kafka.progress_topic import ProgressTopic
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.kafka.state_topic import StateTopic
from towpath.sinks.kinds import (
    RoutedRelations,
    SinkParts,
    check_kinds,
    engine_memory,
    engine_settings,
    kind_of,
)
from towpath.sinks.ports import Sink
from towpath.sinks.state import declare
from towpath.sinks.state.copies import NoCopies, StateCopies
from towpath.sinks.state.progress import progress_path, sink_folder, stored_progress
from towpath.sinks.targets.checks import check_block

_log = structlog.get_logger("towpath.sinks")

# The folder of the engine's own jars.
_OWN_JARS: Final = Path(pyspark.__file__).resolve().parent / "jars"

# Set by spark-submit in the process that it starts.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
# The prefix of Spark's settings for catalogs of tables.
_CATALOGS: Final = "spark.sql.catalog."


def run(
    config: Path,
    names: Sequence[str],
    driver: str | None,
    *,
    java_home: Path | None = None,
    jars: Path | None = None,
) -> int:
    """
    Run sinks in one driver until SIGTERM or SIGINT.

    Args:
        config: The configuration file.
        names: The sinks to run; empty for all sinks of the driver.
        driver: The driver whose sinks to run, including sinks added later.
        java_home: The folder of a Java 21 runtime; by default ``JAVA_HOME``.
        jars: The folder of the engine's connectors; by default ``TOWPATH_SPARK_JARS``.

    Raises:
        ConfigurationError: The configuration has mistakes.
        UnknownSinkError: A named sink is not declared.
        UsageError: Two sinks need different engines.
        KindBrokenError: The package of a sink's kind does not provide it.
        EngineMissingError: Java or the connectors are missing.
        EngineDiedError: The engine's process ended unexpectedly.
        MetricsPortError: The metrics port is in use, or its address is not this host's.
        StateNotWrittenError: The folder of temporary files cannot be created.
    """
    environ = os.environ  # noqa: TID251 - the entry point
    configure_logs()
    settings = load(config, environ)
    chosen = [declare.sink_named(settings, name) for name in names]
    chosen = chosen or [s for s in settings.sink if s.driver == driver]
    if java_home is not None:
        environ["JAVA_HOME"] = str(java_home)
    # By default executors run the interpreter of this process.
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    name = driver or "-".join(names)
    engine = engine_for(name, settings, chosen, environ, jars)
    with ExitStack() as parts:
        scratch = parts.enter_context(scratch_folder(engine.folder))
        spark = start_session(replace(engine, folder=scratch))
        parts.callback(_end_session, spark)
        lineage = start_lineage(environ, lineage_folders(), _warn_of_lost_events)
        parts.callback(lineage.close)
        monitor = _monitor(settings, parts, lineage)
        tracer = parts.enter_context(_tracing(environ))
        stop = _stop_event()
        tune_interpreter()
        monitor.listen(spark)
        monitor.start(settings, name)
        Driver(
            spark,
            SinkSelection(tuple(names), driver),
            *(settings, WatchedFile(config, environ)),
            _parts(NewestSettings(config, environ, settings), spark, monitor, tracer),
            stop,
        ).run()
    _log.info("driver stopped", driver=name)
    return 0


def _monitor(settings: Settings, parts: ExitStack, lineage: LineageReporter) -> Monitor:
    """Make the monitor of the driver's sinks; it is closed with the other parts."""
    clock = SystemClock()
    oldest = KafkaRecordAges(settings.kafka, settings.database.prefix)
    progress = parts.enter_context(closing(ProgressTopic(settings, clock)))
    monitor = Monitor(
        *(Topics(settings.kafka), oldest, progress, clock, lineage),
        job_of=partial(sink_job, settings),
    )
    parts.callback(monitor.close)
    return monitor


@contextmanager
def _tracing(environ: Mapping[str, str]) -> Iterator[Tracer]:
    """Yield the driver's tracer, and export its last spans at the end."""
    tracer = start_tracing("towpath-sinks", environ, _warn_of_lost_spans)
    try:
        yield tracer
    finally:
        tracer.close()
        if tracer.is_on:
            _log.info("traces closed", **asdict(tracer.counts))


def _warn_of_lost_spans(reason: str) -> None:
    """Log why spans are not exported; the driver continues without them."""
    _log.warning("traces not exported", reason=reason)


def _warn_of_lost_events(reason: str) -> None:
    """Log why lineage events are not sent; the driver continues without them."""
    _log.warning("lineage not reported", reason=reason)


def _end_session(spark: SparkSession) -> None:
    with suppress(Exception):
        spark.stop()


def _stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def engine_for(
    name: str,
    settings: Settings,
    sinks: Sequence[SinkSettings],
    environ: Mapping[str, str],
    jars: Path | None,
) -> Engine:
    """Return the parameters of the engine for a driver's sinks."""
    is_submitted = _SUBMITTED in environ
    sink_settings = engine_settings(sinks)
    catalogs = [x for x in settings.spark.settings if x.startswith(_CATALOGS)]
    return Engine(
        name=f"towpath-{name}",
        # A submitted driver already has its jars: from --jars, or in its image.
        jars=() if is_submitted else _connectors(environ, jars),
        folder=settings.state_folder / "sinks" / f".{name}",
        memory=environ.get("TOWPATH_SPARK_MEMORY", engine_memory(sinks)),
        extra={**sink_settings, **settings.spark.settings},
        has_tables=bool(sink_settings or catalogs),
        master=settings.spark.master,
        is_submitted=is_submitted,
    )


def _connectors(environ: Mapping[str, str], jars: Path | None) -> tuple[Path, ...]:
    """
    Return the connectors that the engine must be given; check that Java exists.

    The engine loads the jars of its own folder automatically, on every machine.
    """
    given = jars or environ.get("TOWPATH_SPARK_JARS")
    folder = Path(given or "")
    found = tuple(sorted(folder.glob("*.jar"))) if given else ()
    if not found:
        message = "the folder of the engine's connectors is unknown or empty"
        raise EngineMissingError(message)
    if not (Path(environ.get("JAVA_HOME", "")) / "bin" / "java").exists():
        message = "JAVA_HOME is not the folder of a Java installation"
        raise EngineMissingError(message)
    return () if folder.resolve() == _OWN_JARS else found


class NewestSettings:
    """
    Loads the configuration, but keeps the folder and brokers of the running driver.

    If the file has mistakes, the last valid one is returned; the driver reports them.
    """

    def __init__(
        self, config: Path, environ: Mapping[str, str], started: Settings
    ) -> None:
        self._config = config
        self._environ = environ
        self.started = self._settings = started

    def __call__(self) -> Settings:
        with suppress(ConfigurationError):
            found = load(self._config, self._environ)
            self._settings = with_fixed_settings(self.started, found)
        return self._settings


def _check_engine(sink: SinkSettings, spark: SparkSession) -> None:
    """Check that the engine was started with the settings that a sink needs."""
    for name, value in kind_of(sink).engine(sink).items():
        if spark.conf.get(name, None) != value:
            message = (
                f"{sink.name}: the driver's engine has a different value of {name}, "
                "or none: restart the driver, unless [spark] settings or spark-submit "
                "set it"
            )
            raise SinkUnfitError(message)


def _parts(
    newest: NewestSettings, spark: SparkSession, monitor: Monitor, tracer: Tracer
) -> SupervisorParts:
    clock, settings = SystemClock(), newest.started
    prefix = settings.database.prefix

    def check(sink: SinkSettings) -> None:
        _check_engine(sink, spark)
        with closing(KafkaRelations(settings.kafka, prefix)) as relations:
            check_block(newest(), sink, relations)

    return SupervisorParts(
        make_sink=partial(_sink, newest, settings, spark),
        make_batches=partial(KafkaBatches, settings.kafka),
        make_dead_letters=partial(DeadLetterTopic, settings),
        cluster=Topics(settings.kafka),
        clock=clock,
        make_repairs=lambda sink: KafkaRepairs(newest(), sink),
        earliest_positions=KafkaEarliestPositions(settings.kafka),
        monitor=monitor,
        check=check,
        on_executor=partial(_on_executor, settings, str(spark.sparkContext.master)),
        make_announced=lambda: KafkaRelations(settings.kafka, prefix),
        make_copies=lambda sink: _copies(newest(), sink, clock),
        tracer=tracer,
    )


@contextmanager
def _sink(
    newest: NewestSettings, settings: Settings, spark: SparkSession, sink: SinkSettings
) -> Iterator[Sink]:
    """Make a sink; at the end, close it and the connection that it was made with."""
    check_kinds([sink])
    _check_engine(sink, spark)
    prefix = settings.database.prefix
    with closing(KafkaRelations(settings.kafka, prefix)) as announced:
        parts = SinkParts(
            prefix=prefix,
            replay_window_s=settings.topics.replay_window_s,
            folder=sink_folder(settings.state_folder, sink.name),
            relations=_routed(announced, settings, sink),
            clock=SystemClock(),
            repairs=KafkaRepairs(newest(), sink),
            sql=SparkSql.for_sink(spark),
        )
        with closing(kind_of(sink).make(sink, parts)) as made:
            yield made


def _on_executor(
    settings: Settings, master: str, sink: SinkSettings
) -> Callable[[], Sink] | None:
    """Return the function that makes a sink on executors, if executors write to it."""
    return executor_spec(settings, sink).make if is_spread(sink, master) else None


def _copies(
    settings: Settings, sink: SinkSettings, clock: SystemClock
) -> StateCopies | NoCopies:
    """Return the copies of a sink's state, if the configuration asks for them."""
    if not settings.sinks.state_copies:
        return NoCopies()
    folder = sink_folder(settings.state_folder, sink.name)
    return StateCopies(folder, StateTopic(settings, sink.name), clock)


def _routed(
    announced: KafkaRelations, settings: Settings, sink: SinkSettings
) -> RoutedRelations:
    """Return the shapes of a sink's tables, after checking its routes against them."""
    routed = RoutedRelations(announced, sink.route, kind_of(sink).unfit_name)
    path = progress_path(settings.state_folder, sink.name)
    routed.check(has_run=stored_progress(path, sink.name).batches > 0)
    return routed


def main() -> int:
    """Run the sinks that the command line names."""
    parser = argparse.ArgumentParser(prog="towpath.sinks", description="Run sinks.")
    parser.add_argument("names", nargs="*", help="sinks (default: all of --driver)")
    parser.add_argument("--config", type=Path, default=Path("towpath.toml"))
    parser.add_argument("--driver")
    given = parser.parse_args()
    if not given.names and given.driver is None:
        parser.error("name the sinks to run, or a driver")
    try:
        return run(given.config, given.names, given.driver)
    except TowpathError as failure:
        print(f"error: {failure}\nremedy: {failure.remedy}", file=sys.stderr)
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
