"""Commands that the demo runs to completion, as real processes."""

import os
import sys

import psutil
import pytest

from towpath.deploy.demo.command import (
    CommandEnvironment,
    CommandOutcome,
    run_all,
    run_checked,
)
from towpath.deploy.errors import StepError
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def python(code):
    """Return the command that runs a piece of Python code."""
    return (sys.executable, "-c", code)


@pytest.fixture
def environment(tmp_path):
    """Provide an environment for short commands."""
    return CommandEnvironment({"PATH": os.defpath}, tmp_path, 20.0)


def children():
    """Return the ids of this process's descendants that are still running."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]


def test_every_command_returns_its_outcome(environment):
    """
    Exit code, output and errors are returned under each command's name.
    """
    commands = {
        "good": python("print('fine')"),
        "bad": python("import sys; sys.stderr.write('no'); sys.exit(3)"),
        "quiet": python("pass"),
    }
    expected = {
        "good": CommandOutcome(0, "fine\n", ""),
        "bad": CommandOutcome(3, "", "no"),
        "quiet": CommandOutcome(0, "", ""),
    }
    actual = run_all(commands, environment, at_once=2)

    assert expected == actual


def test_the_failure_of_a_checked_command_has_its_last_output(environment):
    """
    The error contains the end of the command's output.
    """
    with pytest.raises(StepError, match=r"exited with code 1\n.*the reason"):
        run_checked(python("raise SystemExit('the reason')"), environment)


def test_an_overdue_command_is_killed_with_all_its_children(tmp_path):
    """
    A command that takes too long is killed, together with its child processes.
    """
    before = children()
    environment = CommandEnvironment({"PATH": os.defpath}, tmp_path, 1.0)
    with pytest.raises(StepError, match="not done after 1 s: slow"):
        run_all(
            {"slow": ("/bin/sh", "-c", "sleep 60 & sleep 60")}, environment, at_once=1
        )
    clock = SystemClock()
    deadline = Deadline(clock, 5.0)
    while children() != before and not deadline.passed():
        clock.wait(0.05)

    assert children() == before
