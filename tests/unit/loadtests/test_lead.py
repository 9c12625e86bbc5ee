"""The preparation of a run: mistakes are found before the load begins."""

import subprocess
import sys

import pytest

# Locust patches the standard library of the process that imports it.
_PREPARATION = """
from types import SimpleNamespace
from towpath.loadtests.load import lead
from towpath.loadtests.errors import LoadOptionError, TargetUnavailableError
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
    load_progress="",
    load_report="",
    headless=False,
    load_shape="",
    load_lag_interval=1.0,
    load_lag_after=0.0,
    load_lag_for=0.0,
    load_lag_lost_after=1.0,
)

def prepare():
    try:
        lead.prepare(options, "http://shop", refuse, SystemClock())
    except (LoadOptionError, TargetUnavailableError) as error:
        print(error)

prepare()
for path in ("/dev/null/report", "r" * 300):
    options.load_report = path
    prepare()
for path in ("/nowhere/progress.json", "p" * 300, "."):
    options.load_progress = path
    prepare()

lead.users.choose_users = lambda _environment: None
leader = SimpleNamespace(
    _prepared=None,
    _ending=SimpleNamespace(abandon=lambda: print("abandoned")),
    _environment=SimpleNamespace(parsed_options=options),
    _clock=SystemClock(),
)
try:
    lead.RunLeader._prepare(leader, "http://shop")
except LoadOptionError:
    print("the previous run continues")
"""

_UNWRITABLE_FOLDER = """
import os
from types import SimpleNamespace
from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.report import check_outputs

os.access = lambda *_: False
for is_headless in (False, True):
    options = SimpleNamespace(load_progress="", load_report="", headless=is_headless)
    try:
        check_outputs(options)
    except LoadOptionError as error:
        print(error)
"""


@pytest.mark.timeout(30)
def test_the_report_of_a_headless_run_needs_a_writable_folder(tmp_path):
    """
    By default its report is written to the current folder; a web run writes none.
    """
    done = subprocess.run(
        [sys.executable, "-c", _UNWRITABLE_FOLDER],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )

    assert f"--load-report: {tmp_path} is not a writable folder\n" == done.stdout


_ABANDONED_RUN = """
from types import SimpleNamespace
from locust.stats import RequestStats
from towpath.loadtests.load import lead
from towpath.schemas.clock import SystemClock

def documents():
    # A new run begins while the check waits for the last orders.
    run.abandon()
    yield from ()

check = SimpleNamespace(
    send=lambda _line: None,
    documents=documents,
    kill=lambda: print("killed"),
    close=lambda: print("closed"),
)
options = SimpleNamespace(
    load_progress="", load_report="none", csv_prefix=None, headless=False
)
environment = SimpleNamespace(
    parsed_options=options, stats=RequestStats(), process_exit_code=None
)
prepared = lead.Prepared("http://shop", (), None, None, check)
run = lead.LedRun(environment, prepared, SystemClock())
run.end()
print(environment.process_exit_code)
"""


@pytest.mark.timeout(30)
def test_stores_are_not_checked_while_a_new_run_writes():
    """
    Its open orders would look like contradictions in the previous run.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ABANDONED_RUN],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ["killed", "closed", "None"] == done.stdout.splitlines()


_REFUSED_CHECK = """
from types import SimpleNamespace
from towpath.loadtests.errors import LoadOptionError, ShopDatabaseError
from towpath.loadtests.load import lead

options = SimpleNamespace(load_dsn="postgresql://x/y", load_settle_for=1.0)
for response in ({"error": "no server"}, {"error": "a key", "is_option": True}):
    check = SimpleNamespace(first_line=lambda: response, close=lambda: print("closed"))
    lead.SideProcess = lambda *_: check
    try:
        lead._store_check(options, {})
    except (LoadOptionError, ShopDatabaseError) as error:
        print(type(error).__name__, error)
"""


@pytest.mark.timeout(30)
def test_a_refused_check_distinguishes_a_wrong_option_from_the_database():
    """
    The two need different remedies; in both cases the check's process ends.
    """
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED_CHECK],
        capture_output=True,
        text=True,
        check=True,
    )

    assert [
        "closed",
        "ShopDatabaseError no server",
        "closed",
        "LoadOptionError a key",
    ] == done.stdout.splitlines()


@pytest.mark.timeout(30)
def test_a_mistake_ends_the_preparation():
    """
    If the sampler cannot start, the check's process ends; an earlier run continues.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PREPARATION], capture_output=True, text=True, check=True
    )

    assert [
        "the check is closed",
        "no cache",
        "--load-report: /dev/null/report is not a writable folder",
        f"--load-report: {'r' * 300} is not a writable folder",
        "--load-progress: /nowhere/progress.json is not a file in a writable folder",
        f"--load-progress: {'p' * 300} is not a file in a writable folder",
        "--load-progress: . is not a file in a writable folder",
        "the previous run continues",
    ] == done.stdout.splitlines()
