"""The tests' helpers end what they start, and name the conditions they wait for."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.command import towpath
from support.pages import blocks
from support.rights import documented
from support.stopping import stop
from support.waiting import until

IGNORES_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
signal.pause()
"""


@pytest.mark.timeout(30)
def test_a_command_ends_with_its_block_even_if_the_block_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """
    Otherwise the failed test would wait forever for the command.
    """
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    started = []

    def fail(process):
        started.append(process)
        pytest.fail("the block fails")

    with pytest.raises(pytest.fail.Exception), towpath(tmp_path) as process:
        fail(process)

    assert [-9] == [process.returncode for process in started]


@pytest.mark.timeout(30)
def test_a_process_that_does_not_stop_in_time_is_killed():
    """
    The test that started it fails, and leaves no process behind.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", IGNORES_SIGTERM], stdout=subprocess.PIPE
    )
    with process:
        process.stdout.readline()

        with pytest.raises(subprocess.TimeoutExpired):
            stop(process, 0.01)

    assert process.returncode == -9


@pytest.mark.parametrize("what", ["it is there", lambda: "it is there"])
def test_a_wait_that_times_out_names_its_condition(what):
    """
    The condition is a string, or a function that returns the string after the timeout.
    """
    with pytest.raises(pytest.fail.Exception, match="waiting until it is there"):
        until(lambda: False, what, timeout_s=0.0)


def test_a_block_without_an_end_is_refused():
    """
    The rest of its page would be neither prose nor a block, so it would go unchecked.
    """
    with pytest.raises(AssertionError, match="line 2"):
        blocks("a\n```sh\nb\n")


def test_a_section_that_a_page_does_not_have_is_refused():
    """
    Otherwise a test of its grants would execute none of them, and pass.
    """
    with pytest.raises(AssertionError, match="No such section"):
        documented("sql", "No such section")
