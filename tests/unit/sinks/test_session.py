"""The engine's settings: on one machine, on a cluster, and when it is submitted."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from towpath.sinks.engine.session import (
    Engine,
    SparkSql,
    engine_reason,
    is_alive,
    scratch_folder,
    settings_of,
    start_session,
)
from towpath.sinks.errors import (
    EngineDiedError,
    StateNotWrittenError,
    TargetUnavailableError,
)


def engine(master="local[2]", *, has_tables=False, **extra):
    """Describe an engine."""
    return Engine(
        name="towpath-sinks",
        jars=(Path("/jars/kafka.jar"), Path("/jars/iceberg.jar")),
        folder=Path("/state/.sinks"),
        memory="2g",
        extra=extra,
        has_tables=has_tables,
        master=master,
    )


def test_a_local_engine_uses_only_this_machine():
    """
    Its addresses and its cores are known; on a cluster, the engine finds them itself.
    """
    names = (
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.default.parallelism",
    )
    local = settings_of(engine(), {})
    remote = settings_of(engine("spark://master:7077"), {})

    assert ["127.0.0.1", "127.0.0.1", "2"] == [local[name] for name in names]
    assert set() == set(names) & remote.keys()
    assert "spark://master:7077" == remote["spark.master"]


def test_an_engine_with_tables_has_the_default_file_system():
    """
    Without tables, a local engine starts no process per operation on a checkpoint file.
    """
    name = "spark.hadoop.fs.file.impl"
    cluster = "spark://master:7077"
    configured = {"spark.eventLog.enabled": "true"}

    assert name in settings_of(engine(), {})
    assert name in settings_of(engine(**configured), {})
    assert name not in settings_of(engine(has_tables=True), {})
    assert name not in settings_of(engine(cluster), {})


def test_an_engine_that_only_plans_batches_uses_only_the_c1_compiler():
    """
    C2 pays off only for table merges and cluster tasks.
    """
    engines = {
        "plans": engine(),
        "tables": engine(has_tables=True),
        "cluster": engine("spark://master:7077"),
    }
    options = {
        name: settings_of(each, {})["spark.driver.extraJavaOptions"]
        for name, each in engines.items()
    }

    assert ["plans"] == [
        name for name, each in options.items() if "TieredStopAtLevel=1" in each
    ]
    assert all(each.startswith("-Xss4m ") for each in options.values())


def test_configured_settings_override_ours():
    """
    Any setting of the engine can be changed.
    """
    found = settings_of(engine(**{"spark.driver.memory": "9g"}), {})

    assert ("9g", "/jars/kafka.jar,/jars/iceberg.jar") == (
        found["spark.driver.memory"],
        found["spark.jars"],
    )


def test_submitted_settings_override_all_others():
    """
    The master, jars and memory from the command line are not set again.
    """
    submitted = {
        "spark.master": "spark://other:7077",
        "spark.jars": "/theirs.jar",
        "spark.executor.memory": "4g",
    }
    found = settings_of(engine(**{"spark.executor.memory": "1g"}), submitted)

    assert set() == submitted.keys() & found.keys()
    assert "spark.driver.host" not in found


def test_a_submitted_engine_that_has_ended_gives_one_clear_error(tmp_path, monkeypatch):
    """
    Its settings are read before anything else is requested from it.
    """

    def ended():
        message = "An error occurred while trying to connect to the Java server"
        raise Py4JNetworkError(message)

    monkeypatch.setattr(SparkContext, "_ensure_initialized", ended)
    submitted = replace(engine(), folder=tmp_path, is_submitted=True)

    with pytest.raises(EngineDiedError, match="did not start: An error occurred"):
        start_session(submitted)


class Context:
    """The context of an engine that may or may not be alive."""

    def __init__(self, code=None, *, is_stopped=False, failure=None):
        self._gateway = self._jsc = self
        self.sparkContext = self
        self.proc = None if code == "submitted" else self
        self._code = None if code == "submitted" else code
        self._is_stopped = is_stopped
        self._failure = failure

    def poll(self):
        """Return how the process ended."""
        return self._code

    def sc(self):
        """Return the context, or fail."""
        if self._failure is not None:
            raise self._failure
        return self

    def isStopped(self):  # noqa: N802 - the engine's
        """Return whether the cluster has abandoned it."""
        return self._is_stopped


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (Context(), True),
        (Context("submitted"), True),
        (Context(137), False),
        (Context(is_stopped=True), False),
        (Context("submitted", is_stopped=True), False),
        (Context("submitted", failure=ConnectionRefusedError()), False),
    ],
)
def test_an_engine_lives_as_long_as_its_process_and_its_cluster(context, expected):
    """
    If another program has started the process, the engine itself is queried.
    """
    assert expected == is_alive(context)


TASK_FAILED = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 3, in read
    return loads(text)
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 9, in main
    process()
ModuleNotFoundError: No module named 'towpath'


JVM stacktrace:
org.apache.spark.SparkException: Job aborted
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TASK_FAILED, "ModuleNotFoundError: No module named 'towpath'"),
        ("Job aborted.\n\tat org.apache.spark", "Job aborted."),
        ("Failed: Traceback (most recent call last):", "Failed: Traceback "),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_for_a_failed_task_is_the_error_of_its_python_process(text, reason):
    """
    The first line reports only that there was an exception.
    """
    assert engine_reason(RuntimeError(text)).startswith(reason)


class Table:
    """A table that records the calls that change its snapshots."""

    def __init__(self):
        self.calls = []

    def expireSnapshots(self):  # noqa: N802 - Iceberg's
        """Return the change."""
        return self

    def executeDeleteWith(self, pool):  # noqa: N802 - Iceberg's
        """Record the pool."""
        self.calls.append(pool)

    def commit(self):
        """Record the commit."""
        self.calls.append("commit")


def test_files_of_expired_snapshots_are_deleted_by_a_thread_pool():
    """
    Otherwise, a file system without bulk deletes would delete them one at a time.
    """
    table = Table()
    pools = SimpleNamespace(getDeleteWorkerPool=lambda: "pool")
    iceberg = SimpleNamespace(
        util=SimpleNamespace(ThreadPools=pools),
        spark=SimpleNamespace(
            Spark3Util=SimpleNamespace(loadIcebergTable=lambda *_: table)
        ),
    )
    apache = SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg))
    session = SimpleNamespace(_jvm=SimpleNamespace(org=apache), _jsparkSession=None)
    SparkSql(session).expire_snapshots("lake.shop.orders")

    assert ["pool", "commit"] == table.calls


def test_an_engine_removes_only_the_files_of_killed_engines(tmp_path):
    """
    No process locks the folder of a killed engine; a running engine keeps its folder.
    """
    (tmp_path / "engine-killed" / "spark-1").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    with scratch_folder(tmp_path) as running:
        (running / "spark-2").mkdir()
        with scratch_folder(tmp_path) as other:
            found = {path.name for path in tmp_path.iterdir()}
            is_kept = (running / "spark-2").exists()
        after = {path.name for path in tmp_path.iterdir()}

    assert {running.name, other.name, "kept"} == found
    assert is_kept
    assert {running.name, "kept"} == after
    assert {"kept"} == {path.name for path in tmp_path.iterdir()}


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    """
    The path for the engine's folders is a file.
    """
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StateNotWrittenError, match="file"),
        scratch_folder(tmp_path / "file"),
    ):
        pass


class BrokenSession:
    """A session whose engine does not answer."""

    def createDataFrame(self, _):  # noqa: N802 - the engine's
        """Fail as the engine's client does."""
        message = "Answer from Java side is empty"
        raise Py4JNetworkError(message)


def test_rows_that_the_engine_does_not_accept_are_retried():
    """
    The error is one of ours, as it is for a statement, so the batch is retried.
    """
    with pytest.raises(TargetUnavailableError, match="Answer from Java side is empty"):
        SparkSql(BrokenSession()).register("rows", pa.table({"id": [1]}))
