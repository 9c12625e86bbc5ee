"""
Run one planted defect: a forked process, an overlay of the project, and pytest.

The overlay is a tree of symbolic links in which one file is patched. Its source folder
comes first on the path of the fork and of the processes that its tests start, so that
Lua and SQL files can be patched as well as Python modules. The parent has imported the
slow libraries but nothing of the project, so a fork starts in milliseconds.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from mutants.catalogue import ROOT, Mutant

# The time limits of a process that hangs where pytest's own timeout has no effect.
_BOUND_S: Final = 600.0
_REAL_BOUND_S: Final = 1800.0
_CONTEXT: Final = multiprocessing.get_context("fork")
_LINKED_ROOT: Final = ("pyproject.toml", "tests", "docs", "deploy", "requirements")


class Outcome(NamedTuple):
    """
    The outcome of one pytest run.

    Attributes:
        code: Pytest's exit code; ``None`` if the process was killed.
        failed: Node ids of the tests that failed.
        text: The output of pytest.
    """

    code: int | None
    failed: tuple[str, ...]
    text: str

    @property
    def is_caught(self) -> bool:
        """Whether a test failed, and nothing else went wrong."""
        has_failed = self.code == int(pytest.ExitCode.TESTS_FAILED)
        return has_failed and bool(self.failed)


class Run:
    """One forked pytest."""

    def __init__(
        self, mutant: Mutant | None, tests: Sequence[str], *, is_real: bool
    ) -> None:
        """
        Start the process.

        Args:
            mutant: The defect to plant; with one, the run ends at the first failure.
            tests: Files or node ids.
            is_real: Whether to include tests that need real servers.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="towpath-mutant-"))
        self._until_s = time.monotonic() + (_REAL_BOUND_S if is_real else _BOUND_S)
        self.process: ForkProcess = _CONTEXT.Process(
            target=_in_fork, args=(self._folder, mutant, tests, is_real)
        )
        self.process.start()

    @property
    def sentinel(self) -> int:
        """Return the handle that becomes ready when the process has ended."""
        return self.process.sentinel

    @property
    def is_late(self) -> bool:
        """Whether the process has exceeded the time limit of a run."""
        return time.monotonic() > self._until_s

    def end(self) -> Outcome:
        """End the process and its children; return the outcome."""
        self._kill_group()
        self.process.join()
        code, failed, text = None, (), ""
        with contextlib.suppress(OSError, ValueError):
            text = (self._folder / "output").read_text("utf-8")
            written = json.loads((self._folder / "outcome.json").read_text("utf-8"))
            code, failed = written["code"], tuple(written["failed"])
        shutil.rmtree(self._folder, ignore_errors=True)
        return Outcome(code, failed, text)

    def _kill_group(self) -> None:
        if self.process.pid is not None:
            # Until it has its own group, only the process itself can be killed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


class _Failures:
    """A pytest plugin that records the failed tests."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _in_fork(
    folder: Path, mutant: Mutant | None, tests: Sequence[str], is_real: bool
) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with (folder / "output").open("w", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"  # noqa: TID251 - a root
    if mutant is not None:
        source = overlay(folder / "tree", mutant)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)  # noqa: TID251 - a root
    failures = _Failures()
    arguments = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly"]
    arguments += ["-o", "timeout=60"]
    arguments += [] if mutant is None else ["-x"]
    arguments += ["-m", ""] if is_real else []
    code = pytest.main([*arguments, *tests], plugins=[failures])
    result = {"code": int(code), "failed": failures.failed}
    (folder / "outcome.json").write_text(json.dumps(result), encoding="utf-8")
    # Unlike a return, this ends the process even if a test left threads running.
    os._exit(0)


def overlay(folder: Path, mutant: Mutant) -> Path:
    """Create a tree of links with the defect in it; return its source folder."""
    patched = mutant.patched()
    relative = Path(mutant.file)
    here = ROOT
    for part in relative.parts:
        _link_siblings(here, folder / here.relative_to(ROOT), part)
        here /= part
    (folder / relative).write_text(patched, encoding="utf-8")
    return folder / Path(*relative.parts[:2])


def _link_siblings(original: Path, copy: Path, left_out: str) -> None:
    copy.mkdir(parents=True)
    for child in _children(original):
        if child.name != left_out:
            (copy / child.name).symlink_to(child)


def _children(folder: Path) -> Iterator[Path]:
    for child in folder.iterdir():
        is_known = folder != ROOT or child.name in _LINKED_ROOT or child.is_dir()
        if is_known and child.name != "__pycache__" and not child.name.startswith("."):
            yield child
