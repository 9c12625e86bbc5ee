"""
Commands that run to their end while others go on: seed, init, verify.

Each is a process of the demo's own. Whoever leaves the call, by an interrupt too, kills
those that are not done: no process outlives the wait for it.
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

Words = tuple[str, ...]

_SHOWN_LINES: Final = 12
_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How a command ended and what it printed."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Where commands run, and how long they may take."""

    env: Mapping[str, str]
    folder: Path
    within_s: float


class RunningCommand:
    """A process and the files it prints to; leaving the block kills it."""

    def __init__(self, words: Words, around: CommandContext) -> None:
        self._words = words
        self._around = around
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed at exit
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at exit
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - our own, or the viewer's
            self._words,
            env=dict(self._around.env),
            cwd=self._around.folder,
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
            # The whole session: a shell's children are its, whether it lives or not.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
        self._errors.close()

    def outcome(self) -> CommandOutcome | None:
        """Return how it ended, or None while it runs."""
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        return CommandOutcome(code, _text(self._output), _text(self._errors))


def python_module(name: str, *arguments: str) -> Words:
    """Return the command that runs a module with this Python."""
    return (sys.executable, "-m", name, *arguments)


def run_all(
    commands: Mapping[str, Words],
    around: CommandContext,
    at_once: int,
    clock: Clock | None = None,
) -> dict[str, CommandOutcome]:
    """
    Run commands to their ends, a few at once; return how each ended, by its name.

    Raises:
        StepError: Not all are done in time.
    """
    watch = clock or SystemClock()
    deadline = Deadline(watch, around.within_s)
    waiting, ended = list(commands), dict[str, CommandOutcome]()
    running: dict[str, RunningCommand] = {}
    with ExitStack() as processes:
        while len(ended) < len(commands):
            if deadline.passed():
                late = ", ".join([*running, *waiting])
                message = f"not done after {around.within_s:.0f} s: {late}"
                raise StepError(message)
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                process = RunningCommand(commands[name], around)
                running[name] = processes.enter_context(process)
            done = {name: one.outcome() for name, one in running.items()}
            ended |= {name: how for name, how in done.items() if how is not None}
            running = {n: one for n, one in running.items() if n not in ended}
            watch.wait(_LOOK_EVERY_S)
    return ended


def run_checked(words: Words, around: CommandContext) -> str:
    """
    Run a command that has to succeed; return what it printed.

    Raises:
        StepError: It fails or takes too long; the message ends with its last lines.
    """
    name = " ".join(words)
    outcome = run_all({name: words}, around, at_once=1)[name]
    if outcome.code != 0:
        lines = (outcome.output + outcome.errors).splitlines()[-_SHOWN_LINES:]
        told = "".join(f"\n  {line}" for line in lines)
        message = f"{name} ended with {outcome.code}{told}"
        raise StepError(message)
    return outcome.output


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
