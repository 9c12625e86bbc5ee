"""
The engine: one Spark session per driver process, set up for small, frequent batches.

The settings come from measurements: for each batch's checkpoint, the raw local file
system forks two processes instead of four, and VFORK halves what each of them costs; a
stack of 4 MB because stopping a query overflows the default one; the serial collector
because a driver shares its cores with the targets.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from towpath.sinks.errors import StatementRefusedError, TargetUnavailableError

_JAVA_OPTIONS: Final = (
    "-Xss4m -XX:+UseSerialGC -XX:-UsePerfData -Djdk.lang.Process.launchMechanism=VFORK"
)

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.default.parallelism": "2",
    "spark.scheduler.mode": "FAIR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": (
        "org.apache.hadoop.fs.local.RawLocalFs"
    ),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stopTimeout": "30s",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """
    What a session is made of.

    Attributes:
        name: Name of the driver.
        jars: The connectors.
        folder: Where the engine may keep what it needs while it runs.
        memory: Heap of the Java process, as Java takes it (``1g``).
        extra: Further settings, such as a warehouse's catalog.
    """

    name: str
    jars: tuple[Path, ...]
    folder: Path
    memory: str
    extra: Mapping[str, str]


def start_session(engine: Engine) -> SparkSession:
    """Start the engine; it dies with this process."""
    # Failures inside a batch are raised and told by us; py4j would print them too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    engine.folder.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master("local[2]").appName(engine.name)
    settings = {
        **_SETTINGS,
        **engine.extra,
        "spark.jars": _listed(engine.jars),
        "spark.driver.memory": engine.memory,
        "spark.local.dir": str(engine.folder),
        "spark.sql.warehouse.dir": str(engine.folder / "tables"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def is_alive(session: SparkSession) -> bool:
    """Tell whether the engine's process still runs; without it nothing else can."""
    gateway = session.sparkContext._gateway  # noqa: SLF001 - there is no public way
    return gateway is not None and gateway.proc.poll() is None


class SparkSql:
    """SQL on a session, with the engine's errors turned into ours."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def sql(self, text: str) -> pa.Table:
        try:
            return self._session.sql(text).toArrow()
        except AnalysisException as error:
            message = f"the warehouse refused a statement: {_first_line(error)}"
            raise StatementRefusedError(message) from error
        except (PySparkException, Py4JError) as error:
            message = f"the warehouse could not carry it out: {_first_line(error)}"
            raise TargetUnavailableError(message) from error

    def register(self, name: str, table: pa.Table) -> None:
        self._session.createDataFrame(table).createOrReplaceTempView(name)


def _listed(jars: Iterable[Path]) -> str:
    return ",".join(str(jar) for jar in jars)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
