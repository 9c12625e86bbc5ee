"""
The chaos test of snapshots, which runs for ``SOAK_MINUTES``, ten by default.

The seed is printed, so that a failed run can be repeated with ``towpath chaos
snapshot`` and the same seed.
"""

import os
from pathlib import Path
from random import SystemRandom

import pytest

from towpath.deploy.bench.runner import chaos_environment
from towpath.deploy.local.part import StateFolder
from towpath.loadtests.chaos.context import ChaosOptions, QuietScreen
from towpath.loadtests.chaos.run import run_chaos

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))  # noqa: TID251 - a root

pytestmark = [pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 1200)]


@pytest.mark.parametrize("ddl", [True, False], ids=["alterations", "no alterations"])
def test_topics_end_up_equal_to_the_tables_under_chaos(
    stack, database: str, unique: str, tmp_path: Path, *, ddl: bool
):
    """
    At the end of each round, the topics have the tables' rows; every signal ends.
    """
    stack.up("postgres", "kafka")
    state = StateFolder(tmp_path)
    state.create()
    seed = SystemRandom().randrange(10**6)
    options = ChaosOptions(minutes=MINUTES / 2, seed=seed, ddl=ddl)
    environment = chaos_environment(state, database, stack.kafka, unique)
    try:
        result = run_chaos(environment, options, QuietScreen())
    finally:
        for name in state.parts():
            environment.launcher.kill(name)
    print(result.line())  # noqa: T201 - shown with -s, or when the test fails

    assert [] == result.findings
    assert result.rounds > 1
