"""How a part's process is identified, and when an ended part is restarted."""

import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from towpath.deploy.errors import PartError
from towpath.deploy.local import process
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.supervisor import Supervisor

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def started_ticks() -> str:
    """Return this process's start time in clock ticks."""
    stat = Path(f"/proc/{os.getpid()}/stat").read_text(encoding="ascii")
    return stat.rpartition(")")[2].split()[19]


@pytest.mark.parametrize(
    ("ticks", "boot", "is_found"),
    [
        (started_ticks(), BOOT, True),
        ("1", BOOT, False),
        (started_ticks(), "other boot", False),
    ],
    ids=["same start and boot", "different start", "different boot"],
)
def test_a_process_with_a_reused_pid_is_not_the_part(
    tmp_path: Path, ticks: str, boot: str, *, is_found: bool
):
    """
    Pid, start time and boot must match; otherwise the process is not ours.
    """
    file = tmp_path / "worker.pid"
    file.write_text(f"{os.getpid()} {ticks} {boot}\n", encoding="utf-8")
    found = process.find(file)

    assert is_found == (found is not None)


def started(folder: Path, *command: str) -> tuple[StateFolder, int]:
    """Start a part with this command; return its state folder and its pid."""
    state = StateFolder(folder)
    state.create()
    env = {"PATH": os.defpath}
    part = Part(name="worker", command=command, folder=folder, env=env)
    return state, process.start(part, state)


def test_two_threads_may_detect_the_end_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The supervisor's thread checks the parts, and so does the demo screen's thread.
    """
    state, pid = started(tmp_path, "true")
    file = state.process_file("worker")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    poll, others = subprocess.Popen.poll, ["the other thread"]

    def poll_twice(child: subprocess.Popen[bytes]) -> int | None:
        """Make the other thread detect the end between the two steps of this one."""
        code = poll(child)
        if others:
            others.pop()
            assert process.find(file) is None
        return code

    monkeypatch.setattr(subprocess.Popen, "poll", poll_twice)

    assert process.find(file) is None
    assert not others


class Clock:
    """A clock that the test advances, and that counts how often it was read."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._now_s = 0.0
        self._reads = 0

    def now(self) -> datetime:
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        """Return the time that the test has set."""
        with self._changed:
            self._reads += 1
            self._changed.notify_all()
            return self._now_s

    def wait(self, delay_s: float) -> None:
        """Advance the clock."""
        self.move(delay_s)

    def move(self, delay_s: float) -> None:
        """Advance the clock."""
        with self._changed:
            self._now_s += delay_s

    def wait_until_read(self) -> None:
        """Return once the clock has been read twice more."""
        until = self._reads + 2
        self.wait_until(lambda: self._reads >= until)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds; it is checked whenever the clock is read."""
        with self._changed:
            self._changed.wait_for(condition)


class Delays:
    """A back-off of 1, 2, 4, ... seconds without jitter, which records the attempts."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self._changed = threading.Condition()

    def delay_s(self, attempt: int) -> float:
        """Return the delay before an attempt."""
        with self._changed:
            self.attempts.append(attempt)
            self._changed.notify_all()
        return 2.0**attempt

    def wait_until_called(self, count: int) -> None:
        """Return when this many delays have been requested."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.attempts) >= count)


@pytest.mark.timeout(60)
def test_a_part_that_ends_at_once_is_restarted_after_growing_delays(tmp_path: Path):
    """
    Each restart waits until its delay is over.
    """
    clock, delays = Clock(), Delays()
    part = Part(name="worker", command=("/bin/true",), folder=tmp_path)
    state = StateFolder(tmp_path / "state")
    restarts = []
    with Supervisor(state, backoff=delays, clock=clock) as supervisor:
        supervisor.start(part)
        for ended in (1, 2):
            delays.wait_until_called(ended)
            clock.move(0.9 * 2.0 ** (ended - 1))
            clock.wait_until_read()
            restarts.append(supervisor.restarts("worker"))
            clock.move(0.2 * 2.0 ** (ended - 1))
        delays.wait_until_called(3)
        restarts.append(supervisor.restarts("worker"))

    assert ([0, 1, 2], [0, 1, 2]) == (restarts, delays.attempts[:3])


@pytest.mark.timeout(60)
def test_a_failed_restart_is_retried_after_growing_delays(tmp_path: Path):
    """
    The supervisor continues to watch the part, whose log contains the reason.
    """
    clock, delays, calls = Clock(), Delays(), itertools.count()

    def prepare() -> None:
        if next(calls) in {1, 2}:
            message = "initdb failed"
            raise PartError(message)

    command = ("/bin/sleep", "600")
    part = Part(name="worker", command=command, folder=tmp_path, prepare=prepare)
    state = StateFolder(tmp_path / "state")
    with Supervisor(state, backoff=delays, clock=clock) as supervisor:
        supervisor.start(part)
        kill(state)
        for attempt in (1, 2, 3):
            delays.wait_until_called(attempt)
            clock.move(10.0)
        clock.wait_until(lambda: found(state) is not None)

    assert [0, 1, 2] == delays.attempts
    assert 2 == state.log("worker").read_text().count("restarted: initdb failed")


@pytest.mark.timeout(60)
def test_a_long_running_part_is_restarted_after_the_first_delay(tmp_path: Path):
    """
    Its earlier failures do not make it wait longer.
    """
    clock, delays = Clock(), Delays()
    part = Part(name="worker", command=("/bin/sleep", "600"), folder=tmp_path)
    state = StateFolder(tmp_path / "state")
    with Supervisor(state, backoff=delays, clock=clock) as supervisor:
        supervisor.start(part)
        for ended, lasted_s in enumerate((0.0, 1.0, 40.0), 1):
            clock.move(lasted_s)
            kill(state)
            delays.wait_until_called(ended)
            clock.move(10.0)
            clock.wait_until(lambda: found(state) is not None)

    assert [0, 1, 0] == delays.attempts


def kill(state: StateFolder) -> None:
    """Kill the part."""
    running = found(state)
    assert running is not None
    running.kill()


def found(state: StateFolder) -> psutil.Process | None:
    """Return the part's process, if it is running."""
    return process.find(state.process_file("worker"))
