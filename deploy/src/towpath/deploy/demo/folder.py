"""
The demo's own state folder: taken for one demo at a time, and fresh each time.

A file marks the folder as a demo's; whoever locks it is the demo that works there.
Nothing is removed from a folder without that mark. Processes that an earlier demo left
behind, because it was killed, are stopped before its data is removed.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TextIO

from towpath.deploy.demo.errors import DemoRunsError, NotADemoFolderError
from towpath.deploy.local import process
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.stack import Stack

MARK: Final = "demo.lock"

# Left behind by a demo that was killed: nothing of theirs is worth a longer wait.
_REMAINS_WITHIN_S: Final = 5.0


@contextlib.contextmanager
def taken(folder: Path) -> Iterator[Stack]:
    """
    Take a folder for this demo, empty but for the mark; give its stack.

    Raises:
        DemoRunsError: Another demo works there.
        NotADemoFolderError: It holds something that no demo has put there.
        StateFolderError: It cannot be made.
    """
    mark = folder.resolve() / MARK
    if folder.is_dir() and not mark.exists() and any(folder.iterdir()):
        message = f"{folder} is not a demo's folder, and not empty"
        raise NotADemoFolderError(message)
    stack = Stack(folder)
    stack.state.create()
    with mark.open("a+", encoding="ascii") as lock:
        _lock(lock, folder)
        remove_all(stack)
        yield stack


def _lock(lock: TextIO, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        message = f"a demo (pid {lock.read().strip()}) works in {folder}"
        raise DemoRunsError(message) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def remove_all(stack: Stack) -> None:
    """Stop whatever a folder's files name, and remove all but the mark."""
    stop_all(stack.state)
    stack.purge()
    for left in stack.state.root.iterdir():
        if left.name == MARK:
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def stop_all(state: StateFolder) -> None:
    """Stop every process that the folder's files name, all at once."""
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
