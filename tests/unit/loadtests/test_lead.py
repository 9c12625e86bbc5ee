"""The preparation of a run: a mistake leaves no process behind."""

import subprocess
import sys

import pytest

# Locust patches the standard library of the process that imports it.
_PREPARATION = """
from types import SimpleNamespace
from towpath.loadtests.load import lead
from towpath.loadtests.errors import TargetUnavailableError
from towpath.schemas.clock import SystemClock

def refuse(*_):
    raise TargetUnavailableError("no cache")

check = SimpleNamespace(close=lambda: print("the check is closed"))
lead.given_customers = lambda _options: ("c",)
lead.check_shop = lambda _address, given: given
lead.targets_of = lambda _options: {"cache": {}}
lead._store_check = lambda _options, _targets: check
lead.LagSampling = refuse
options = SimpleNamespace(
    load_shape="",
    load_lag_interval=1.0,
    load_lag_after=0.0,
    load_lag_for=0.0,
    load_lag_lost_after=1.0,
)
try:
    lead.prepare(options, "http://shop", refuse, SystemClock())
except TargetUnavailableError as error:
    print(error)
"""


@pytest.mark.timeout(30)
def test_a_target_that_cannot_be_sampled_ends_the_check_too():
    """
    The check's process was started before the sampler's.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PREPARATION], capture_output=True, text=True, check=True
    )

    assert ["the check is closed", "no cache"] == done.stdout.splitlines()
