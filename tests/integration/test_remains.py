"""An interrupted test run leaves no process and no folder behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support import remains
from support.remains import FOLDERS, MARK, end_all
from support.waiting import until
from towpath.deploy.local.process import find

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TESTS = Path(__file__).parents[1]
RUN = (
    *("-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "-m", ""),
    str(TESTS / "integration" / "test_dual_write.py"),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide a temporary folder whose path is short enough for sockets in it."""
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)


def owner_of(folder: Path) -> psutil.Process | None:
    """Return the worker that owns a stack in the folder, if its Postgres is running."""
    for path in folder.glob(f"{FOLDERS}*/owner"):
        owner = psutil.Process(int(path.read_text() or os.getpid()))
        if any(one.name() == "postgres" for one in owner.children()):
            return owner
    return None


def has_shared_kafka(folder: Path) -> bool:
    """Return whether a broker that workers share is running in the folder."""
    return any(map(find, folder.glob(f"{FOLDERS}*/kafka/run/kafka.pid")))


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        pytest.param("worker", signal.SIGKILL, id="a worker is killed"),
        pytest.param("run", signal.SIGKILL, id="the run is killed"),
        pytest.param(
            "run", signal.SIGTERM, id="the run is ended", marks=pytest.mark.soak
        ),
        pytest.param("run", signal.SIGINT, id="Ctrl-C", marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_run_leaves_no_process_and_no_folder(
    folder: Path, victim: str, number: int
):
    """
    However a process is interrupted, its servers and those of its run are removed.
    """
    inherited = os.environ.items()  # noqa: TID251 - a separate run
    environment = {k: v for k, v in inherited if not k.startswith("PYTEST_")}
    environment["TMPDIR"] = str(folder)
    with subprocess.Popen(
        [sys.executable, *RUN], env=environment, stdout=-3, stderr=-3
    ) as run:
        until(lambda: owner_of(folder) is not None, "the stack has a process")
        until(lambda: has_shared_kafka(folder), "the shared broker runs")
        owner = owner_of(folder)
        processes = psutil.Process(run.pid).children(recursive=True)
        os.kill(owner.pid if victim == "worker" else run.pid, number)
        until(lambda: not list(folder.glob(f"{FOLDERS}*")), "the folder is removed")
        run.kill()
    until(
        lambda: not any(one.is_running() for one in processes),
        "all processes have ended",
    )


def test_a_process_that_ignores_sigterm_is_killed_immediately(monkeypatch):
    """
    A process that ignores SIGTERM gets SIGKILL right away; a zombie counts as ended.
    """
    monkeypatch.setattr(remains, "_ENDS_WITHIN_S", 3600)
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark}  # noqa: TID251 - inherited
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " print(flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE
    ) as process:
        process.stdout.read(1)
        end_all(mark)
        assert psutil.STATUS_ZOMBIE == psutil.Process(process.pid).status()

    assert -signal.SIGKILL == process.returncode
