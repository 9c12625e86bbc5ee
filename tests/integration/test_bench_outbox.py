"""The outbox benchmark at small scale: verified figures, or none at all."""

import json
import os
from pathlib import Path

import pytest

from support.command import towpath

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

COMMAND = ("bench", "outbox", "--json", "--rounds", "1", "--duration", "1")
SMALL = (*COMMAND, "--warm-up", "0")

# ``sitecustomize`` of every Python process in the benchmark: one event in twenty is not
# written.
DEFECT = """
import itertools
import towpath.outbox.outbox as outbox

original, count = outbox.Outbox.record, itertools.count()

def record(self, session, event):
    if next(count) % 20 != 7:
        return original(self, session, event)

outbox.Outbox.record = record
"""


def test_every_system_is_measured_and_verified(tmp_path: Path):
    """
    The output is a JSON object with all systems' figures and ratios; no file remains.
    """
    with towpath(tmp_path, *SMALL) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors.decode()
    report = json.loads(output)
    case = report["cases"]["commits"]
    systems = case["systems"]

    assert ["delete", "keep", "message", "none", "sql"] == sorted(systems)
    assert all(one["commits_per_s"]["median"] > 0 for one in systems.values())
    assert all(value > 0 for value in case["ratios_to_none"].values())
    # A kept row takes space in the table; a message takes none.
    sizes = {n: systems[n]["table_bytes_per_event"]["median"] for n in ("keep", "sql")}
    message = systems["message"]["table_bytes_per_event"]["median"]
    assert min(sizes.values()) > 200 > message
    assert [] == list(tmp_path.iterdir())


@pytest.mark.soak
def test_a_lost_event_leaves_no_figure(tmp_path: Path, monkeypatch):
    """
    Missing events give exit code 1 and findings, but no figures.
    """
    (tmp_path / "defect").mkdir()
    (tmp_path / "defect" / "sitecustomize.py").write_text(DEFECT, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - a root
    path = os.pathsep.join(filter(None, (str(tmp_path / "defect"), inherited)))
    monkeypatch.setenv("PYTHONPATH", path)
    with towpath(tmp_path, *SMALL) as process:
        output, errors = process.communicate(timeout=100)
    assert output, errors.decode()
    report = json.loads(output)

    assert (1, False, {}) == (process.returncode, report["verified"], report["cases"])
    assert 3 == len(report["findings"])
    assert all(" lost" in finding for finding in report["findings"])
