"""The supervisor and the process files, with small processes as parts."""

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from towpath.deploy.errors import NotReadyError, PartError
from towpath.deploy.local import lifecycle, process
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.supervisor import Supervisor
from towpath.schemas.clock import Backoff, Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

_SLEEPER = "import time; time.sleep(600)"
# A process that ignores the stop signal, and has a child in its session.
_IGNORES_SIGTERM = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    """Provide an empty state folder."""
    folder = StateFolder(tmp_path / "state")
    folder.create()
    return folder


@pytest.fixture
def supervisor(state: StateFolder) -> Iterator[Supervisor]:
    """Provide a supervisor that restarts a part quickly."""
    with Supervisor(state, backoff=Backoff(first_s=0.05, ceiling_s=0.1)) as supervisor:
        yield supervisor


def _part(state: StateFolder, code: str, name: str = "worker") -> Part:
    command = (sys.executable, "-c", code)
    return Part(name=name, command=command, folder=state.root, stop_within_s=0.5)


def _until(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    clock = SystemClock()
    deadline = Deadline(clock, within_s)
    while not condition():
        if deadline.passed():
            return False
        clock.wait(0.02)
    return True


def _pid(state: StateFolder, name: str = "worker") -> int | None:
    found = process.find(state.process_file(name))
    return found.pid if found else None


def test_a_killed_part_is_restarted_and_counted(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    A part that is killed gets a new process, and the restart is counted.
    """
    supervisor.start(_part(state, _SLEEPER))
    first = _pid(state)
    assert first is not None
    psutil.Process(first).kill()

    assert _until(lambda: _pid(state) not in {None, first})

    assert supervisor.restarts("worker") == 1


def test_an_adopted_part_is_restarted_and_left_to_its_owner(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    A part that another program started is restarted if killed, but never stopped.
    """
    part = _part(state, _SLEEPER)
    first = process.start(part, state)
    supervisor.adopt(part)
    psutil.Process(first).kill()
    is_restarted = _until(lambda: _pid(state) not in {None, first})
    second = _pid(state)
    supervisor.stop()
    third = _pid(state)
    lifecycle.take_down(part, state)

    assert is_restarted
    assert supervisor.restarts() == 1
    assert second == third


def test_a_part_that_ends_immediately_is_restarted_repeatedly(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    A part that cannot run is restarted each time it ends, without a limit.
    """
    supervisor.start(_part(state, "raise SystemExit(3)"))

    assert _until(lambda: supervisor.restarts("worker") >= 3)


def test_a_part_that_ignores_the_stop_signal_is_killed(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    The part's children are killed, too.
    """
    supervisor.start(_part(state, _IGNORES_SIGTERM))
    assert _until(lambda: "ready" in state.log("worker").read_text("utf-8"))
    leader = process.find(state.process_file("worker"))
    assert leader is not None
    processes = [leader, *leader.children(recursive=True)]

    supervisor.stop(within_s=0.3)

    assert len(processes) == 2

    assert not [p for p in processes if p.is_running() and p.status() != "zombie"]


def test_a_stopped_supervisor_starts_nothing(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    After ``stop``, ``start`` has no effect.
    """
    supervisor.stop()

    supervisor.start(_part(state, _SLEEPER))

    assert _pid(state) is None


def test_children_of_a_killed_leader_end_before_its_successor_starts(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    The remaining processes of the session are killed before the restart.
    """
    supervisor.start(_part(state, _IGNORES_SIGTERM))
    assert _until(lambda: "ready" in state.log("worker").read_text("utf-8"))
    leader = process.find(state.process_file("worker"))
    assert leader is not None
    (child,) = leader.children()
    leader.kill()

    assert _until(lambda: _pid(state) not in {None, leader.pid})

    assert not child.is_running() or child.status() == "zombie"


def test_a_part_left_by_a_killed_supervisor_is_replaced(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    A process that already runs under the part's name is stopped first.
    """
    orphan = process.start(_part(state, _SLEEPER), state)

    supervisor.start(_part(state, _SLEEPER))

    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie"
    assert _pid(state) not in {None, orphan}


def test_the_error_about_a_part_that_never_serves_shows_its_output(
    state: StateFolder, supervisor: Supervisor
) -> None:
    """
    The error names the log and shows its last lines.
    """

    def never() -> None:
        message = "nobody there"
        raise NotReadyError(message)

    part = Part(
        name="worker",
        command=(sys.executable, "-c", "print('I have no database'); " + _SLEEPER),
        folder=state.root,
        env={"PYTHONUNBUFFERED": "1"},
        probe=never,
        ready_within_s=2.0,
    )
    supervisor.start(part)

    with pytest.raises(PartError, match="I have no database") as caught:
        supervisor.wait_ready()

    assert str(state.log("worker")) in str(caught.value)


def test_a_part_that_ends_while_starting_is_reported_immediately(
    state: StateFolder,
) -> None:
    """
    The start of a part that ends fails before the part's deadline.
    """

    def never() -> None:
        message = "nobody there"
        raise NotReadyError(message)

    part = Part(
        name="worker",
        command=(sys.executable, "-c", "raise SystemExit('broken')"),
        folder=state.root,
        probe=never,
        ready_within_s=600.0,
    )

    with pytest.raises(PartError, match="broken"):
        lifecycle.bring_up(part, state)

    assert process.find(state.process_file("worker")) is None


@pytest.mark.parametrize(
    ("code", "recovers_within_s"),
    [("", 600.0), ("while True: print(1)", 1.0)],
    ids=["no progress", "no end"],
)
def test_a_recovery_without_progress_or_end_is_aborted(
    state: StateFolder, code: str, recovers_within_s: float
) -> None:
    """
    A part may exceed its time only while it makes progress, and not forever.
    """

    def never() -> None:
        message = "still recovering"
        raise NotReadyError(message)

    part = replace(
        _part(state, f"{code}\n{_SLEEPER}"),
        probe=never,
        ready_within_s=0.1,
        recovers_within_s=recovers_within_s,
    )

    with pytest.raises(PartError, match="still recovering"):
        lifecycle.bring_up(part, state)

    assert process.find(state.process_file("worker")) is None


def test_a_clean_stop_uses_the_parts_own_signal(
    state: StateFolder,
) -> None:
    """
    The part receives its stop signal, and has time to end by itself.
    """
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(print('clean')))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    part = Part(
        name="worker",
        command=(sys.executable, "-c", code),
        folder=state.root,
        stop_signal=signal.SIGINT,
    )
    process.start(part, state)
    assert _until(lambda: "up" in state.log("worker").read_text("utf-8"))

    lifecycle.take_down(part, state)

    assert "clean" in state.log("worker").read_text("utf-8")
