"""
The environment of a benchmark: addresses, programs, and a launcher of processes.

The caller provides it: the benchmark does not depend on a stack or on the relay's code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Launcher(Protocol):
    """Starts processes, each in its own session, with a log file named after it."""

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a process and return its pid; the name must not be in use."""

    def stop(self, name: str) -> None:
        """Stop a process, and wait until it has ended."""

    def kill(self, name: str) -> None:
        """Kill a process without a warning, and wait until it has ended."""

    def log(self, name: str) -> Path:
        """Return the log file of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEnvironment:
    """
    Addresses, programs and folders of a benchmark.

    Attributes:
        dsn: The DSN of the server's database for administration.
        dsn_of: Returns the DSN of another database of that server.
        kafka: The broker's bootstrap address.
        broker_pid: The broker's process id.
        programs: The folder of Postgres's own programs.
        towpath: The beginning of a ``towpath`` command line.
        relay_code: The form in which the relay's hot modules run (compiled or Python).
        connect: The command of standalone Kafka Connect, without its property files;
            ``None`` if Debezium is not measured.
        connect_port: A free port for Connect's REST interface.
        log_folder: The folder of the broker's topics.
        folder: The folder of configuration files.
        env: The environment variables of every process.
        launcher: Starts processes.
    """

    dsn: str
    dsn_of: Callable[[str], str]
    kafka: str
    broker_pid: int
    programs: Path
    towpath: tuple[str, ...]
    relay_code: str
    connect: tuple[str, ...] | None
    connect_port: int
    log_folder: Path
    folder: Path
    env: Mapping[str, str]
    launcher: Launcher
