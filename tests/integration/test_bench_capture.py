"""
The methods of change capture at small scale: each misses exactly the expected changes.

The comparison itself arranges the scenarios step by step on real servers, so that every
run repeats them exactly. The counts under load depend on the machine, so the tests
expect only zeros or bounds.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.command import towpath
from towpath.loadtests.capture.load import plan_load
from towpath.loadtests.capture.writers import (
    NoPublisher,
    WriterSetup,
    kill_after_commit,
)
from towpath.loadtests.errors import BenchError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COMPARE = ("demo", "compare", "--json", "--transactions", "150")
NOTHING = {"delete": [], "late": [], "race": [], "overtaking": [], "crash": []}

# ``sitecustomize`` of every Python process in the comparison: the relay publishes no
# deletes.
DEFECT = """
import towpath.relay.encode.table as table
from towpath.schemas.envelope import Operation

[route] = [
    one
    for one in vars(table).values()
    if isinstance(one, type) and "_delete" in vars(one)
]
route._delete = lambda *_: ()
"""


def compare(tmp_path_factory, *args: str) -> dict[str, Any]:
    """Run the comparison, and return the results of all methods by name."""
    folder = tmp_path_factory.mktemp("compare")
    plot = tmp_path_factory.mktemp("plot") / "plot.svg"
    with towpath(folder, *COMPARE, "--plot", str(plot), *args) as process:
        output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors.decode()
    assert [] == list(folder.iterdir())
    assert plot.read_text(encoding="utf-8").startswith("<svg")
    found: dict[str, Any] = json.loads(output)
    return found["ways"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> dict[str, Any]:
    """Provide one comparison's results, by method."""
    return compare(tmp_path_factory)


@pytest.fixture(scope="module")
def variants(tmp_path_factory) -> dict[str, Any]:
    """Provide the results of one comparison with all variants, by method."""
    return compare(tmp_path_factory, "--variants")


def test_the_relay_misses_nothing(compared):
    """
    It captures every change once and in order, in every scenario and under load.
    """
    relay = compared["relay"]

    assert NOTHING == relay["scenes"]
    assert {0} == set(relay["check"].values())


def test_triggers_with_a_fenced_worker_miss_nothing(compared):
    """
    The correct worker publishes in commit order, and waits for late commits.
    """
    trigger = compared["trigger"]

    assert NOTHING == trigger["scenes"]
    assert {0} == set(trigger["check"].values())


def test_a_query_misses_deletes_and_late_commits(compared):
    """
    The deleted row remains; the late row and intermediate states are missing.
    """
    scenes, check = compared["query"]["scenes"], compared["query"]["check"]
    # It depends on the timer whether a poll falls between the two commits of the race.
    assert set(scenes.pop("race")) <= {"unseen"}

    assert {
        "delete": ["ghost", "unseen"],
        "late": ["missing", "unseen"],
        "overtaking": ["missing", "stale", "unseen"],
        "crash": [],
    } == scenes
    assert check["unseen_late"] >= 1
    assert check["ghosts"] >= 1


def test_a_dual_write_loses_an_event_in_a_crash_and_the_order_in_a_race(compared):
    """
    The killed writer's row is missing; the raced row keeps its older state forever.
    """
    scenes = compared["dual_write"]["scenes"]

    assert (
        NOTHING
        | {
            "race": ["disordered", "stale"],
            "crash": ["missing", "unseen"],
        }
        == scenes
    )


@pytest.mark.soak
def test_a_worker_that_trusts_the_sequence_loses_late_commits(variants):
    """
    A late commit has a lower number than rows that have already been read.
    """
    scenes = variants["trigger_by_number"]["scenes"]

    assert ["missing", "unseen"] == scenes["late"]
    assert ["missing", "unseen"] == scenes["overtaking"]
    assert [] == scenes["delete"] + scenes["race"] + scenes["crash"]


@pytest.mark.soak
def test_a_worker_that_waits_for_transactions_loses_only_the_order(variants):
    """
    No change is missed, but the later change of a row is published first.
    """
    result = variants["trigger_by_transaction"]

    assert NOTHING | {"overtaking": ["disordered", "stale"]} == result["scenes"]
    assert 0 == result["check"]["unseen"]


@pytest.mark.soak
def test_an_overlap_finds_late_commits_and_repeats_records(variants):
    """
    It still misses deletes and intermediate states.
    """
    result = variants["query_overlap"]

    assert [] == result["scenes"]["late"] + result["scenes"]["crash"]
    assert ["ghost", "unseen"] == result["scenes"]["delete"]
    assert result["check"]["duplicates"] > 0


def test_every_method_gets_the_same_changes_and_reports_its_costs(compared):
    """
    Triggers write more WAL than the relay does; each method reports its lag.
    """
    methods = {name: one for name, one in compared.items() if name != "none"}
    log_bytes = {name: one["cost"]["log_bytes"] for name, one in compared.items()}

    assert 1 == len({one["changes"] for one in methods.values()})
    assert all(one["lag"]["p50_ms"] <= one["lag"]["p99_ms"] for one in methods.values())
    assert all(one["cost"]["cpu_us"] > 0 for one in compared.values())
    assert log_bytes["trigger"] > log_bytes["relay"]
    assert {"changes", "check", "lag"}.isdisjoint(compared["none"])


@pytest.mark.soak
def test_a_relay_that_misses_changes_makes_the_comparison_fail(
    tmp_path: Path, monkeypatch
):
    """
    The exit code is 1, the relay's result shows the loss, and no file remains.
    """
    (tmp_path / "defect").mkdir()
    (tmp_path / "defect" / "sitecustomize.py").write_text(DEFECT, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - a root
    path = os.pathsep.join(filter(None, (str(tmp_path / "defect"), inherited)))
    monkeypatch.setenv("PYTHONPATH", path)
    (tmp_path / "run").mkdir()
    with towpath(tmp_path / "run", *COMPARE) as process:
        output, errors = process.communicate(timeout=280)
    assert output, errors.decode()
    document = json.loads(output)
    relay = document["ways"]["relay"]

    assert (1, False) == (process.returncode, document["equal"])
    assert ["ghost", "unseen"] == relay["scenes"]["delete"]
    assert relay["check"]["unseen"] == relay["check"]["unseen_deletes"] > 0
    assert [] == list((tmp_path / "run").iterdir())


def test_a_failing_writer_ends_the_comparison_with_one_error():
    """
    The error says why the writer's process failed.
    """
    setup = WriterSetup(
        dsn="postgresql://127.0.0.1:1/none",
        publisher=NoPublisher(),
        transactions=plan_load(100, 1, 100.0, 1).writers[-1][:1],
    )

    with pytest.raises(BenchError, match=r"a writer failed: .*refused"):
        kill_after_commit(setup)
