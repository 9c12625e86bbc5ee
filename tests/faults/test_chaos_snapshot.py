"""A slice of chaos: everything that may happen while tables are read, judged."""

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
from towpath.deploy.bench.runner import place_in
from towpath.deploy.local.part import StateFolder
from towpath.loadtests.chaos.context import ChaosEnvironment, ChaosOptions, QuietScreen
from towpath.loadtests.chaos.run import run_chaos
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

CHAOS = ("chaos", "snapshot")
# The whole relay with the textbook's rule: every commit is thought to be visible.
TEXTBOOK = """
from towpath.deploy.cli.app import main
from towpath.relay.snapshot.visibility import XidSnapshot
XidSnapshot.sees_streamed = lambda *_: True
main()
"""


@pytest.fixture
def place(
    stack, database: str, unique: str, tmp_path: Path
) -> Iterator[ChaosEnvironment]:
    """Provide a place on the run's stack; whatever was started there is stopped."""
    stack.up("postgres", "kafka")
    state = StateFolder(tmp_path)
    state.create()
    place = place_in(state, database, stack.kafka, unique)
    yield place
    for name in state.parts():
        place.launcher.kill(name)


def test_half_a_minute_of_chaos_ends_with_what_the_tables_hold(place: ChaosEnvironment):
    """
    Kills, alterations, rewrites, late commits: all equal, and every signal ended.
    """
    seed = SystemRandom().randrange(10**6)
    options = ChaosOptions(minutes=0.5, seed=seed, round_s=15.0)
    result = run_chaos(place, options, QuietScreen())
    print(result.line(), *result.warnings, sep="\n")  # noqa: T201 - if it fails
    killed = result.killed

    assert [] == result.findings
    assert result.rounds >= 1
    assert (True, True) == (killed.total() > 0, result.altered.total() > 0)
    assert (True, True) == (result.reads > 5_000, result.streamed > 5_000)


def test_chaos_finds_the_textbook_out(place: ChaosEnvironment):
    """
    With the textbook's window in the relay the same chaos finds stale rows (B17).
    """
    defective = replace(place, towpath=(sys.executable, "-c", TEXTBOOK))
    options = ChaosOptions(minutes=1.0, seed=31, kill=(), ddl=False, round_s=12.0)
    result = run_chaos(defective, options, QuietScreen())

    assert any("stale" in each or "resurrected" in each for each in result.findings)


def test_the_command_judges_and_cleans_up(tmp_path: Path):
    """
    One JSON object with the seed and what was found; exit 0; no file remains.
    """
    words = ("--json", "--minutes", "0.05", "--seed", "7", "--kill", "backend")
    with towpath(tmp_path, *CHAOS, *words) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors.decode()
    told = json.loads(output)

    assert (7, True, 1, [], []) == (
        told["seed"],
        told["equal"],
        told["rounds"],
        told["findings"],
        list(tmp_path.iterdir()),
    )


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path):
    """
    Ctrl-C while the relay runs: 130, no process and no file remains.
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


def test_an_unknown_victim_is_a_mistake_of_usage(tmp_path: Path):
    """
    An unknown victim is refused, and the known ones are listed.
    """
    with towpath(tmp_path, *CHAOS, "--kill", "kafka") as process:
        _, errors = process.communicate(timeout=240)

    assert (2, True) == (process.returncode, b"relay, backend" in errors)
