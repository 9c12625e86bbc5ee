"""The dashboards: generated files, existing metrics, and panels without overlaps."""

import json
import re
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.pages import imported_program
from support.prometheus import MONITORING
from towpath.schemas.telemetry import Metric, published

# Values that mean nothing on a panel: a counter of one process, and a transaction's id.
NOT_SHOWN = {
    "towpath_relay_heartbeat_counter",
    "towpath_relay_last_transaction_xid",
}
SAMPLES = re.compile(r"(_seconds)_(?:bucket|sum|count)$")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """Import the program that writes the files."""
    return imported_program(MONITORING / "dashboards.py")


@pytest.fixture(scope="module")
def documents(program: ModuleType) -> dict[str, Any]:
    """Read the files."""
    paths = sorted(Path(program.FOLDER).glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


def shown(documents: dict[str, Any]) -> set[str]:
    """List the metrics that the panels query."""
    targets = [t for d in documents.values() for p in d["panels"] for t in p["targets"]]
    names = re.findall(r"towpath_\w+", " ".join(target["expr"] for target in targets))
    return {SAMPLES.sub(r"\1", name) for name in names}


def overlaps(panel: dict[str, int], other: dict[str, int]) -> bool:
    """Return whether two rectangles on the grid share a cell."""
    return all(
        panel[at] < other[at] + other[size] and other[at] < panel[at] + panel[size]
        for at, size in (("x", "w"), ("y", "h"))
    )


def test_the_files_are_those_of_the_program(
    program: ModuleType, documents: dict[str, Any]
):
    """
    After a change to a table, the files must be generated again with make docs.
    """
    assert sorted(documents) == sorted(program.DASHBOARDS)
    for name in documents:
        path = Path(program.FOLDER, f"{name}.json")
        assert path.read_text(encoding="utf-8") == program.text_of(name)


def test_every_metric_is_shown_and_every_shown_metric_exists(
    documents: dict[str, Any],
):
    """
    A panel for an unknown metric would always be empty.
    """
    names: set[str | Metric] = set(published())

    assert shown(documents) == names - NOT_SHOWN


def test_panels_have_titles_of_their_own_and_do_not_overlap(documents: dict[str, Any]):
    """
    Each title is unique in its dashboard, and the grid has 24 columns.
    """
    for document in documents.values():
        panels = document["panels"]
        positions = [panel["gridPos"] for panel in panels]

        assert len({panel["title"] for panel in panels}) == len(panels)
        assert max(at["x"] + at["w"] for at in positions) <= 24
        assert not any(overlaps(*pair) for pair in combinations(positions, 2))


def test_identifiers_of_dashboards_differ(documents: dict[str, Any]):
    """
    Grafana replaces a dashboard with a newer one that has the same identifier.
    """
    identifiers = {document["uid"] for document in documents.values()}

    assert len(identifiers) == len(documents) == 6
