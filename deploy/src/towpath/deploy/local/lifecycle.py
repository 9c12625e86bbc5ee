"""
Start one part, report its status, stop it.

A part that runs and answers is left alone; one that runs but does not answer in time is
restarted; one that has ended is started with its existing data. After a crash a part
recovers its data: a broker reads its segments, a database its log. No fixed time limit
is right for that, so the deadline of a part is extended while its log grows or it reads
data. The status of parts is available as a document, and as a table with a row for each
part.
"""

import contextlib
import dataclasses
import datetime as dt
import enum
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
from rich.table import Table
from rich.text import Text

from towpath.deploy.errors import NotReadyError, PartError
from towpath.deploy.local import process
from towpath.deploy.local.part import Part, StateFolder
from towpath.schemas.clock import Deadline, StallTimeout, SystemClock

# A part without progress for this long counts as hanging.
_STUCK_AFTER_S: Final = 10.0
# A measurement examines every process of the machine.
_MEASURE_EVERY_S: Final = 1.0
# Probes and idle housekeeping read less.
_COUNTED_BYTES: Final = 1024 * 1024


class Recovery:
    """The time that a part has for its recovery, from the start of its process."""

    def __init__(self, part: Part, state: StateFolder) -> None:
        self._clock = clock = SystemClock()
        self._log = state.log(part.name)
        self._file = state.process_file(part.name)
        self._found = process.find(self._file)
        age_s = 0.0
        if self._found is not None:
            age_s = clock.now().timestamp() - self._found.create_time()
        self._deadline = Deadline(clock, part.recovers_within_s - age_s)
        self._stall = StallTimeout(clock, _STUCK_AFTER_S)
        self._is_stalled = False
        self._measured = Deadline(clock, 0)

    def is_progressing(self) -> bool:
        """Return whether the part is making progress within its deadline."""
        if self._found is None or self._deadline.passed():
            return False
        if process.find(self._file) != self._found:
            return False
        if self._measured.passed():
            self._measured = Deadline(self._clock, _MEASURE_EVERY_S)
            self._is_stalled = self._stall.is_over(-self._done(self._found))
        return not self._is_stalled

    def _done(self, found: psutil.Process) -> int:
        """Return log bytes plus mebibytes read, which grow while the part recovers."""
        done = process.read_bytes(found) // _COUNTED_BYTES
        with contextlib.suppress(OSError):
            done += self._log.stat().st_size
        return done


_POLL_EVERY_S: Final = 0.05
# A healthy part answers its probe immediately; one that takes this long is hanging.
_ALIVE_WITHIN_S: Final = 10.0
# A hanging part rarely obeys a signal, and its unwritten data is lost either way.
_HANGING_WITHIN_S: Final = 3.0
_STARTS: Final = 3
_SHOWN_LINES: Final = 8


class PartState(enum.StrEnum):
    """The state of a part."""

    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """One part as ``towpath status`` shows it; a stopped part has no pid or memory."""

    name: str
    state: PartState
    port: int | None
    log: Path
    pid: int | None = None
    memory_bytes: int | None = None
    uptime_s: float | None = None


def bring_up(
    part: Part, state: StateFolder, ending: threading.Event | None = None
) -> bool:
    """
    Start a part unless it is running and answers; return whether it was started.

    Args:
        part: The part.
        state: The state folder with its process file.
        ending: Once it is set, a part that does not serve yet is stopped again.

    Raises:
        OSError: The process cannot be started.
        PartError: The part ended, it did not answer in time, or its start was
            canceled.
    """
    path = state.process_file(part.name)
    is_ending = (ending or threading.Event()).is_set
    if process.find(path) is not None:
        if _wait(part, state, _ALIVE_WITHIN_S, is_ending) is None:
            return False
        take_down(replace(part, stop_within_s=_HANGING_WITHIN_S), state)
    failure = None
    for _ in range(_STARTS):
        process.clean_up_session(path)
        part.prepare()
        process.start(part, state)
        failure = _wait(part, state, part.ready_within_s, is_ending)
        if failure is None:
            return True
        is_running = process.find(path) is not None
        take_down(part, state)
        if is_running or is_ending():
            break
    raise PartError(failure_text(part, state, failure or "it ended"))


def take_down(part: Part, state: StateFolder) -> None:
    """Stop a part, if it is running."""
    path = state.process_file(part.name)
    process.stop(path, part.stop_signal, within_s=part.stop_within_s)


def status(
    name: str, state: StateFolder, port: int | None, probe: Callable[[], None] | None
) -> PartStatus:
    """Return the current status of a part."""
    found = process.find(state.process_file(name))
    log = state.log(name)
    if found is None:
        return PartStatus(name=name, state=PartState.STOPPED, port=port, log=log)
    return PartStatus(
        name=name,
        port=port,
        log=log,
        state=PartState.RUNNING if probe is None else _probed_state(probe),
        pid=found.pid,
        memory_bytes=process.memory_bytes(found),
        uptime_s=max(0.0, SystemClock().now().timestamp() - found.create_time()),
    )


def failure_text(part: Part, state: StateFolder, reason: str) -> str:
    """Return the reason for a failed start, with the end of the part's log."""
    log = state.log(part.name)
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    shown = "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
    return f"{part.name} does not serve: {reason}; log: {log}{shown}"


def _probed_state(probe: Callable[[], None]) -> PartState:
    try:
        probe()
    except NotReadyError:
        return PartState.RUNNING
    return PartState.READY


def _wait(
    part: Part, state: StateFolder, within_s: float, is_ending: Callable[[], bool]
) -> str | None:
    """
    Wait until a part serves; return the reason if it does not.

    The deadline is extended while a part that recovers its data makes progress.
    """
    clock = SystemClock()
    deadline = Deadline(clock, within_s)
    recovery = Recovery(part, state)
    while True:
        try:
            part.probe()
        except NotReadyError as error:
            reason = str(error)
        else:
            return None
        if process.find(state.process_file(part.name)) is None:
            return "it ended"
        if is_ending():
            return "its start was canceled"
        is_progressing = recovery.is_progressing()
        if deadline.passed() and not is_progressing:
            return f"not ready after {within_s:g} s: {reason}"
        clock.wait(_POLL_EVERY_S)


_COLORS: Final = {
    PartState.READY: "green",
    PartState.RUNNING: "yellow",
    PartState.STOPPED: "red",
}
_MEBIBYTE: Final = 1024 * 1024


def part_document(part: PartStatus) -> dict[str, Any]:
    """Return the status of a part in JSON types."""
    return {**dataclasses.asdict(part), "log": str(part.log)}


def part_table(parts: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table with a row for each part."""
    table = Table("part", "state", "port", "pid", "memory", "uptime", "log", box=None)
    for part in parts:
        memory, uptime_s = part["memory_bytes"], part["uptime_s"]
        table.add_row(
            part["name"],
            Text(part["state"], _COLORS[part["state"]]),
            str(part["port"] or ""),
            str(part["pid"] or ""),
            "" if memory is None else f"{memory / _MEBIBYTE:.0f} MiB",
            "" if uptime_s is None else str(dt.timedelta(seconds=int(uptime_s))),
            Text(short_path(Path(part["log"]))),
        )
    return table


def short_path(path: Path) -> str:
    """Return a path relative to the current folder, if it is in that folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
