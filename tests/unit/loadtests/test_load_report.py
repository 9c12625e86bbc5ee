"""The counts of a load and its progress; locust needs a separate process."""

import json
import subprocess
import sys

# Locust patches the standard library of the process that imports it.
_REPORT = """
import json
from locust.stats import RequestStats
from towpath.loadtests.load import lag, samples, users
from towpath.loadtests.load.report import load_report

stats = RequestStats()
for kind, name in (
    ("POST", "orders"),
    ("GET", "orders"),
    ("POST", samples.CHECKOUT),
    (lag.LAG, "cache"),
    (users.ARRIVAL, users.NOT_STARTED),
):
    stats.log_error(kind, name, "no answer")
found = load_report(stats, elapsed_s=1.0, finished=True)
print(json.dumps([found.failures, found.not_started, found.reasons]))
"""


def test_the_reasons_add_up_to_the_failures():
    """
    Neither counts the sampler's requests, its lags, or arrivals that did not begin.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _REPORT], check=True, capture_output=True, text=True
    )
    failures, not_started, reasons = json.loads(ran.stdout)

    assert (2, 1) == (failures, not_started)
    assert {"orders: no answer": 2} == reasons


_PROGRESS = """
from pathlib import Path
from locust.stats import RequestStats
from towpath.loadtests.load.report import load_report, write_progress

load = load_report(RequestStats(), elapsed_s=1.0, finished=False)
write_progress(load, {}, Path("/nowhere/progress.json"))
print("continues")
"""


def test_an_unwritable_progress_file_does_not_end_the_run():
    """
    The check and the report follow, even if the disk is full for a while.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRESS], check=False, capture_output=True, text=True
    )

    assert ran.stdout == "continues\n"
    assert "load progress not written: [Errno 2]" in ran.stderr
