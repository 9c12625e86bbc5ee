"""A forked relay behaves like one in a separate interpreter."""

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
    "not TOML": "version = ",
    "unknown key": "version = 1\n[relay]\ncolor = 'red'\n",
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
    Both give the same exit code and the same log.
    """
    config, fresh, forked = (tmp_path / name for name in ("t.toml", "fresh", "forked"))
    if text is not None:
        config.write_text(text, encoding="utf-8")
    args = ["-m", "towpath.relay", str(config)]
    with fresh.open("ab") as log:
        code = subprocess.run(
            [sys.executable, *args], stdout=log, stderr=log, check=False
        ).returncode
    forked_code = Forked(args, forked).wait(20)

    assert code == forked_code
    assert code > 0
    assert fresh.read_text() == forked.read_text()
    assert fresh.read_text()


def test_a_forked_script_has_its_own_arguments_and_can_be_killed(tmp_path: Path):
    """
    The script gets its arguments; a kill ends its process, and gives its exit code.
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


def test_a_forked_program_prints_its_failure_and_exits_with_one(tmp_path: Path):
    """
    An uncaught exception is printed, and the exit code is 1.
    """
    script, log = tmp_path / "fails.py", tmp_path / "log"
    script.write_text("raise LookupError('nothing there')")
    code = Forked([str(script)], log).wait(10)

    assert code == 1
    assert "LookupError: nothing there" in log.read_text()


def test_a_forked_program_ends_when_its_starter_is_killed(tmp_path: Path):
    """
    A killed test worker leaves no relay running.
    """
    script, starter = tmp_path / "waits.py", tmp_path / "starts.py"
    script.write_text(WAITING)
    starter.write_text(STARTER)
    environment = {
        **os.environ,  # noqa: TID251 - a separate process
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, starter, tmp_path / "log", script, "one"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        pid = int(process.stdout.readline())
        assert psutil.pid_exists(pid)
        process.kill()
    until(lambda: not psutil.pid_exists(pid), "the program is gone")
