"""
Python programs forked from a process that has already imported relay and services.

Importing a program costs more CPU time than most of its tests. The parent, the fork
server of ``multiprocessing``, pays for it once for each worker; it opens nothing and
starts no thread, because a Kafka client does not work in a fork. A fork runs a module
or script as ``python -m module`` and ``python script`` do, has a pid of its own, and is
killed when its parent ends.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# The storefront is left out: importing pyarrow starts threads.
_SERVICES: Final = ("orders", "inventory", "payments", "shipping")
_IMPORTED: Final = (
    "towpath.relay.__main__",
    *(f"towpath.services.{name}.__main__" for name in _SERVICES),
)
_CONTEXT: Final = multiprocessing.get_context("forkserver")
# <linux/prctl.h>
_PR_SET_PDEATHSIG: Final = 1


class Forked:
    """
    A program that runs in a fork, with the methods of ``subprocess.Popen``.

    Args:
        arguments: The arguments of ``python``: ``-m`` and a module, or a script; then
            the program's arguments.
        log_file: Receives its output.
    """

    def __init__(self, arguments: Sequence[str], log_file: Path) -> None:
        _CONTEXT.set_forkserver_preload([*_IMPORTED])
        self.args = list(arguments)
        self._process = _CONTEXT.Process(
            target=_run,
            args=(self.args, log_file, dict(os.environ)),  # noqa: TID251 - a root
            daemon=True,
        )
        self._process.start()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of a signal; None until it ends."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, if the program has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """
        Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: It is still running.
        """
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Running = Forked | subprocess.Popen[bytes]


def _run(arguments: list[str], log_file: Path, environment: Mapping[str, str]) -> None:
    """Become the program, in the fork."""
    # A fork inherits one end of a pipe that would keep the parent alive.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with log_file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    threads = list(Path(f"/proc/{os.getppid()}/task").iterdir())
    assert len(threads) == 1, "the parent of a fork has threads"
    missing = {*_IMPORTED} - sys.modules.keys()
    assert not missing, f"the parent of a fork has not imported {missing}"
    os.environ.clear()  # noqa: TID251 - a process of its own
    os.environ.update(environment)  # noqa: TID251 - likewise
    time.tzset()
    try:
        _program(arguments)
    except Exception:  # noqa: BLE001 - printed as the interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)


def _program(arguments: list[str]) -> None:
    if arguments[0] != "-m":
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return
    # The program's own module runs again; its imports are already loaded.
    sys.modules.pop(f"{arguments[1]}.__main__", None)
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
