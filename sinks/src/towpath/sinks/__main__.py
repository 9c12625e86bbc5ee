"""
The root of the sinks: the only place that knows both the jobs and the targets.

``run`` is the process of one Spark driver. ``declare_sink``, ``wait_running``,
``wait_applied``, ``sink_ends`` and ``lags`` are for whoever adds sinks and watches
them. The engine is found by ``JAVA_HOME`` and ``TOWPATH_SPARK_JARS`` (a folder), its
heap is ``TOWPATH_SPARK_MEMORY``.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import SparkSession

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import TowpathError, UsageError
from towpath.settings import Settings, SinkKind, WatchedFile, load
from towpath.settings import Sink as SinkSettings
from towpath.settings.logs import configure_logs
from towpath.sinks import declare
from towpath.sinks.cache.sink import CacheSink
from towpath.sinks.declare import SinkLag
from towpath.sinks.errors import EngineMissingError
from towpath.sinks.jobs.driver import Choice, Driver
from towpath.sinks.jobs.session import Engine, SparkSql, start_session
from towpath.sinks.jobs.supervisor import Parts
from towpath.sinks.kafka import DeadLetters, KafkaRelations, Topics
from towpath.sinks.ports import Sink
from towpath.sinks.progress import Offsets
from towpath.sinks.search.sink import SearchSink
from towpath.sinks.warehouse.catalog import catalog_conf
from towpath.sinks.warehouse.sink import WarehouseSink

# Two serving queries stay below 1 GB in all; a MERGE needs room to sort and to hold
# the files that it rewrites.
_SERVING_MEMORY: Final = "1g"
_WAREHOUSE_MEMORY: Final = "2g"

_log = structlog.get_logger("towpath.sinks")


def run(
    config: Path,
    names: Sequence[str],
    driver: str | None,
    *,
    java_home: Path | None = None,
    jars: Path | None = None,
) -> int:
    """
    Run sinks in one driver until told to stop by SIGTERM or SIGINT.

    Args:
        config: The configuration file.
        names: The sinks to run; empty for all those of the driver.
        driver: The driver whose sinks to run, those added later included.
        java_home: A Java 21; left out, ``JAVA_HOME``.
        jars: The folder of the engine's connectors; left out, ``TOWPATH_SPARK_JARS``.

    Raises:
        ConfigurationError: The configuration has mistakes.
        UnknownSinkError: A named sink is not declared.
        EngineMissingError: There is no Java, or there are no connectors.
        EngineDiedError: The engine's process ended by itself.
    """
    environ = os.environ  # noqa: TID251 - the root
    configure_logs()
    settings = load(config, environ)
    chosen = [declare.sink_named(settings, name) for name in names]
    chosen = chosen or [s for s in settings.sink if s.driver == driver]
    if java_home is not None:
        environ["JAVA_HOME"] = str(java_home)
    name = driver or "-".join(names)
    spark = start_session(_engine(name, settings, chosen, environ, jars))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        Driver(
            spark,
            Choice(tuple(names), driver),
            WatchedFile(config, environ),
            _parts(settings, spark),
            stop,
        ).run()
    finally:
        with suppress(Exception):
            spark.stop()
    _log.info("driver stopped", driver=name)
    return 0


def declare_sink(config: Path, block: str) -> SinkSettings:
    """
    Add a ``[[sink]]`` block to the configuration, to begin at the present ends.

    Its driver starts it within a second or so; see ``wait_running``. Then ask for a
    snapshot with the sink as its target.

    Raises:
        ConfigurationError: The file with the block has mistakes; nothing was changed.
        SinkExistsError: The block declares no sink of a new name.
        UnavailableError: The broker does not answer; nothing was changed.
    """
    environ = os.environ  # noqa: TID251 - the root
    cluster = _cluster(_settings(config))
    return declare.declare_sink(config, block, environ, cluster, SystemClock())


def wait_running(config: Path, name: str, timeout_s: float = 60.0) -> None:
    """
    Wait until a sink's query runs.

    Raises:
        SinkNotRunningError: It does not run in time; its own error is told.
    """
    declare.wait_running(_settings(config), name, SystemClock(), timeout_s)


def sink_ends(config: Path, name: str) -> Offsets:
    """
    Return the present end offsets of a sink's topics.

    Raises:
        UnknownSinkError: There is no such sink.
        UnavailableError: The broker does not answer.
    """
    settings = _settings(config)
    return declare.sink_ends(settings, name, _cluster(settings))


def wait_applied(
    config: Path, name: str, offsets: Offsets, stuck_after_s: float
) -> None:
    """
    Wait until a sink has applied everything below the given offsets.

    Raises:
        SinkNotRunningError: It stands still for so long; its own error is told.
    """
    declare.wait_applied(_settings(config), name, offsets, SystemClock(), stuck_after_s)


def mark_ready(config: Path, name: str) -> None:
    """State that a new sink has everything: its snapshot ended and was applied."""
    declare.mark_ready(_settings(config), name)


def lags(config: Path) -> list[SinkLag]:
    """
    Tell how far each sink is behind.

    Raises:
        UnavailableError: The broker does not answer.
    """
    settings = _settings(config)
    cluster = _cluster(settings)
    return [declare.lag_of(settings, sink.name, cluster) for sink in settings.sink]


def _settings(config: Path) -> Settings:
    return load(config, os.environ)  # noqa: TID251 - the root


def _cluster(settings: Settings) -> Topics:
    return Topics(settings.kafka.bootstrap_servers)


def _engine(
    name: str,
    settings: Settings,
    sinks: Sequence[SinkSettings],
    environ: Mapping[str, str],
    jars: Path | None,
) -> Engine:
    lakes = [sink for sink in sinks if sink.kind is SinkKind.WAREHOUSE]
    if len(lakes) > 1:
        message = "a driver writes one warehouse; give each a driver of its own"
        raise UsageError(message)
    folder = jars or Path(environ.get("TOWPATH_SPARK_JARS", ""))
    found = tuple(sorted(folder.glob("*.jar"))) if folder.name else ()
    if not found:
        message = "the folder of the engine's connectors is not known or empty"
        raise EngineMissingError(message)
    if not (Path(environ.get("JAVA_HOME", "")) / "bin" / "java").exists():
        message = "JAVA_HOME names no Java"
        raise EngineMissingError(message)
    default_memory = _WAREHOUSE_MEMORY if lakes else _SERVING_MEMORY
    return Engine(
        name=f"towpath-{name}",
        jars=found,
        folder=settings.state_folder / "sinks" / f".{name}",
        memory=environ.get("TOWPATH_SPARK_MEMORY", default_memory),
        extra=catalog_conf(lakes[0]) if lakes else {},
    )


def _parts(settings: Settings, spark: SparkSession) -> Parts:
    clock = SystemClock()
    prefix = settings.database.prefix

    def relations() -> KafkaRelations:
        return KafkaRelations(settings.kafka.bootstrap_servers, prefix)

    def make_sink(sink: SinkSettings) -> Sink:
        match sink.kind:
            case SinkKind.CACHE:
                window_s = settings.topics.replay_window_s
                return CacheSink(sink.url, prefix, window_s)
            case SinkKind.SEARCH:
                return SearchSink(sink.url, sink.route, relations(), clock)
            case SinkKind.WAREHOUSE:
                return WarehouseSink(sink, relations(), SparkSql(spark))

    return Parts(
        make_sink=make_sink,
        make_dead_letters=lambda name: DeadLetters(settings, name),
        cluster=_cluster(settings),
        clock=clock,
    )


def main() -> int:
    """Run the sinks that the command line names."""
    parser = argparse.ArgumentParser(prog="towpath.sinks", description="Run sinks.")
    parser.add_argument("names", nargs="*", help="sinks; none: all of the driver")
    parser.add_argument("--config", type=Path, default=Path("towpath.toml"))
    parser.add_argument("--driver")
    given = parser.parse_args()
    try:
        return run(given.config, given.names, given.driver)
    except TowpathError as failure:
        print(f"error: {failure}\nremedy: {failure.remedy}", file=sys.stderr)
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
