"""
The ways to capture a table, small, on real servers: what each misses is what it must.

The scenes are arranged by the comparison itself, step by step, so that every run has
them in the same way; the counts of the load depend on the machine and are not compared.
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

# Found by every Python of the comparison: the relay publishes no delete.
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


def compare(tmp_path_factory, *words: str) -> dict[str, Any]:
    """Run the comparison, and return its document."""
    folder = tmp_path_factory.mktemp("compare")
    plot = tmp_path_factory.mktemp("plot") / "plot.svg"
    with towpath(folder, *COMPARE, "--plot", str(plot), *words) as process:
        output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors.decode()
    assert [] == list(folder.iterdir())
    assert plot.read_text(encoding="utf-8").startswith("<svg")
    found: dict[str, Any] = json.loads(output)
    return found["ways"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> dict[str, Any]:
    """Provide the ways of one comparison."""
    return compare(tmp_path_factory)


@pytest.fixture(scope="module")
def variants(tmp_path_factory) -> dict[str, Any]:
    """Provide the ways of one comparison with all variants."""
    return compare(tmp_path_factory, "--variants")


def test_the_relay_misses_nothing(compared):
    """
    Every change once and in order, in every scene and under the load.
    """
    relay = compared["relay"]

    assert NOTHING == relay["scenes"]
    assert {0} == set(relay["check"].values())


def test_triggers_with_a_fenced_worker_miss_nothing(compared):
    """
    The correct worker has the commits' order, and waits for those that are late.
    """
    trigger = compared["trigger"]

    assert NOTHING == trigger["scenes"]
    assert {0} == set(trigger["check"].values())


def test_a_query_misses_deletes_and_late_commits(compared):
    """
    The deleted row stays, the late one never comes, and states in between are unseen.
    """
    scenes, check = compared["query"]["scenes"], compared["query"]["check"]
    # Whether a poll falls between the two commits of the race is left to the timer.
    assert set(scenes.pop("race")) <= {"unseen"}

    assert {
        "delete": ["ghost", "unseen"],
        "late": ["missing", "unseen"],
        "overtaking": ["missing", "stale", "unseen"],
        "crash": [],
    } == scenes
    assert check["unseen_late"] >= 1
    assert check["ghosts"] >= 1


def test_a_dual_write_loses_the_event_of_a_crash_and_the_order_of_a_race(compared):
    """
    The killed writer's row is nowhere; the raced row keeps its older state for good.
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
    The number of a late commit is below those that were read before.
    """
    scenes = variants["trigger_by_number"]["scenes"]

    assert ["missing", "unseen"] == scenes["late"]
    assert ["missing", "unseen"] == scenes["overtaking"]
    assert [] == scenes["delete"] + scenes["race"] + scenes["crash"]


@pytest.mark.soak
def test_a_worker_that_waits_for_transactions_loses_the_order_only(variants):
    """
    Nothing is unseen, but the later change of a row is published first.
    """
    way = variants["trigger_by_transaction"]

    assert NOTHING | {"overtaking": ["disordered", "stale"]} == way["scenes"]
    assert 0 == way["check"]["unseen"]


@pytest.mark.soak
def test_an_overlap_finds_late_commits_and_repeats_records(variants):
    """
    Deletes and states in between stay unseen.
    """
    way = variants["query_overlap"]

    assert [] == way["scenes"]["late"] + way["scenes"]["crash"]
    assert ["ghost", "unseen"] == way["scenes"]["delete"]
    assert way["check"]["duplicates"] > 0


def test_every_way_has_the_same_changes_and_its_costs(compared):
    """
    Triggers write more of the log than the relay does; there is a lag of each way.
    """
    ways = {name: way for name, way in compared.items() if name != "none"}
    log_bytes = {name: way["cost"]["log_bytes"] for name, way in compared.items()}

    assert 1 == len({way["changes"] for way in ways.values()})
    assert all(way["lag"]["p50_ms"] <= way["lag"]["p99_ms"] for way in ways.values())
    assert all(way["cost"]["cpu_us"] > 0 for way in compared.values())
    assert log_bytes["trigger"] > log_bytes["relay"]
    assert {"changes", "check", "lag"}.isdisjoint(compared["none"])


@pytest.mark.soak
def test_a_relay_that_misses_changes_makes_the_comparison_fail(
    tmp_path: Path, monkeypatch
):
    """
    Exit code 1, and its column has the loss; nothing remains.
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


def test_a_writer_that_fails_ends_the_comparison_in_one_sentence():
    """
    The failure of its process is raised where it is awaited, with its reason.
    """
    setup = WriterSetup(
        dsn="postgresql://127.0.0.1:1/none",
        publisher=NoPublisher(),
        transactions=plan_load(100, 1, 100.0, 1).writers[-1][:1],
    )

    with pytest.raises(BenchError, match=r"a writer failed: .*refused"):
        kill_after_commit(setup)
