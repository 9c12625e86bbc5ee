"""
The environment of a benchmark: addresses, programs, and a launcher of processes.

The benchmark knows no stack and no relay from inside. Its caller hands it this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Launcher(Protocol):
    """Starts processes, each in a session of its own with a log file by its name."""

    def start(self, name: str, words: Sequence[str]) -> int:
        """Start a process and return its pid; one of that name was stopped before."""

    def stop(self, name: str) -> None:
        """Ask a process to end, and wait until it is gone."""

    def kill(self, name: str) -> None:
        """Kill a process at once, and wait until it is gone."""

    def log(self, name: str) -> Path:
        """Name the file to which a process prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEnvironment:
    """
    All that a benchmark is given.

    Attributes:
        dsn: The server's database for administration.
        dsn_of: Gives the address of another database of that server.
        kafka: The broker's bootstrap address.
        broker_pid: The broker's process.
        programs: The folder of Postgres's own programs.
        towpath: The words that begin a command of ``towpath``.
        connect: The words that run Kafka Connect standalone, less its two files;
            ``None`` if it is not wanted.
        connect_port: A free port for its interface.
        log_folder: Where the broker keeps the records of its topics.
        folder: For configuration files.
        env: The whole environment of every process.
        launcher: Starts processes.
    """

    dsn: str
    dsn_of: Callable[[str], str]
    kafka: str
    broker_pid: int
    programs: Path
    towpath: tuple[str, ...]
    connect: tuple[str, ...] | None
    connect_port: int
    log_folder: Path
    folder: Path
    env: Mapping[str, str]
    launcher: Launcher
