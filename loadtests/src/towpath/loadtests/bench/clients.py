"""Programs that run to their end beside a system: they are gone when the block is."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.place import Place

_SHOWN_LINES: Final = 8


class Client:
    """One program, and the file that it prints to."""

    def __init__(self, place: Place, name: str, words: Sequence[str]) -> None:
        self._place = place
        self._name = name
        self._words = tuple(words)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                self._words,
                cwd=self._place.folder,
                env=dict(self._place.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int | None:
        """The process, once there is one."""
        return self._process.pid if self._process else None

    def is_done(self) -> bool:
        """
        Tell whether it has ended well.

        Raises:
            BenchError: It has ended otherwise; the message ends with its last lines.
        """
        code = self._process.poll() if self._process else None
        if code:
            raise BenchError(told(self._name, f"ended with {code}", self._log))
        return code is not None

    def wait(self, within_s: float) -> None:
        """
        Wait until it has ended well.

        Raises:
            BenchError: It has not.
        """
        try:
            if self._process is not None:
                self._process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            message = told(self._name, f"not done after {within_s:.0f} s", self._log)
            raise BenchError(message) from error
        self.is_done()

    @property
    def _log(self) -> Path:
        return self._place.launcher.log(self._name)


def told(name: str, what: str, log: Path) -> str:
    """Say what became of a process, with the end of its log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    shown = "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
    return f"{name}: {what}; log: {log}{shown}"
