"""
Start processes in their own sessions, find them by their files, and stop them.

The process file has pid, start time in clock ticks and boot id. All three must match,
so that a reused pid is never mistaken for ours. A process that ended but was not reaped
by its parent counts as ended.

The first SIGINT, SIGTERM or SIGHUP interrupts a run; later ones are ignored, and none
interrupts the cleanup.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import psutil

from towpath.deploy.local.part import Part, StateFolder
from towpath.schemas.clock import Clock, Deadline, SystemClock

# A log of this size is rotated at the next start; one older file is kept.
LOG_LIMIT_BYTES: Final = 20 * 1024 * 1024
_POLL_EVERY_S: Final = 0.02

# Children of this process, by pid: kept so that they can be reaped.
_CHILDREN: Final[dict[int, subprocess.Popen[bytes]]] = {}


def start(part: Part, state: StateFolder) -> int:
    """
    Start a part, write its process file and return its pid.

    Raises:
        OSError: The process cannot be started, or is killed because its file cannot be
            written.
    """
    log = state.log(part.name)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    user = part.user
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - commands are our own
            part.command,
            cwd=part.folder,
            env=dict(part.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
    try:
        _write_file(state.process_file(part.name), child.pid)
    except BaseException:
        # Without its file, the process could not be found, and might be started twice.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    _CHILDREN[child.pid] = child
    return child.pid


def _write_file(path: Path, pid: int) -> None:
    """Write a process file atomically."""
    scratch = path.with_suffix(".pid.new")
    scratch.write_text(_identity(pid), encoding="utf-8")
    scratch.replace(path)


def find(path: Path) -> psutil.Process | None:
    """Return the live process that a process file names."""
    try:
        text = path.read_text(encoding="utf-8")
        pid = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    _reap(pid)
    if _identity(pid) != text:
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def stop(
    path: Path,
    stop_signal: signal.Signals = signal.SIGTERM,
    *,
    within_s: float,
    clock: Clock | None = None,
) -> None:
    """
    Stop the process that a file names, and all other processes of its session.

    Only the named process gets ``stop_signal``. Once it has ended, or after
    ``within_s``, all that remain are killed.
    """
    process = find(path)
    if process is None:
        clean_up_session(path)
        return
    family = [process, *_children(process)]
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(stop_signal)
    wait_gone(process, Deadline(clock or SystemClock(), within_s))
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
    _reap(process.pid)
    clean_up_session(path)


def wait_gone(process: psutil.Process, deadline: Deadline) -> bool:
    """Wait until a process has ended; return whether it did before the deadline."""
    clock = SystemClock()
    while True:
        _reap(process.pid)
        try:
            has_ended: bool = process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            has_ended = True
        if has_ended or deadline.passed():
            _reap(process.pid)
            return has_ended
        clock.wait(_POLL_EVERY_S)


def clean_up_session(path: Path) -> None:
    """
    Kill the processes that an ended process left in its session; remove its file.

    The system does not reuse a pid that still identifies a session. So if the pid has
    no process, or is still ours, all processes of the session descend from ours.
    """
    try:
        text = path.read_text(encoding="utf-8")
        leader = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return
    now = _identity(leader)
    if text.endswith(f"{_boot_id()}\n") and now in {text, _gone(leader)}:
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == leader and pid != leader:
                    os.kill(pid, signal.SIGKILL)
    path.unlink(missing_ok=True)


def memory_bytes(process: psutil.Process) -> int:
    """Return the memory of a process and its children, shared pages counted once."""
    return sum(map(own_memory_bytes, [process, *_children(process)]))


def own_memory_bytes(process: psutil.Process) -> int:
    """Return the memory of one process; 0 if it has ended."""
    with contextlib.suppress(psutil.Error):
        try:
            return int(process.memory_full_info().pss)
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    return 0


def read_bytes(process: psutil.Process) -> int:
    """Return the bytes that a process and its children are known to have read."""
    total = 0
    for member in [process, *_children(process)]:
        with contextlib.suppress(psutil.Error):
            total += member.io_counters().read_chars
    return total


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def _reap(pid: int) -> None:
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        # Another thread may have reaped the child at the same moment.
        _CHILDREN.pop(pid, None)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _gone(pid: int) -> str:
    return f"{pid} gone"


def _identity(pid: int) -> str:
    """Return pid, start time and boot id; no two processes share all three."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _gone(pid)
    # The second field is the program's name in parentheses, and may contain anything;
    # the start time is the 22nd field.
    ticks = line.rpartition(")")[2].split()[19]
    return f"{pid} {ticks} {_boot_id()}\n"


def _signals() -> list[signal.Signals]:
    """Return the signals that end a run, with SIGHUP unless the process ignores it."""
    ending = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    return ending


_Handlers: TypeAlias = Mapping[signal.Signals, Any]


def _restore(before: _Handlers) -> None:
    """Restore handlers, except any (None) that was not installed from Python."""
    for number, handler in before.items():
        if handler is not None:
            signal.signal(number, handler)


class InterruptHandler:
    """A signal handler that interrupts once, and not during the cleanup."""

    def __init__(self) -> None:
        self._is_disabled = False

    def disable(self) -> None:
        """Ignore signals from now on, for the cleanup."""
        self._is_disabled = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Raise ``KeyboardInterrupt`` for the first signal; ignore later ones."""
        if not self._is_disabled:
            self._is_disabled = True
            raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted_once() -> Iterator[InterruptHandler]:
    """Turn the first of the signals into ``KeyboardInterrupt``; ignore later ones."""
    interrupts = InterruptHandler()
    before = {number: signal.signal(number, interrupts) for number in _signals()}
    try:
        yield interrupts
    finally:
        _restore(before)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """
    Defer signals that arrive during the block to its end.

    For blocks that start threads: Python can raise ``KeyboardInterrupt`` between any
    two steps of the main thread, even when a library has started a thread but not yet
    registered it; then no code would wait for that thread.
    """
    if threading.current_thread() is not threading.main_thread():
        # Handlers run only in the main thread.
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in _signals()
    }
    try:
        yield
    finally:
        _restore(before)
        for late in arrived:
            signal.raise_signal(late)
