"""
A part of the stack as a value, and the state folder that holds its files.

A part describes its command, its probe and its stop. The state folder::

    <state>/
      jars/<lock>/      archives, fetched once (only in the clone's own state folder)
      stack/<part>/     data of a part     stack/ports.json   ports of all parts
      run/<part>.pid    its process        logs/<part>.log    its output
"""

import hashlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from towpath.deploy.errors import StateFolderError

# The longest recovery of a part's data after a crash; a longer one counts as a hang.
RECOVERS_WITHIN_S: Final = 1800.0


class User(NamedTuple):
    """The user for a part that refuses to run as root."""

    uid: int
    gid: int


def _do_nothing() -> None:
    """Do nothing; the default of ``prepare`` and ``probe``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """
    One process: how it is started, probed and stopped.

    Attributes:
        name: The name of the part, of its log and of its process file.
        command: The program and its arguments.
        folder: The working folder; must exist after ``prepare``.
        env: The whole environment of the process.
        port: The port on which the part listens, for display.
        prepare: Writes the part's files; called before each start, safe to repeat.
        probe: Contacts the part itself; raises ``NotReadyError`` until it serves.
        ready_within_s: The longest time until the part serves.
        recovers_within_s: The longest time until the part serves if it keeps making
            progress: its log grows, or it reads data. For parts that recover after a
            crash.
        stop_signal: The signal of a clean stop.
        stop_within_s: The time limit of a clean stop; then the process is killed.
        user: The user that runs the process, if it is not the user that starts it.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    prepare: Callable[[], None] = _do_nothing
    probe: Callable[[], None] = _do_nothing
    ready_within_s: float = 90.0
    recovers_within_s: float = 0.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_within_s: float = 20.0
    user: User | None = None


class StateFolder(NamedTuple):
    """Paths below one state folder; only ``create`` creates folders."""

    root: Path

    @property
    def name(self) -> str:
        """A short name, unique among the state folders of this machine."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def stack(self) -> Path:
        """The folder with the data of the parts."""
        return self.root / "stack"

    def data(self, part: str) -> Path:
        """Return the data folder of one part."""
        return self.stack / part

    def log(self, part: str) -> Path:
        """Return the log file of one part."""
        return self.root / "logs" / f"{part}.log"

    def process_file(self, part: str) -> Path:
        """Return the file that names the process of one part."""
        return self.root / "run" / f"{part}.pid"

    def parts(self) -> list[str]:
        """Return the names of all parts that have a process file, sorted."""
        return sorted(p.stem for p in (self.root / "run").glob("*.pid"))

    def create(self) -> None:
        """
        Create the folders; safe to repeat.

        Raises:
            StateFolderError: A folder cannot be created.
        """
        for folder in (self.stack, self.root / "logs", self.root / "run"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"{folder}: {error.strerror}"
                raise StateFolderError(message) from error
