"""The processes that an ended process left behind are killed, and no others."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from towpath.deploy.local import process
from towpath.deploy.local.own_stack import Launcher
from towpath.deploy.local.part import Part, StateFolder

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
ANOTHER_BOOT = "00000000-0000-0000-0000-000000000000"


class Session(NamedTuple):
    """A session with a process besides its leader."""

    leader: int
    member: psutil.Process


@contextlib.contextmanager
def session(script: str) -> Iterator[Session]:
    """Start a session whose leader prints the pid of a second process in it."""
    command = ("sh", "-c", script)
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as leader:
        member = psutil.Process(int(leader.stdout.readline()))
        try:
            yield Session(leader.pid, member)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
            leader.kill()


@pytest.fixture
def ended() -> Iterator[Session]:
    """Provide a session whose leader has ended."""
    with session("sleep 60 > /dev/null & echo $!") as found:
        psutil.wait_procs([psutil.Process(found.leader)], timeout=3)
        yield found


@pytest.fixture
def running() -> Iterator[Session]:
    """Provide a session whose leader is still running."""
    with session("sleep 60 > /dev/null & echo $!; wait") as found:
        yield found


def is_killed_by_sweep(folder: Path, found: Session, boot: str) -> bool:
    """
    Sweep a process file with a wrong start time; return whether the member was killed.
    """
    file = folder / "part"
    file.write_text(f"{found.leader} 1 {boot}\n", encoding="utf-8")
    process.clean_up_session(file)
    assert not file.exists()
    _, alive = psutil.wait_procs([found.member], timeout=1)
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_processes_of_an_ended_leader_are_killed(tmp_path: Path, ended: Session):
    """
    The pid cannot have been reused while processes of its session are running.
    """
    assert is_killed_by_sweep(tmp_path, ended, BOOT)


def test_a_session_from_an_earlier_boot_is_spared(tmp_path: Path, ended: Session):
    """
    After a reboot, the pid denotes a different process.
    """
    assert not is_killed_by_sweep(tmp_path, ended, ANOTHER_BOOT)


def test_the_session_of_a_reused_pid_is_spared(tmp_path: Path, running: Session):
    """
    The present leader started at a different time from the one in the file.
    """
    assert not is_killed_by_sweep(tmp_path, running, BOOT)


def test_a_process_whose_file_cannot_be_written_is_not_left_running(tmp_path: Path):
    """
    The process could not be stopped, and the supervisor would start a second one.
    """
    state = StateFolder(tmp_path)
    state.create()
    (tmp_path / "run").rmdir()
    command = ("sleep", "60")
    part = Part(name="part", command=command, folder=tmp_path, env={"PATH": os.defpath})
    before = set(psutil.Process().children())

    with pytest.raises(FileNotFoundError):
        process.start(part, state)

    assert before == set(psutil.Process().children())


def test_killing_a_process_that_has_just_ended_succeeds(tmp_path: Path, monkeypatch):
    """
    A relay may end just as the chaos test kills it.
    """

    class Ended:
        """A process that ended after it was found."""

        pid = 2**22

        def kill(self):
            """Raise an error, because the process has ended."""
            raise psutil.NoSuchProcess(self.pid)

        status = kill

    state = StateFolder(tmp_path)
    state.create()
    state.process_file("relay").write_text(f"{Ended.pid} 1 {BOOT}\n")
    monkeypatch.setattr(process, "find", lambda _: Ended())

    Launcher(state, {}).kill("relay")

    assert not state.process_file("relay").exists()
