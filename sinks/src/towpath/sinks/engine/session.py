"""
The engine: one Spark session per driver process, set up for small, frequent batches.

The settings come from measurements: for each batch's checkpoint, the raw local file
system forks two processes instead of four, and VFORK halves what each of them costs; a
stack of 4 MB because stopping a query overflows the default one; the serial collector
because a driver shares its cores with the targets.

On a cluster the engine finds its own addresses and counts its own cores. Where
``spark-submit`` has started this process, the Java process is there already, and what
it was told stands.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import (  # type: ignore[import-untyped]  # has no stubs
    Py4JError,
    Py4JJavaError,
)
from pyspark import SparkConf, SparkContext
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
)
from pyspark.sql import SparkSession

from towpath.sinks.errors import (
    BatchRefusedError,
    EngineDiedError,
    StatementRefusedError,
    TargetUnavailableError,
)
from towpath.sinks.state import progress

_JAVA_OPTIONS: Final = (
    "-Xss4m -XX:+UseSerialGC -XX:-UsePerfData -Djdk.lang.Process.launchMechanism=VFORK"
)

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.scheduler.mode": "FAIR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": (
        "org.apache.hadoop.fs.local.RawLocalFs"
    ),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # What the engine shows of a source's options has no login and no key.
    "spark.redaction.regex": (
        r"(?i)secret|password|token|access[.]?key|jaas|ssl[.](key|keystore)[.]"
    ),
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stopTimeout": "30s",
}

_HERE: Final = "local"
_SETTINGS_HERE: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
}

# A batch is small for a cluster: the default of 200 parts would be all overhead.
_SETTINGS_AWAY: Final[Mapping[str, str]] = {"spark.sql.shuffle.partitions": "8"}


# Cardinality, data and integrity, as the standard of SQL counts its states: of these a
# row is the cause, and the same statement without it goes through.
_ROW_STATES: Final = frozenset({"21", "22", "23"})
_ROW_ERRORS: Final = (ArithmeticException, DateTimeException, NumberFormatException)
# What Iceberg raises for a value that has no room where it is to stand.
_MISFIT: Final = "AppendWriteException"


@dataclass(frozen=True, slots=True)
class Engine:
    """
    What a session is made of.

    Attributes:
        name: Name of the driver.
        jars: The connectors.
        folder: Where the engine may keep what it needs while it runs.
        memory: Heap of the Java process, as Java takes it (``1g``).
        extra: Further settings, such as a warehouse's catalog; above ours.
        master: Where the engine runs.
        is_submitted: Whether ``spark-submit`` has started this process.
    """

    name: str
    jars: tuple[Path, ...]
    folder: Path
    memory: str
    extra: Mapping[str, str]
    master: str = "local[2]"
    is_submitted: bool = False


def start_session(engine: Engine) -> SparkSession:
    """
    Start the engine; it dies with this process.

    Raises:
        EngineDiedError: It ended before it served, or could not begin.
    """
    # Failures inside a batch are raised and told by us; py4j would print them too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with progress.writing(engine.folder):
        engine.folder.mkdir(parents=True, exist_ok=True)
    submitted = _submitted() if engine.is_submitted else {}
    builder = SparkSession.builder.appName(engine.name)
    for name, value in settings_of(engine, submitted).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        told = str(error).strip().partition("\n")[0]
        reason = f"the engine's Java process did not start: {told}"
        raise EngineDiedError(reason) from error


def settings_of(engine: Engine, submitted: Mapping[str, str]) -> dict[str, str]:
    """
    Return what the engine is still to be told.

    Args:
        engine: What it is to be made of.
        submitted: What ``spark-submit`` has told it already.
    """
    master = submitted.get("spark.master", engine.master)
    jars = {"spark.jars": ",".join(map(str, engine.jars))} if engine.jars else {}
    wanted = {
        **_SETTINGS,
        **(_SETTINGS_HERE if master.startswith(_HERE) else _SETTINGS_AWAY),
        **jars,
        "spark.master": master,
        "spark.driver.memory": engine.memory,
        "spark.local.dir": str(engine.folder),
        "spark.sql.warehouse.dir": str(engine.folder / "tables"),
        **engine.extra,
    }
    return {name: text for name, text in wanted.items() if name not in submitted}


def is_alive(session: SparkSession) -> bool:
    """
    Tell whether the engine still runs; without it nothing else can.

    It ends with its process, and also when its cluster gives it up.
    """
    context = session.sparkContext
    gateway = context._gateway  # noqa: SLF001 - there is no public way
    if gateway is None or (
        gateway.proc is not None and gateway.proc.poll() is not None
    ):
        return False
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001 - likewise
    except (Py4JError, OSError, AttributeError):
        return False


def _submitted() -> dict[str, str]:
    """Return what ``spark-submit`` was told, by its arguments and its files."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the process there is
    return dict(SparkConf().getAll())


class SparkSql:
    """SQL on a session, with the engine's errors turned into ours."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def sql(self, text: str) -> pa.Table:
        try:
            return self._session.sql(text).toArrow()
        except AnalysisException as error:
            message = f"the warehouse refused a statement: {first_line(error)}"
            raise StatementRefusedError(message) from error
        except (PySparkException, Py4JError) as error:
            if _is_of_a_row(error):
                message = f"the warehouse refused a row: {first_line(error)}"
                raise BatchRefusedError(message) from error
            message = f"the warehouse could not carry it out: {first_line(error)}"
            raise TargetUnavailableError(message) from error

    def register(self, name: str, table: pa.Table) -> None:
        self._session.createDataFrame(table).createOrReplaceTempView(name)


def _is_of_a_row(error: BaseException | None) -> bool:
    """Tell whether a value of some row is what the engine refused, by its own code."""
    while error is not None:
        if isinstance(error, _ROW_ERRORS) or _is_misfit(error):
            return True
        state = error.getSqlState() if isinstance(error, PySparkException) else None
        if (state or "")[:2] in _ROW_STATES:
            return True
        # The engine's own failure stands behind the one of the job.
        error = getattr(error, "_cause", None)
    return False


def _is_misfit(error: BaseException) -> bool:
    if not isinstance(error, Py4JJavaError):
        return False
    name: str = error.java_exception.getClass().getSimpleName()
    return name == _MISFIT


def first_line(error: Exception) -> str:
    """Return what an error of the engine says; of a Java one, what that says."""
    told = error.java_exception if isinstance(error, Py4JJavaError) else error
    return str(told).strip().partition("\n")[0]
