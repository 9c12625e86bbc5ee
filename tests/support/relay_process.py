"""A relay as a process, which can be started, stopped and killed, and its log."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.forked import Forked, Running
from support.waiting import CLOCK, TIMEOUT_S
from towpath.schemas.clock import Deadline


class RelayProcess:
    """
    The processes of one configuration, one after another; all print to one file.

    Attributes:
        processes: The processes that were started and not yet ended by ``stop`` or
            ``kill``; the methods use the last one by default.
    """

    def __init__(self, config: Path, log_file: Path) -> None:
        self.config = config
        self.log_file = log_file
        self.processes: list[Running] = []

    def start(self, *command: str) -> Running:
        """Start a relay; a command replaces the relay's own."""
        arguments = command or ("-m", "towpath.relay", str(self.config))
        process = self._begin(arguments)
        self.processes.append(process)
        return process

    def _begin(self, arguments: Sequence[str]) -> Running:
        """Start a program in a fork, or code in its own interpreter."""
        if arguments[0] != "-c":
            return Forked(arguments, self.log_file)
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=log
            )

    @property
    def process(self) -> Running | None:
        """The newest process."""
        return self.processes[-1] if self.processes else None

    def stop(self, process: Running | None = None) -> int:
        """Stop a process as a service manager does, and return its exit code."""
        ending = process or self.processes[-1]
        ending.terminate()
        return self.ended(ending)

    def ended(self, process: Running | None = None) -> int:
        """Wait until a process ends, and return its exit code."""
        ending = process or self.processes[-1]
        code = ending.wait(TIMEOUT_S)
        self.processes.remove(ending)
        return code

    def kill(self) -> None:
        """Kill all running processes."""
        while self.processes:
            process = self.processes.pop()
            process.kill()
            process.wait()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail if the relay ends first."""
        deadline = Deadline(CLOCK, TIMEOUT_S)
        while not holds():
            has_ended = self.process is not None and self.process.poll() is not None
            if deadline.passed() or has_ended:
                raise AssertionError(self.printed()[-6000:])
            CLOCK.wait(0.05)

    def printed(self) -> str:
        """Read everything that the processes have printed."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_text(encoding="utf-8")

    def log(self, word: str = "") -> list[dict[str, Any]]:
        """Read the log records so far, by default all, whose line contains a string."""
        lines = self.printed().splitlines()
        chosen = (line for line in lines if line.startswith("{") and word in line)
        return [json.loads(line) for line in chosen]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Read the log records of one event."""
        return [record for record in self.log(event) if record["event"] == event]

    @property
    def admin_port(self) -> int:
        """The admin port of the relay that was started last."""
        return int(self.logged("relay started")[-1]["admin_port"])
