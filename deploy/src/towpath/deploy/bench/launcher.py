"""Processes of a benchmark, by process files: whoever cleans up finds them again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from towpath.deploy.local import process
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.part import Part
from towpath.schemas.clock import Deadline, SystemClock

_STOP_WITHIN_S: Final = 20.0
_GONE_WITHIN_S: Final = 10.0


class Launcher:
    """Starts, stops and kills processes of one state folder."""

    def __init__(self, state: StateFolder, env: Mapping[str, str]) -> None:
        self._state = state
        self._env = env

    def start(self, name: str, words: Sequence[str]) -> int:
        """Start a process and return its pid."""
        part = Part(
            name=name, command=tuple(words), folder=self._state.root, env=self._env
        )
        return process.start(part, self._state)

    def stop(self, name: str) -> None:
        """Ask a process to end, and wait until it is gone."""
        process.stop(self._state.process_file(name), within_s=_STOP_WITHIN_S)

    def kill(self, name: str) -> None:
        """Kill a process at once, and wait until it is gone."""
        path = self._state.process_file(name)
        found = process.find(path)
        if found is not None:
            found.kill()
            process.wait_gone(found, Deadline(SystemClock(), _GONE_WITHIN_S))
        process.sweep(path)

    def log(self, name: str) -> Path:
        """Name the file to which a process prints."""
        return self._state.log(name)
