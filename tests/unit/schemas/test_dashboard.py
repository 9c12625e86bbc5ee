"""The dashboard shows every existing metric, and no other."""

import json
import re
from pathlib import Path

from towpath.schemas import telemetry

DASHBOARD = json.loads(
    (Path(__file__).parents[3] / "docs/grafana.json").read_text(encoding="utf-8")
)
PUBLISHED = {
    name for name in vars(telemetry).values() if str(name).startswith("towpath_")
}
PARTS_OF_HISTOGRAMS = re.compile(r"(_seconds)_(?:bucket|sum|count)$")


def shown() -> set[str]:
    """List the metrics that the panels ask for."""
    targets = [t for panel in DASHBOARD["panels"] for t in panel.get("targets", ())]
    names = re.findall(r"towpath_\w+", " ".join(target["expr"] for target in targets))
    return {PARTS_OF_HISTOGRAMS.sub(r"\1", name) for name in names}


def test_every_metric_of_the_dashboard_exists():
    """
    A panel of an unknown metric would be empty for ever.
    """
    assert set() == shown() - PUBLISHED


def test_the_dashboard_shows_every_metric_of_sinks():
    """
    But for the count of batches, which their histogram has too.
    """
    of_sinks = {name for name in PUBLISHED if name.startswith("towpath_sink_")}

    assert {telemetry.SINK_BATCHES} == of_sinks - shown()


def test_the_panels_do_not_overlap():
    """
    Each has an id of its own, a title, and a place on a grid of 24 columns.
    """
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert (
        len(panels)
        == len({p["id"] for p in panels})
        == len({p["title"] for p in panels})
    )
