"""
Run commands to completion while the platform runs: seed, init, verify.

Each command is a child process of the demo. If the wait is interrupted, the commands
that have not ended are killed, so no process outlives the wait for it.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from towpath.deploy.errors import StepError
from towpath.schemas.clock import Clock, Deadline, SystemClock

CommandLine = tuple[str, ...]

_SHOWN_LINES: Final = 12
_POLL_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The exit code of a command, and its output."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """The folder and the variables of commands, and their common time limit."""

    env: Mapping[str, str]
    folder: Path
    within_s: float


class RunningCommand:
    """A process and its output files; leaving the block kills the process."""

    def __init__(self, command: CommandLine, environment: CommandEnvironment) -> None:
        self._command = command
        self._environment = environment
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed at exit
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at exit
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - our own, or the viewer's
            self._command,
            env=dict(self._environment.env),
            cwd=self._environment.folder,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            # The whole process group is killed: a shell's children may outlive it.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
        self._errors.close()

    def outcome(self) -> CommandOutcome | None:
        """Return the command's outcome, or None while the command runs."""
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        return CommandOutcome(code, _text(self._output), _text(self._errors))


def python_module(name: str, *arguments: str) -> CommandLine:
    """Return the command that runs a module with this Python."""
    return (sys.executable, "-m", name, *arguments)


def run_all(
    commands: Mapping[str, CommandLine],
    environment: CommandEnvironment,
    at_once: int,
    clock: Clock | None = None,
) -> dict[str, CommandOutcome]:
    """
    Run commands to completion, ``at_once`` at a time; return each outcome by name.

    Raises:
        StepError: Not all commands ended in time.
    """
    clock = clock or SystemClock()
    deadline = Deadline(clock, environment.within_s)
    waiting, ended = list(commands), dict[str, CommandOutcome]()
    running: dict[str, RunningCommand] = {}
    with ExitStack() as processes:
        while len(ended) < len(commands):
            if deadline.passed():
                unfinished = ", ".join([*running, *waiting])
                message = f"not done after {environment.within_s:.0f} s: {unfinished}"
                raise StepError(message)
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                process = RunningCommand(commands[name], environment)
                running[name] = processes.enter_context(process)
            done = {name: one.outcome() for name, one in running.items()}
            ended |= {name: one for name, one in done.items() if one is not None}
            running = {n: one for n, one in running.items() if n not in ended}
            clock.wait(_POLL_EVERY_S)
    return ended


def run_checked(command: CommandLine, environment: CommandEnvironment) -> str:
    """
    Run a command that must succeed; return its output.

    Raises:
        StepError: The command takes too long, or fails; a failure's message ends with
            the last lines of the output.
    """
    name = " ".join(command)
    outcome = run_all({name: command}, environment, at_once=1)[name]
    if outcome.code != 0:
        lines = (outcome.output + outcome.errors).splitlines()[-_SHOWN_LINES:]
        shown = "".join(f"\n  {line}" for line in lines)
        message = f"{name} exited with code {outcome.code}{shown}"
        raise StepError(message)
    return outcome.output


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
