"""
The engine: one Spark session per driver process, tuned for small, frequent batches.

The settings were chosen by measurement. The raw local file system does not write a
checksum file for each file of a checkpoint, and VFORK halves the cost of each process
that Hadoop starts for such a file. The stack size is 4 MB because stopping a query
overflows a stack of the default size. Garbage is collected serially because a driver
shares its cores with the targets.

On a cluster the engine finds its own addresses and counts its own cores. Under
``spark-submit`` the Java process is already running, and its settings take precedence.
"""

import gc
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from zipimport import zipimporter

import orjson
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

from towpath.schemas.failure import first_line
from towpath.sinks.errors import (
    BatchRefusedError,
    EngineDiedError,
    StatementRefusedError,
    StateNotWrittenError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Commit
from towpath.sinks.state import progress
from towpath.sinks.state.files import lock_folder

JAVA_OPTIONS: Final = (
    "-Xss4m -XX:+UseSerialGC -XX:-UsePerfData -Djdk.lang.Process.launchMechanism=VFORK"
)
# For an engine that only plans batches: the second compiler costs more than it saves.
FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"

# Stopping a query waits this long for the calls that it interrupts.
STOP_QUERY_WITHIN_S: Final = 30.0

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.scheduler.mode": "FAIR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": (
        "org.apache.hadoop.fs.local.RawLocalFs"
    ),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Hides logins and keys in the options that the engine logs.
    "spark.redaction.regex": (
        r"(?i)secret|password|token|access[.]?key|jaas|ssl[.](key|keystore)[.]"
    ),
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stopTimeout": f"{STOP_QUERY_WITHIN_S:g}s",
}

_LOCAL_MASTER: Final = "local"
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
}

# For an engine on this machine that only plans batches, because it writes no tables.
# Without these file systems Hadoop starts a process, such as readlink, for each
# operation on a checkpoint file: ten per batch, which take a third of the time of an
# engine with small batches. A warehouse's tables need Hadoop's default file system: the
# raw one does not know its own scheme, for example.
_PLANNING_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {FIRST_COMPILER_ONLY}",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}

_CLUSTER_SETTINGS: Final[Mapping[str, str]] = {
    # Batches are small for a cluster: the default of 200 would be pure overhead.
    "spark.sql.shuffle.partitions": "8",
    # Throughput matters, not pauses: the concurrent collector costs cores.
    "spark.executor.extraJavaOptions": "-XX:+UseParallelGC -XX:-UsePerfData",
}


# SQL states of cardinality, data and integrity errors: a row is the cause, and the same
# statement without it succeeds.
_ROW_STATES: Final = frozenset({"21", "22", "23"})
_ROW_ERRORS: Final = (ArithmeticException, DateTimeException, NumberFormatException)
# Iceberg's error for a value that does not fit into its column.
_MISFIT: Final = "AppendWriteException"


# A branch that a dead process has left expires after a day, with the old versions.
_BRANCH_AGE_MS: Final = 24 * 60 * 60 * 1000

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000


@cache
def tune_interpreter() -> None:
    """
    Tune this process, once, for batches of hundreds of thousands of records.

    Garbage is collected less often: scanning so many small objects without cycles takes
    half as long as creating them. Arrow uses the C library's allocator: Arrow's own
    takes huge pages from the system, and clearing them costs a first batch more than
    decoding it.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 100)
    pa.set_memory_pool(pa.system_memory_pool())


@cache
def tune_worker() -> None:
    """
    Tune a process of an executor, once, at the end of its first task.

    Before each task the engine makes Python forget the directories of its archives,
    including the large archive with the engine's classes. Reading the directories again
    takes longer than processing the records of a small task, and the archives do not
    change while the process runs. The engine collects garbage after each task; objects
    that the first task has loaded are frozen, so that no collection scans them.
    """
    zipimporter.invalidate_caches = _keep_directory  # type: ignore[method-assign, assignment]
    gc.collect()
    gc.freeze()


def _keep_directory(_: zipimporter) -> None:
    """Keep the directory of an archive."""


@dataclass(frozen=True, slots=True)
class Engine:
    """
    The parameters of a session.

    Attributes:
        name: Name of the driver.
        jars: The connectors.
        folder: The engine's folder for temporary files.
        memory: Heap of the Java process, in Java's notation (``1g``).
        extra: Further settings, such as a warehouse's catalog; they take precedence.
        has_tables: Whether the engine writes tables of its own, as for a warehouse. On
            one machine it otherwise only plans batches.
        master: The Spark master.
        is_submitted: Whether ``spark-submit`` has started this process.
    """

    name: str
    jars: tuple[Path, ...]
    folder: Path
    memory: str
    extra: Mapping[str, str]
    has_tables: bool
    master: str = "local[2]"
    is_submitted: bool = False


_SCRATCH_PREFIX: Final = "engine-"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """
    Provide a folder for the temporary files of one engine; remove it at the end.

    The engine copies all connectors there, and leaves them behind if it is killed: 57
    MB each time. So each process has its own folder, which is locked while the process
    lives, and removes the folders of processes that have ended.

    Args:
        parent: The parent of these folders; created if it is missing.

    Raises:
        StateNotWrittenError: A folder cannot be created.
    """
    with progress.writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        # Other processes look for the name: the folder gets it only once it is locked.
        unnamed = Path(tempfile.mkdtemp(dir=parent))
        lock = lock_folder(unnamed)
        folder = unnamed.rename(parent / f"{_SCRATCH_PREFIX}{unnamed.name}")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.release()


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that no process has locked."""
    for former in parent.glob(f"{_SCRATCH_PREFIX}*"):
        # Another process may be removing it at this moment.
        with suppress(StateNotWrittenError):
            lock = lock_folder(former)
            if lock is not None:
                shutil.rmtree(former, ignore_errors=True)
                lock.release()


def start_session(engine: Engine) -> SparkSession:
    """
    Start the engine; it ends with this process.

    Raises:
        EngineDiedError: The engine did not start, or ended immediately.
        StateNotWrittenError: The engine's folder cannot be created.
    """
    # Failures inside a batch are raised and logged by us; py4j would print them, too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with progress.writing(engine.folder):
        engine.folder.mkdir(parents=True, exist_ok=True)
    try:
        submitted = _submitted() if engine.is_submitted else {}
        builder = SparkSession.builder.appName(engine.name)
        for name, value in settings_of(engine, submitted).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        reason = f"the engine's Java process did not start: {first_line(error)}"
        raise EngineDiedError(reason) from error


def settings_of(engine: Engine, submitted: Mapping[str, str]) -> dict[str, str]:
    """
    Return the settings that the engine still needs.

    Args:
        engine: The parameters of the session.
        submitted: The settings that ``spark-submit`` has set.
    """
    master = submitted.get("spark.master", engine.master)
    only_plans = is_local(master) and not engine.has_tables
    jars = {"spark.jars": ",".join(map(str, engine.jars))} if engine.jars else {}
    wanted = {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if is_local(master) else _CLUSTER_SETTINGS),
        **(_PLANNING_SETTINGS if only_plans else {}),
        **jars,
        "spark.master": master,
        "spark.driver.memory": engine.memory,
        "spark.local.dir": str(engine.folder),
        "spark.sql.warehouse.dir": str(engine.folder / "tables"),
        **engine.extra,
    }
    return {name: text for name, text in wanted.items() if name not in submitted}


def is_local(master: str) -> bool:
    """Return whether a master runs everything in the driver's Java process."""
    return master.startswith(_LOCAL_MASTER)


def is_alive(session: SparkSession) -> bool:
    """
    Return whether the engine is still running.

    The engine ends with its process, or when its cluster stops it.
    """
    context = session.sparkContext
    gateway = context._gateway  # noqa: SLF001 - no public API
    if gateway is None or (
        gateway.proc is not None and gateway.proc.poll() is not None
    ):
        return False
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001 - likewise
    except (Py4JError, OSError, AttributeError):
        return False


def is_waiting_for_executors(session: SparkSession) -> bool:
    """Return whether jobs have begun on a cluster that has started no executor."""
    context = session.sparkContext
    if is_local(context.master or _LOCAL_MASTER):
        return False
    try:
        tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - likewise
        # The driver is listed as the first executor.
        return bool(tracker.getActiveJobIds()) and len(tracker.getExecutorInfos()) <= 1
    except (Py4JError, OSError, AttributeError):
        return False


def _submitted() -> dict[str, str]:
    """Return the settings from the arguments and the files of ``spark-submit``."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the existing process
    return dict(SparkConf().getAll())


class SparkSql:
    """Implements ``LakeSession`` on a session; translates the engine's errors."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @classmethod
    def for_sink(cls, spark: SparkSession) -> "SparkSql":
        """
        Make a session for one sink.

        Two warehouse sinks of a driver use the same view names at the same time.
        """
        return cls(spark.newSession())

    def sql(self, text: str) -> pa.Table:
        with _translated():
            return self._session.sql(text).toArrow()

    def register(self, name: str, table: pa.Table) -> None:
        with _translated():
            self._session.createDataFrame(table).createOrReplaceTempView(name)

    def newest_commit(self, table: str, branch: str) -> Commit | None:
        with _translated():
            snapshot = self._load(table).snapshot(branch)
            if snapshot is None:
                return None
            text: str = self._iceberg.SnapshotParser.toJson(snapshot)
        stored = orjson.loads(text)
        return Commit(stored["snapshot-id"], stored.get("summary", {}))

    def start_branch(self, table: str, branch: str, snapshot_id: int) -> None:
        with _translated():
            loaded = self._load(table)
            change = loaded.manageSnapshots()
            if loaded.snapshot(branch) is None:
                change.createBranch(branch, snapshot_id)
            else:
                change.replaceBranch(branch, snapshot_id)
            change.setMaxRefAgeMs(branch, _BRANCH_AGE_MS)
            change.commit()

    def fast_forward(self, table: str, branch: str) -> None:
        with _translated():
            change = self._load(table).manageSnapshots()
            change.fastForwardBranch("main", branch).commit()

    def expire_snapshots(self, table: str) -> None:
        with _translated():
            change = self._load(table).expireSnapshots()
            # Most file systems delete in bulk, with threads of their own. For one that
            # cannot (OSS, an encrypting one), the default is one file at a time, and no
            # batch is written meanwhile. Iceberg reads the manifests with a different
            # pool of its own, and keeps only paths in memory.
            change.executeDeleteWith(
                self._iceberg.util.ThreadPools.getDeleteWorkerPool()
            )
            change.commit()

    @property
    def _iceberg(self) -> Any:  # noqa: ANN401 - a Java package
        jvm: Any = self._session._jvm  # noqa: SLF001 - no public API
        return jvm.org.apache.iceberg

    def _load(self, table: str) -> Any:  # noqa: ANN401 - a Java object
        """Read the newest state of a table from the catalog."""
        java = self._session._jsparkSession  # noqa: SLF001 - likewise
        return self._iceberg.spark.Spark3Util.loadIcebergTable(java, table)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the engine's errors into ours."""
    try:
        yield
    except AnalysisException as error:
        message = f"the warehouse refused a statement: {engine_reason(error)}"
        raise StatementRefusedError(message) from error
    except (PySparkException, Py4JError) as error:
        if _is_row_error(error):
            message = f"the warehouse refused a row: {engine_reason(error)}"
            raise BatchRefusedError(message) from error
        message = f"the warehouse could not run a statement: {engine_reason(error)}"
        raise TargetUnavailableError(message) from error


def _is_row_error(error: BaseException | None) -> bool:
    """Return whether the engine refused a row's value, judged by its error codes."""
    while error is not None:
        if isinstance(error, _ROW_ERRORS) or _is_misfit(error):
            return True
        state = error.getSqlState() if isinstance(error, PySparkException) else None
        if (state or "")[:2] in _ROW_STATES:
            return True
        # The error of a failed job has the engine's own error as its cause.
        error = getattr(error, "_cause", None)
    return False


def _is_misfit(error: BaseException) -> bool:
    if not isinstance(error, Py4JJavaError):
        return False
    name: str = error.java_exception.getClass().getSimpleName()
    return name == _MISFIT


_TRACEBACK: Final = "Traceback (most recent call last):"


def engine_reason(error: Exception) -> str:
    """
    Return the first line of an engine's error, or of the wrapped Java error.

    If Python code in a task raised the error, the engine reports a traceback: then the
    line is that of the Python error, at the traceback's end.
    """
    cause = error.java_exception if isinstance(error, Py4JJavaError) else error
    _, is_raised, traceback = str(cause).rpartition(_TRACEBACK)
    lines = (line for line in traceback.splitlines() if line and not line[0].isspace())
    return (next(lines, "") if is_raised else "") or first_line(cause)
