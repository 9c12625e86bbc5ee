"""
A local stack for one run of one command: its folder, its processes, its cleanup.

Benchmarks and chaos runs get a temporary folder. The demo has its own state folder: a
file marks the folder, and the process that holds the file's lock is the demo that runs
there. No files are deleted from a folder without that mark.

Every process of a run is stopped before its block ends, whether the run ends, fails or
is interrupted. The first Ctrl-C ends the run, and later ones never disturb the cleanup;
SIGHUP and SIGTERM count as Ctrl-C. The next run removes the leftovers of a killed run.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TextIO

import psutil
from rich.console import Console

from towpath.deploy.errors import (
    DemoRunsError,
    NotADemoFolderError,
    StateFolderError,
)
from towpath.deploy.local import process
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.process import interrupted_once
from towpath.deploy.local.stack import Stack
from towpath.relay.commands import compiled
from towpath.schemas.clock import Deadline, SystemClock
from towpath.settings import is_override
from towpath.sinks.jars import fetch, store

MARK: Final = "demo.lock"

# Processes of a run get only this long to stop, because their data is disposable.
_REMAINS_WITHIN_S: Final = 5.0


@contextlib.contextmanager
def demo_folder(folder: Path) -> Iterator[Stack]:
    """
    Lock a folder for this demo and empty it except for the mark; yield its stack.

    Raises:
        DemoRunsError: Another demo is running there.
        NotADemoFolderError: The folder has files that do not belong to a demo.
        StateFolderError: The folder, or its mark, cannot be created or written.
    """
    mark = folder.resolve() / MARK
    _check_owner(folder, mark)
    stack = Stack(folder)
    # The mark comes first: a folder with other files, but no mark, is refused.
    with _opened(mark) as lock:
        _lock(lock, folder)
        remove_all(stack)
        yield stack


def _check_owner(folder: Path, mark: Path) -> None:
    try:
        is_foreign = folder.is_dir() and not mark.exists() and any(folder.iterdir())
    except OSError as error:
        message = f"{folder}: {error.strerror}"
        raise StateFolderError(message) from error
    if is_foreign:
        message = f"{folder} is not a demo's folder, and not empty"
        raise NotADemoFolderError(message)


def _opened(mark: Path) -> TextIO:
    try:
        # If there is a file instead of the folder, the mark cannot be opened.
        with contextlib.suppress(FileExistsError):
            mark.parent.mkdir(parents=True, exist_ok=True)
        return mark.open("a+", encoding="ascii")
    except OSError as error:
        message = f"{mark}: {error.strerror}"
        raise StateFolderError(message) from error


def _lock(lock: TextIO, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        message = f"a demo (pid {lock.read().strip()}) is running in {folder}"
        raise DemoRunsError(message) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def remove_all(stack: Stack) -> None:
    """Stop every process of a folder, and remove all files except the mark."""
    stop_all(stack.state)
    stack.purge()
    for path in stack.state.root.iterdir():
        if path.name == MARK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def stop_all(state: StateFolder) -> None:
    """Stop every process that the folder's files name, all at the same time."""
    files = [state.process_file(name) for name in state.parts()]
    if not files:
        return
    with ThreadPoolExecutor(len(files)) as threads:
        stops = [
            threads.submit(process.stop, file, within_s=_REMAINS_WITHIN_S)
            for file in files
        ]
    for stop in stops:
        stop.result()


def kill_children(within_s: float) -> None:
    """Kill all remaining child processes, and wait until they exit."""
    children = psutil.Process(os.getpid()).children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=within_s)


SOURCE_AND_BROKER: Final = ("postgres", "kafka")
_OWNER: Final = "owner"
_GONE_WITHIN_S: Final = 10.0


def prepare(prefix: str, console: Console) -> None:
    """Remove the leftovers of killed runs, and fetch the archives of the stack."""
    clear_abandoned(prefix)
    environ = os.environ  # noqa: TID251 - a root
    fetch.ensure(console.print, environ, store.read_lock())


def clear_abandoned(prefix: str, folder: Path | None = None) -> None:
    """Stop the processes of killed runs, and remove their folders."""
    for path in (folder or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((path / _OWNER).read_text(encoding="ascii"))
            if not psutil.pid_exists(owner):
                _remove(Stack(path))


@contextlib.contextmanager
def own_stack(
    prefix: str,
    console: Console,
    *,
    keep: bool,
    parts: Sequence[str] = SOURCE_AND_BROKER,
    has_optimized_kafka: bool = False,
) -> Iterator[Stack]:
    """
    Start a stack for the block; stop and remove it at the end, even after a failure.

    Args:
        prefix: The prefix of the temporary folder's name.
        console: Shows the progress.
        keep: Leave logs and configuration files in place.
        parts: The parts to start.
        has_optimized_kafka: Whether Java optimizes Kafka's code as in production.
    """
    with interrupted_once() as interrupts:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        stack = Stack(folder, has_optimized_kafka=has_optimized_kafka)
        owner = stack.state.root / _OWNER
        owner.write_text(f"{os.getpid()}\n", encoding="ascii")
        try:
            with console.status(f"starting {', '.join(parts)}"):
                stack.up(parts)
            yield stack
        finally:
            interrupts.disable()
            try:
                _end(stack, console, keep=keep)
            finally:
                # A process whose start was interrupted may have no process file.
                kill_children(_GONE_WITHIN_S)


def _end(stack: Stack, console: Console, *, keep: bool) -> None:
    """Stop a stack, and remove it unless its files are to be kept."""
    if not keep:
        _remove(stack)
        return
    stop_all(stack.state)
    stack.down()
    (stack.state.root / _OWNER).unlink()
    line = f"logs and files: {stack.state.root}"
    console.print(line, soft_wrap=True, markup=False)


def environment() -> dict[str, str]:
    """Return our environment, with only one Towpath variable: ``TOWPATH_COMPILED``."""
    inherited = os.environ.items()  # noqa: TID251 - a root
    return {
        name: text
        for name, text in inherited
        if name == compiled.VARIABLE or not name.startswith("TOWPATH_")
    }


def overrides() -> dict[str, str]:
    """Return the variables of our environment that override a configuration."""
    inherited = os.environ.items()  # noqa: TID251 - a root
    return {name: text for name, text in inherited if is_override(name)}


def _remove(stack: Stack) -> None:
    stop_all(stack.state)
    stack.purge()
    shutil.rmtree(stack.state.root, ignore_errors=True)


_STOP_WITHIN_S: Final = 20.0


class Launcher:
    """Starts, stops and kills the processes of one state folder."""

    def __init__(self, state: StateFolder, env: Mapping[str, str]) -> None:
        self._state = state
        self._env = env

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a process and return its pid."""
        part = Part(
            name=name, command=tuple(command), folder=self._state.root, env=self._env
        )
        return process.start(part, self._state)

    def stop(self, name: str) -> None:
        """Stop a process, and wait until it exits."""
        process.stop(self._state.process_file(name), within_s=_STOP_WITHIN_S)

    def kill(self, name: str) -> None:
        """Kill a process, and wait until it exits."""
        path = self._state.process_file(name)
        found = process.find(path)
        if found is not None:
            # The process may end on its own at the same moment.
            with contextlib.suppress(psutil.NoSuchProcess):
                found.kill()
            process.wait_gone(found, Deadline(SystemClock(), _GONE_WITHIN_S))
        process.clean_up_session(path)

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self._state.log(name)
