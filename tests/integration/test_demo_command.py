"""Commands that the demo runs to their end: real processes, none left behind."""

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
    """Return the command that runs a few words of Python."""
    return (sys.executable, "-c", code)


@pytest.fixture
def around(tmp_path):
    """Give the surroundings of short commands."""
    return CommandEnvironment({"PATH": os.defpath}, tmp_path, 20.0)


def children():
    """List the processes that this one has started and that still live."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]


def test_every_command_tells_how_it_ended(around):
    """
    Codes, output and errors come back under each command's name.
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
    actual = run_all(commands, around, at_once=2)

    assert expected == actual


def test_a_command_that_must_succeed_tells_its_last_words(around):
    """
    A failure is reported with the end of what the command printed.
    """
    with pytest.raises(StepError, match=r"ended with 1\n.*the reason"):
        run_checked(python("raise SystemExit('the reason')"), around)


def test_what_is_late_is_killed_with_all_its_children(tmp_path):
    """
    A command that takes too long is killed, and so is what it has started.
    """
    before = children()
    around = CommandEnvironment({"PATH": os.defpath}, tmp_path, 1.0)
    with pytest.raises(StepError, match="not done after 1 s: slow"):
        run_all({"slow": ("/bin/sh", "-c", "sleep 60 & sleep 60")}, around, at_once=1)
    clock = SystemClock()
    deadline = Deadline(clock, 5.0)
    while children() != before and not deadline.passed():
        clock.wait(0.05)

    assert children() == before
