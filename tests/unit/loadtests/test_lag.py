"""Locust's helper processes: one that has ended does no harm."""

import subprocess
import sys

import pytest

# Run in a separate process, because gevent changes the event loop of its process.
_ENDED = """
from towpath.loadtests.load.lag import SideProcess

ended = SideProcess("no_such_module", {})
print(ended.first_line()["error"].partition(";")[0])
ended.send("stop")
ended.close()
print("closed")
"""


@pytest.mark.timeout(30)
def test_a_helper_process_that_has_ended_accepts_writes_and_can_be_closed():
    """
    The report of the run still follows, although the last line is lost.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ENDED], capture_output=True, text=True, check=False
    )

    assert ["the process ended unexpectedly", "closed"] == done.stdout.splitlines()
