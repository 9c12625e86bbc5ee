"""Short runs of the chaos test: a relay suffers faults while it reads tables."""

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import SystemRandom

import psutil
import pytest

from support.command import towpath
from support.waiting import stretched
from towpath.deploy.bench.runner import chaos_environment
from towpath.deploy.local.part import StateFolder
from towpath.loadtests.chaos.context import ChaosEnvironment, ChaosOptions, QuietScreen
from towpath.loadtests.chaos.run import run_chaos
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

CHAOS = ("chaos", "snapshot")
# The real relay with the textbook rule: every commit counts as visible.
TEXTBOOK = """
from towpath.cli.app import main
from towpath.relay.snapshot.visibility import XidSnapshot
XidSnapshot.sees_streamed = lambda *_: True
main()
"""


@pytest.fixture
def environment(
    stack, database: str, unique: str, tmp_path: Path
) -> Iterator[ChaosEnvironment]:
    """Provide an environment on the run's stack; stop all processes at the end."""
    stack.up("postgres", "kafka")
    state = StateFolder(tmp_path)
    state.create()
    made = chaos_environment(state, database, stack.kafka, unique)
    yield made
    for name in state.parts():
        made.launcher.kill(name)


@pytest.mark.soak
def test_chaos_detects_the_textbook_rule(environment: ChaosEnvironment):
    """
    If the relay uses the textbook rule, the chaos test finds stale rows (B17).
    """
    defective = replace(environment, towpath=(sys.executable, "-c", TEXTBOOK))
    # The run ends with the first round that has a finding.
    minutes = stretched(1.0)
    options = ChaosOptions(minutes=minutes, seed=31, kill=(), ddl=False, round_s=12.0)
    result = run_chaos(defective, options, QuietScreen())

    assert any("stale" in each or "resurrected" in each for each in result.findings)


@pytest.mark.soak
def test_the_chaos_command_finds_no_difference_and_cleans_up(tmp_path: Path):
    """
    After kills, alterations and late commits, rows are equal, and no file remains.

    ``tests/soak`` runs the chaos test for longer.
    """
    seed = SystemRandom().randrange(10**6)
    options = ("--json", "--minutes", "0.3", "--seed", str(seed))
    with towpath(tmp_path, *CHAOS, *options) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, f"seed {seed}: {output!r} {errors.decode()}"
    result = json.loads(output)

    assert (seed, True, [], []) == (
        result["seed"],
        result["equal"],
        result["findings"],
        list(tmp_path.iterdir()),
    )
    assert result["rounds"] >= 1
    assert all(result[kind] for kind in ("killed", "shaped", "asked"))
    assert min(result["reads"], result["streamed"]) > 5_000


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path):
    """
    After Ctrl-C while the relay runs, the exit code is 130; no process or file remains.
    """
    with towpath(tmp_path, *CHAOS, "--minutes", "5") as process:
        deadline = Deadline(SystemClock(), 90)
        while not list(tmp_path.glob("*/run/relay.pid")):
            assert not deadline.passed()
            assert process.poll() is None, process.stderr.read()
            SystemClock().wait(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)

    assert (130, True, [], []) == (
        process.returncode,
        len(family) >= 2,
        [one for one in family if one.is_running()],
        list(tmp_path.iterdir()),
    )


def test_an_unknown_victim_causes_a_usage_error(tmp_path: Path):
    """
    An unknown victim is refused; the error lists the known victims.
    """
    with towpath(tmp_path, *CHAOS, "--kill", "kafka") as process:
        _, errors = process.communicate(timeout=240)

    assert (2, True) == (process.returncode, b"relay, backend" in errors)
