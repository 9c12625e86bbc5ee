"""A forked relay against one that an interpreter of its own runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.forked import Forked
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]

WRONG = {
    "no file": None,
    "no table": "version = 1\n",
    "no TOML": "version = ",
    "unknown key": "version = 1\n[relay]\ncolour = 'red'\n",
}
STARTER = """
import sys
from pathlib import Path
from support.forked import Forked
from support.waiting import until
if __name__ == "__main__":
    log = Path(sys.argv[1])
    pid = Forked(sys.argv[2:], log).pid
    until(lambda: log.exists() and "one" in log.read_text(), "the script prints")
    print(pid, flush=True)
    sys.stdin.read()
"""
WAITING = "import sys, threading; print(sys.argv, flush=True); threading.Event().wait()"


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_forked_relay_refuses_a_configuration_as_python_m_does(
    text: str | None, tmp_path: Path
):
    """
    Exit code and log of both are the same.
    """
    config, fresh, forked = (tmp_path / name for name in ("t.toml", "fresh", "forked"))
    if text is not None:
        config.write_text(text, encoding="utf-8")
    words = ["-m", "towpath.relay", str(config)]
    with fresh.open("ab") as log:
        code = subprocess.run(
            [sys.executable, *words], stdout=log, stderr=log, check=False
        ).returncode
    forked_code = Forked(words, forked).wait(20)

    assert code == forked_code
    assert code > 0
    assert fresh.read_text() == forked.read_text()
    assert fresh.read_text()


def test_a_forked_script_has_its_own_arguments_and_ends_by_a_signal(tmp_path: Path):
    """
    A script gets its own words, its pid is the program's, and a kill is its exit code.
    """
    script, log = tmp_path / "waits.py", tmp_path / "log"
    script.write_text(WAITING)
    process = Forked([str(script), "one"], log)
    until(lambda: log.exists() and "one" in log.read_text(), "the script prints")
    assert process.poll() is None
    process.kill()
    code = process.wait(10)

    assert code == -signal.SIGKILL
    assert f"['{script}', 'one']\n" == log.read_text()
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_forked_program_prints_its_failure_and_ends_with_one(tmp_path: Path):
    """
    What the program does not catch is printed as a traceback, and it exits with 1.
    """
    script, log = tmp_path / "fails.py", tmp_path / "log"
    script.write_text("raise LookupError('nothing there')")
    code = Forked([str(script)], log).wait(10)

    assert code == 1
    assert "LookupError: nothing there" in log.read_text()


def test_a_forked_program_ends_with_a_killed_starter(tmp_path: Path):
    """
    A worker that is killed leaves no relay behind.
    """
    script, starter = tmp_path / "waits.py", tmp_path / "starts.py"
    script.write_text(WAITING)
    starter.write_text(STARTER)
    environment = {
        **os.environ,  # noqa: TID251 - a process of its own
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    words = [sys.executable, starter, tmp_path / "log", script, "one"]
    with subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        pid = int(process.stdout.readline())
        assert psutil.pid_exists(pid)
        process.kill()
    until(lambda: not psutil.pid_exists(pid), "the program is gone")
