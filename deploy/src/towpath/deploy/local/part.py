"""
A part of the stack as a value, and the state folder that holds its files.

A part says what to run, how to probe it and how to stop it. The state folder::

    <state>/
      jars/<lock>/      archives, fetched once (only in the clone's own state folder)
      stack/<part>/     data of a part     stack/ports.json   its port, kept
      run/<part>.pid    its process        logs/<part>.log    its output
"""

import hashlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from towpath.deploy.errors import StateFolderError

# For parts with data: what a crash leaves is read within this, or it is not finite.
RECOVERS_WITHIN_S: Final = 1800.0


class User(NamedTuple):
    """Another user that a part runs as, because it refuses to be root."""

    uid: int
    gid: int


def _do_nothing() -> None:
    """Prepare nothing; ask nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """
    One process and what is known about it.

    Attributes:
        name: Names its log and process file.
        command: Program and arguments.
        folder: Where it runs; must exist after ``prepare``.
        env: Its whole environment.
        port: Where it listens, for showing.
        prepare: Writes what it needs; runs before each start, safe to repeat.
        probe: Asks the part itself; raises ``NotReadyError`` until it serves.
        ready_within_s: How long it may take to serve.
        recovers_within_s: How long it may take if it makes progress meanwhile: its log
            grows, or it reads; for parts that recover their data after a crash.
        stop_signal: Asks for a clean stop.
        stop_within_s: How long that may take before it is killed.
        user: Who runs it, if not who starts it.
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
    """Paths below one state folder; nothing is created by naming it."""

    root: Path

    @property
    def name(self) -> str:
        """A short name that no other state folder of this machine has."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def stack(self) -> Path:
        """Data of the parts."""
        return self.root / "stack"

    def data(self, part: str) -> Path:
        """Data of one part."""
        return self.stack / part

    def log(self, part: str) -> Path:
        """Log file of one part."""
        return self.root / "logs" / f"{part}.log"

    def process_file(self, part: str) -> Path:
        """File that names the process of one part."""
        return self.root / "run" / f"{part}.pid"

    def parts(self) -> list[str]:
        """Names of all parts that were ever started here, in order of name."""
        return sorted(p.stem for p in (self.root / "run").glob("*.pid"))

    def create(self) -> None:
        """
        Make the folders; safe to repeat.

        Raises:
            StateFolderError: They cannot be made.
        """
        for folder in (self.stack, self.root / "logs", self.root / "run"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"{folder}: {error.strerror}"
                raise StateFolderError(message) from error
