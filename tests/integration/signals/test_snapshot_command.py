"""``towpath snapshot`` against a real relay: words in, exit codes and text out."""

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
    """The command line, run in this process."""

    def __init__(self, rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self._rig = rig
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Run ``towpath snapshot``; return exit code, output and errors."""
        self._capsys.readouterr()
        code = root.run(["snapshot", *words, "--config", str(self._rig.config)])
        said = self._capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def command(rig, capsys) -> Command:
    """Provide the command line."""
    return Command(rig, capsys)


def test_a_snapshot_is_started_watched_and_shown(rig, command: Command):
    """
    The id is printed alone, the bars go to standard error, and the list tells all.
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


def test_what_is_asked_for_is_what_is_read(rig, command: Command, tmp_path):
    """
    Filters, keys from words and files, and a rate go into the signal as they are.
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
    By its id, by a table's name, or all of them; each says what it changed.
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
    nothing = command("stop", "s.a")
    taken_up = command("resume", "s1")
    rig.wait_for_answer("s1")

    assert ("paused: s.a\n", "resumed: s.a\n", "stopped: s.a\n", "resumed: s.a\n") == (
        paused[1],
        resumed[1],
        stopped[1],
        taken_up[1],
    )
    assert (0, 0, 0, 1, 0) == (
        *(paused[0], resumed[0], stopped[0]),
        *(nothing[0], taken_up[0]),
    )
    assert "it has no open snapshot" in nothing[2]
    assert "stopped" in shown[1]


def test_what_is_rejected_or_fails_exits_1(rig, command: Command):
    """
    The relay's own reason is reported, without waiting for more.
    """
    rig.start()
    unknown = command("start", "s.none", "--id", "s1", "--wait")
    shown = command("show", "s1")
    half = command("start", "s.b", "s.none", "--id", "s2", "--wait", "--json")

    assert (1, 1, 1) == (unknown[0], shown[0], half[0])
    assert "s1 rejected: s.none: not a captured table" in unknown[2]
    assert "s1 rejected: s.none: not a captured table" in shown[2]
    assert "failed" == json.loads(half[1])["status"]


def test_mistakes_exit_2_before_anything_is_asked(rig, command: Command):
    """
    A sink, a key or a snapshot that is not there leaves no signal.
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
    The command says that nobody answers and what to do, exits 3, and lost nothing.
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


def test_who_stops_watching_leaves_the_snapshot_running(rig):
    """
    An interrupt ends the command with 130 and says how to go on.
    """
    rig.start()
    words = ["snapshot", "start", "s.a", "--id", "s1", *SLOWLY, "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-m", "towpath.cli", *words, "--config", rig.config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rig.wait_for_rows("s1", 100)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    rig.wait_for_answer("s1")

    assert 130 == process.returncode, said
    assert "snapshot s1 continues: towpath snapshot show s1 --follow" in said
