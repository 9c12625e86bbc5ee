"""Locust as a process, with the project's own locustfile."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from support.waiting import stretched, until

LOCUSTFILE = Path(__file__).parents[2] / "loadtests" / "locustfile.py"
# The last samples alone may take a minute.
END_TIMEOUT_S = stretched(150.0)

Rows = dict[tuple[str, str], dict[str, str]]


class Locust:
    """A run in a folder: its arguments, its output and its files."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "log"
        inherited = {
            name: value
            for name, value in os.environ.items()  # noqa: TID251 - a root
            if not name.startswith(("LOCUST_", "TOWPATH_LOAD_"))
        }
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *arguments],
                cwd=folder,
                # Only some runs use a whole shop, whose database can be checked.
                env=inherited | {"TOWPATH_LOAD_DSN": "none"} | env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def text(self) -> str:
        """Everything that it has printed so far."""
        return self.log.read_text(encoding="utf-8")

    def end(self, within_s: float = END_TIMEOUT_S) -> int:
        """Wait until it has ended; return its exit code."""
        return self.process.wait(within_s)

    def stop(self) -> int:
        """Send SIGTERM, and wait until it has ended; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        """Kill its processes."""
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the process for the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def progress(self) -> dict[str, Any]:
        """Read its counts; empty before the first are written."""
        path = self.folder / "progress.json"
        found: dict[str, Any] = {}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
        return found

    def wait_for(self, name: str, count: int) -> None:
        """Wait until a counter of the run has reached a number."""
        until(
            lambda: (
                self._is_running()
                and self.progress().get("load", {}).get(name, 0) >= count
            ),
            f"{count} {name}",
        )

    def rows(self) -> Rows:
        """Read its statistics from the CSV file, by type and name."""
        with (self.folder / "run_stats.csv").open(encoding="utf-8") as file:
            return {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}

    def _is_running(self) -> bool:
        assert self.process.poll() is None, self.text
        return True
