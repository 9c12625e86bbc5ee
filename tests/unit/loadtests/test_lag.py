"""The processes beside locust's: one that has ended harms nothing else."""

import subprocess
import sys

import pytest

# In a process of its own: gevent changes the loop of its process.
_ENDED = """
from towpath.loadtests.load.lag import SideProcess

ended = SideProcess("no_such_module", {})
print(ended.first_line()["error"].partition(";")[0])
ended.send("stop")
ended.close()
print("closed")
"""


@pytest.mark.timeout(30)
def test_a_process_that_has_ended_can_be_written_to_and_closed():
    """
    The report of the run follows, although its last line reaches nobody.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ENDED], capture_output=True, text=True, check=False
    )

    assert ["the process ended unexpectedly", "closed"] == done.stdout.splitlines()
