"""``towpath snapshot`` with a real relay: arguments, exit codes and output."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from towpath.cli import app as root

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 1_000
SLOWLY = ("--max-rows-per-second", "100")


class Command:
    """``towpath snapshot``, run in this process."""

    def __init__(self, rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self._rig = rig
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command; return its exit code, standard output and standard error."""
        self._capsys.readouterr()
        code = root.run(["snapshot", *arguments, "--config", str(self._rig.config)])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture
def command(rig, capsys) -> Command:
    """Provide the command."""
    return Command(rig, capsys)


def test_a_snapshot_is_started_watched_and_shown(rig, command: Command):
    """
    Standard output has only the id, standard error the progress; the list has the rows.
    """
    rig.start()
    started = command("start", "s.a", "--id", "s1", "--wait")
    shown = command("show", "s1", "--json")
    listed = command("list")
    [row] = json.loads(shown[1])

    assert (0, "s1\n") == started[:2]
    assert "s1 completed" in started[2]
    assert ("completed", ROWS, ["1000"], 100.0) == (
        row["state"],
        row["rows"],
        row["last_key"],
        row["percent"],
    )
    assert (0, True) == (listed[0], "1,000" in listed[1])


def test_only_the_requested_rows_are_read(rig, command: Command, tmp_path):
    """
    Filters, keys from options and files, and a rate are passed on in the signal.
    """
    file = tmp_path / "keys"
    file.write_text("8\n[9]\n", "utf-8")
    rig.start()
    filtered = command(
        *("start", "s.a", "--where", "s.a=id = 7 or id = 201", "--id", "where"),
        *("--wait", "--max-rows-per-second", "5000"),
    )
    listed = command(
        *("start", "s.a", "--key", "[12]", "--keys", str(file), "--id", "keys"),
        "--wait",
    )

    assert (0, 0) == (filtered[0], listed[0])
    assert {
        ("where", 7),
        ("where", 201),
        *(("keys", key) for key in (8, 9, 12)),
    } == set(rig.reads())


def test_a_snapshot_is_paused_resumed_and_stopped(rig, command: Command):
    """
    Commands name the snapshot by id or table, or not at all; they print their changes.
    """
    rig.start()
    command("start", "s.a", "--id", "s1", *SLOWLY)
    rig.wait_for_rows("s1", 100)
    paused = command("pause", "s1")
    rig.wait_for_state("s1", "paused")
    resumed = command("resume", "s.a")
    rig.wait_for(lambda: rig.table("s1")[0] in {"queued", "running"})
    stopped = command("stop")
    rig.wait_for_answer("s1", "failed")
    shown = command("show", "s1")
    refused = command("stop", "s.a")
    resumed_by_id = command("resume", "s1")
    rig.wait_for_answer("s1")

    assert ("paused: s.a\n", "resumed: s.a\n", "stopped: s.a\n", "resumed: s.a\n") == (
        paused[1],
        resumed[1],
        stopped[1],
        resumed_by_id[1],
    )
    assert (0, 0, 0, 1, 0) == (
        *(paused[0], resumed[0], stopped[0]),
        *(refused[0], resumed_by_id[0]),
    )
    assert "it has no open snapshot" in refused[2]
    assert "stopped" in shown[1]


def test_a_rejected_or_failed_snapshot_exits_with_1(rig, command: Command):
    """
    The command prints the relay's reason.
    """
    rig.start()
    unknown = command("start", "s.none", "--id", "s1", "--wait")
    shown = command("show", "s1")
    half = command("start", "s.b", "s.none", "--id", "s2", "--wait", "--json")

    assert (1, 1, 1) == (unknown[0], shown[0], half[0])
    assert "s1 rejected: s.none: not a captured table" in unknown[2]
    assert "s1 rejected: s.none: not a captured table" in shown[2]
    assert "failed" == json.loads(half[1])["status"]


def test_mistakes_exit_with_2_before_a_signal_is_sent(rig, command: Command):
    """
    With an unknown sink or snapshot, or an invalid option, no signal is inserted.
    """
    codes = [
        command("start", "s.a", "--target", "nobody")[0],
        command("start", "--key", "7")[0],
        command("start", "s.a", "--where", "id > 5")[0],
        command("start", "s.a", "--type", "sometimes")[0],
        command("show", "nothing")[0],
        command("pause", "nothing")[0],
        command("show", "nothing", "--follow")[0],
    ]

    assert [2] * 7 == codes
    assert [] == rig.execute("select id from towpath.signal")


def test_without_a_relay_the_signal_waits_for_one(rig, command: Command):
    """
    The command reports that no relay answers, exits with 3, and loses no signal.
    """
    silent = command("start", "s.a", "--id", "s1", "--answer-within", "1")
    quiet = command("start", "s.b", "--id", "s2", "--answer-within", "0")
    again = command("start", "s.a", "--id", "s1")
    rig.start()
    rig.wait_for_answer("s1")
    rig.wait_for_answer("s2")

    assert (3, "s1\n", 0, 2) == (silent[0], silent[1], quiet[0], again[0])
    assert "no relay has answered" in silent[2]
    assert "towpath relay run" in silent[2]


def test_an_interrupted_command_leaves_the_snapshot_running(rig):
    """
    It exits with 130, and prints the command with which to follow the snapshot.
    """
    rig.start()
    arguments = ["snapshot", "start", "s.a", "--id", "s1", *SLOWLY, "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-m", "towpath.cli", *arguments, "--config", rig.config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rig.wait_for_rows("s1", 100)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    rig.wait_for_answer("s1")

    assert 130 == process.returncode, errors
    assert "snapshot s1 continues: towpath snapshot show s1 --follow" in errors
