"""
Who runs a sink holds its folder, so that nobody runs it twice or drops it meanwhile.

The system lets go of what a process held when it ends, however it ends.
"""

import fcntl
from io import FileIO
from pathlib import Path
from typing import Final

from towpath.sinks import disk
from towpath.sinks.progress import sink_folder

HELD_FILE: Final = ".held"


class Held:
    """A sink's folder, while this process has it."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def release(self) -> None:
        """Let go of the folder."""
        self._file.close()


def hold(state_folder: Path, sink: str) -> Held | None:
    """
    Take a sink's folder; ``None`` if another process, or another part, has it.

    Raises:
        StateNotWrittenError: The folder or its lock cannot be made.
    """
    folder = sink_folder(state_folder, sink)
    with disk.writing(folder / HELD_FILE):
        folder.mkdir(parents=True, exist_ok=True)
        file = FileIO(folder / HELD_FILE, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return Held(file)
