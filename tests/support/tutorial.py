"""
Follows a tutorial as its reader would: block after block, in one shell.

- A ``console`` block: a line that begins with ``$`` is a command, a line with ``>``
  continues it, and the lines below are its output. ``...`` stands for any text within a
  line, and a line of ``...`` for any number of lines. Each command must end with exit
  code 0, and print what the page shows.
- Any other block must be below a line with only a file's name in backticks. A file
  that exists must contain the block's lines, with ``...`` for any text within a line;
  a file that does not exist is written. A ``diff`` changes the file, which must contain
  the context and the removed lines exactly once.
"""

import os
import re
import select
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.page_commands import kill_session
from support.pages import blocks
from towpath.schemas.clock import Deadline, SystemClock

_FILE_NAME: Final = re.compile(r"`(?P<path>[\w./-]+)`$")
_PROMPT: Final = "$ "
_CONTINUED: Final = "> "
_ANY: Final = "..."
# A shell's own notices about its background jobs.
_NOTICE: Final = re.compile(r"^(\[\d+\]|.*: line \d+: +\d+ (Killed|Terminated))")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the page: its text, its expected output, and its line number."""

    text: str
    expected: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file, or a ``diff`` that changes it."""

    path: str
    text: str
    is_diff: bool
    line: int


class TutorialError(AssertionError):
    """A step of the page does not do what the page shows."""


def steps(text: str) -> list[Command | FileText]:
    """Return the steps of a page, in order."""
    lines = text.splitlines()
    found: list[Command | FileText] = []
    for block in blocks(text):
        if block.language == "console":
            found += _commands(block.text, block.line)
            continue
        above = next((line for line in reversed(lines[: block.line - 1]) if line), "")
        named = _FILE_NAME.match(above)
        if named is None:
            message = f"line {block.line}: the block does not follow a file's name"
            raise TutorialError(message)
        is_diff = block.language == "diff"
        found.append(FileText(named["path"], block.text, is_diff, block.line))
    return found


def _commands(text: str, first_line: int) -> Iterator[Command]:
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith(_PROMPT)]
    if not starts or starts[0] != 0:
        message = f"line {first_line}: a console block must begin with a command"
        raise TutorialError(message)
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        command = [lines[start].removeprefix(_PROMPT)]
        rest = lines[start + 1 : end]
        while rest and rest[0].startswith(_CONTINUED):
            command.append(rest.pop(0).removeprefix(_CONTINUED))
        yield Command("\n".join(command), tuple(rest), first_line + 1 + start)


def matches(expected: tuple[str, ...], printed: str) -> bool:
    """Return whether the output, without notices about jobs, is what the page shows."""
    pattern = "".join(
        "(?:.*\n)*" if line == _ANY else f"{_any_text(line)}\n" for line in expected
    )
    lines = [line.rstrip() for line in printed.splitlines()]
    kept = "".join(f"{line}\n" for line in lines if not _NOTICE.match(line))
    return re.fullmatch(pattern, kept) is not None


def _any_text(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split(_ANY)))


def _shown(text: str) -> re.Pattern[str]:
    """Return a pattern that finds these lines anywhere in a file."""
    lines = "".join(f"{_any_text(line)}\n" for line in text.splitlines())
    return re.compile(f"^{lines}", re.MULTILINE)


def put(step: FileText, folder: Path) -> None:
    """
    Write, change or compare a file, depending on the block and the file.

    Raises:
        TutorialError: The file differs from the page.
    """
    path = folder / step.path
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if step.is_diff:
        lines = step.text.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if old.count(before) != 1:
            message = (
                f"line {step.line}: {step.path} has the lines {old.count(before)} times"
            )
            raise TutorialError(message)
        path.write_text(old.replace(before, after), encoding="utf-8")
    elif not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, encoding="utf-8")
    elif not _shown(step.text).search(old):
        message = f"line {step.line}: {step.path} does not have these lines"
        raise TutorialError(message)


class ReaderShell:
    """
    A shell in a folder, into which a reader types commands.

    Args:
        folder: The working folder; a file next to it holds the output until ``close``.
        environment: All environment variables of the shell.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder.with_name(f"{folder.name}.log")
        script, self._keyboard = os.pipe()
        self._ended, ended = os.pipe()
        with self._log.open("wb") as printed:
            # A command's process must not read the following commands as its input.
            self._shell = subprocess.Popen(
                ["bash", "--norc", f"/dev/fd/{script}"],
                cwd=folder,
                env={**environment, "ENDED": str(ended)},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=(script, ended),
                start_new_session=True,
            )
        os.close(script)
        os.close(ended)

    def run(self, command: Command, timeout_s: float) -> None:
        """
        Run a command and compare what it prints.

        Raises:
            TutorialError: The command failed, did not end, or printed something else.
        """
        start = self._log.stat().st_size
        typed = f"{command.text}\necho $? >&$ENDED\n"
        os.write(self._keyboard, typed.encode())
        code = self._code(Deadline(SystemClock(), timeout_s))
        printed = self._log.read_bytes()[start:].decode(errors="replace")
        if code != 0 or not matches(command.expected, printed):
            how = "does not end" if code is None else f"ends with {code}"
            message = (
                f"line {command.line}: {command.text!r} {how}, and prints\n{printed}"
                "instead of\n" + "\n".join(command.expected)
            )
            raise TutorialError(message)

    def close(self) -> None:
        """Kill the shell and its processes, and remove the output."""
        kill_session(self._shell)
        self._log.unlink()
        os.close(self._keyboard)
        os.close(self._ended)

    def _code(self, deadline: Deadline) -> int | None:
        while not deadline.passed() and self._shell.poll() is None:
            readable, _, _ = select.select([self._ended], [], [], 0.2)
            if readable and (code := os.read(self._ended, 16)):
                return int(code)
        return self._shell.poll()
