"""
The stacks of workers, and the removal of whatever a killed worker leaves behind.

Each worker starts a watcher, which waits for the worker's end on a pipe. Processes of
the worker carry a mark in their environment; folders of stacks name their owner.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from towpath.deploy.local.stack import Stack
from towpath.schemas.clock import Deadline, SystemClock

FOLDERS: Final = "towpath-test-"
# The parts that the workers of a run share.
SHARED: Final = ("kafka", "registry", "opensearch")
MARK: Final = "TOWPATH_TEST_WORKER"
# A demo needs time to end its own parts.
_ENDS_WITHIN_S: Final = 15
_POLL_EVERY_S: Final = 0.05
# A file system in memory; in a container it may be small.
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folders have names of their own
_MIN_FREE_BYTES: Final = 8 * 1024**3


def new_folder() -> Path:
    """
    Make the folder of a worker's stack: in memory, if there is enough space.

    A database has three hundred files, a topic dozens, and most tests have both. Once
    so many files have been removed, ext4 examines each of them before it creates a new
    one: a tenth of a second of CPU time for every database.
    """
    # If set, this variable names the folder for temporary files.
    is_usual = "TMPDIR" not in os.environ  # noqa: TID251 - as tempfile does
    home = _MEMORY if is_usual and _is_suitable(_MEMORY) else None
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS, dir=home))
    # If root starts Postgres, it runs as a different user, who has data in this folder.
    folder.chmod(0o711)
    (folder / "owner").write_text(str(os.getpid()), encoding="utf-8")
    return folder


def _is_suitable(folder: Path) -> bool:
    """Return whether a folder has free space, and allows servers to load libraries."""
    if not folder.is_dir():
        return False
    has_space = shutil.disk_usage(folder).free > _MIN_FREE_BYTES
    return has_space and not os.statvfs(folder).f_flag & os.ST_NOEXEC


def stack_of(folder: Path) -> Stack:
    """
    Return the stack of a worker's folder.

    Postgres's user may not be permitted to enter a folder that is not in memory.
    """
    is_in_memory = folder.parent == _MEMORY
    return Stack(folder, postgres_folder=folder / "postgres" if is_in_memory else None)


def shared_stacks(folder: Path) -> dict[str, Stack]:
    """
    Return the stacks of a run's folder: one for each part that its workers share.

    This way, no worker waits for a stack's lock while a different part starts.
    """
    return {name: Stack(folder / name) for name in SHARED}


@contextlib.contextmanager
def watched() -> Iterator[str]:
    """
    Mark the processes that this one starts in the block; end them after the block.

    Yields:
        The mark.
    """
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark  # noqa: TID251 - inherited by all that is started
    with subprocess.Popen(
        [sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    ) as watcher:
        yield mark
        watcher.communicate()


def collect_abandoned() -> None:
    """Remove the stacks of workers that were killed."""
    homes = (_MEMORY, Path(tempfile.gettempdir()))
    for folder in [one for home in homes for one in home.glob(f"{FOLDERS}*")]:
        with contextlib.suppress(OSError, ValueError), _claimed(folder):
            owner = int((folder / "owner").read_text(encoding="utf-8"))
            if not _is_alive(owner):
                purge(folder)


def purge(folder: Path) -> None:
    """End the servers of a worker's or a run's folder, and remove the folder."""
    for stack in (stack_of(folder), *shared_stacks(folder).values()):
        stack.purge()
    shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    """Return whether a process is alive; killed workers remain as zombies."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """
    Lock a folder for the block, so that no other worker removes it meanwhile.

    Raises:
        OSError: Another worker has locked or removed it.
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def marked(mark: str) -> list[psutil.Process]:
    """List the other processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_other = process.pid != os.getpid()
            if is_other and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def main() -> None:
    """Wait for the worker's end, then remove its processes and folders."""
    sys.stdin.read()
    collect_abandoned()
    end_all(sys.argv[1])


def end_all(mark: str) -> None:
    """End the processes that carry a mark: with SIGTERM, and finally with SIGKILL."""
    clock = SystemClock()
    is_patient = True
    while left := marked(mark):
        for process in left:
            with contextlib.suppress(psutil.Error):
                # A resource tracker of multiprocessing ignores SIGTERM.
                obeys = is_patient and not _ignores(process, signal.SIGTERM)
                (process.terminate if obeys else process.kill)()
        deadline = Deadline(clock, _ENDS_WITHIN_S)
        # The worker is still alive, so its children become zombies.
        while any(_is_alive(process.pid) for process in left) and not deadline.passed():
            clock.wait(_POLL_EVERY_S)
        is_patient = False


def _ignores(process: psutil.Process, number: signal.Signals) -> bool:
    """Return whether a process ignores a signal."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        ignored = next(one for one in status.splitlines() if one.startswith("SigIgn:"))
        return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)
    return False


if __name__ == "__main__":
    main()
