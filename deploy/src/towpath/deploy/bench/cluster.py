"""
A standalone Spark cluster on this machine, and a sink without a target.

The cluster has a master, and workers with one core each. Its programs are part of the
installed PySpark, and run with the local stack's Java.

A sink of the kind ``null`` decodes and folds, but writes nothing, so it shows the cost
of the path up to a target. It has no guard, no floors and no rows to compare: only its
changes and events are counted. Users cannot choose the kind: it exists only for
processes that have the folder of ``install_null_sink`` on their Python path.
"""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from towpath.deploy.errors import NotReadyError
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.ports import LOOPBACK, check_listens
from towpath.settings import RouteKind
from towpath.settings import Sink as SinkSettings
from towpath.settings.sink import KINDS_GROUP
from towpath.sinks.errors import PrerequisiteError
from towpath.sinks.jars import java
from towpath.sinks.kinds import ExecutorParts, Kind, SinkParts
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Tally

_DAEMON: Final = "org.apache.spark.deploy"
_DAEMON_MEMORY: Final = "256m"
_QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
_REGISTERED: Final = b"Successfully registered with master"
# Enough for an executor with one core, including Spark's overhead.
_WORKER_MEMORY: Final = "2g"

KIND_NAME: Final = "null"

_ENTRY_POINTS: Final = f"""\
[{KINDS_GROUP}]
{KIND_NAME} = {__name__}:KIND
"""


def master_url(port: int) -> str:
    """Return the address of a master, in the form of ``[spark] master``."""
    return f"spark://{LOOPBACK}:{port}"


def master_part(state: StateFolder, port: int) -> Part:
    """Describe the part that runs the cluster's master."""
    options = ("--host", LOOPBACK, "--port", str(port), "--webui-port", "0")
    return Part(
        name="spark-master",
        command=(
            str(_programs() / "spark-class"),
            f"{_DAEMON}.master.Master",
            *options,
        ),
        folder=state.root,
        env=environment(state),
        port=port,
        probe=lambda: check_listens(port),
    )


def worker_part(
    state: StateFolder, name: str, master_port: int, python_path: Path
) -> Part:
    """
    Describe a worker with one core; executors keep their files in its folder.

    Args:
        state: The state folder.
        name: The worker's name.
        master_port: The port of the cluster's master.
        python_path: A folder with additional packages for the tasks.
    """
    folder = state.data(name)
    options = (
        *("--host", LOOPBACK, "--webui-port", "0", "--cores", "1"),
        *("--memory", _WORKER_MEMORY, "--work-dir", str(folder)),
        master_url(master_port),
    )

    log = state.log(name)
    # An earlier worker with this name may have written to the same log.
    earlier_bytes = log.stat().st_size if log.exists() else 0

    def probe() -> None:
        if _REGISTERED not in log.read_bytes()[earlier_bytes:]:
            message = "the worker has not registered with its master yet"
            raise NotReadyError(message)

    return Part(
        name=name,
        command=(
            str(_programs() / "spark-class"),
            f"{_DAEMON}.worker.Worker",
            *options,
        ),
        folder=state.root,
        env={**environment(state), "PYTHONPATH": str(python_path)},
        prepare=lambda: folder.mkdir(parents=True, exist_ok=True),
        probe=probe,
    )


def environment(state: StateFolder) -> Mapping[str, str]:
    """Return the whole environment of the cluster's processes."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "JAVA_HOME": str(java.spark_home(state.root / "java")),
        "SPARK_HOME": str(_programs().parent),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "PYSPARK_PYTHON": sys.executable,
    }


def _programs() -> Path:
    """
    Return the folder of Spark's programs.

    Raises:
        PrerequisiteError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        message = "the Python package pyspark is not installed"
        raise PrerequisiteError(message)
    return Path(spec.origin).parent / "bin"


def install_null_sink(folder: Path) -> None:
    """Write the package metadata with the kind's entry point into a folder."""
    metadata = folder / "towpath_null-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: towpath-null\nVersion: 0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")


class NullSink:
    """Counts changes and events, and writes nothing."""

    def __init__(self) -> None:
        self._tally = Tally()

    def open(self) -> None:
        """Do nothing: there is no target."""

    def apply(self, batch: Batch) -> None:
        self._tally.applied += len(batch.changes) + len(batch.events)

    def flush(self) -> Checkpoint:
        return self._tally.take()

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _make(_sink: SinkSettings, _parts: SinkParts | ExecutorParts) -> NullSink:
    return NullSink()


KIND = Kind(make=_make, spread=_make, routes=frozenset(RouteKind))
