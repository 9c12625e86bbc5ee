"""
Writes the tables of ``metrics.md`` and ``monitoring.md``: metrics, and alerts.

``make docs`` runs this script. A table consists of the lines below a comment that names
it, ``<!-- metrics: relay -->`` or ``<!-- alerts -->``; the rest of the pages is written
by hand. Metrics come from the registry, alerts from the rules.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from towpath.schemas.telemetry import Metric, published

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "metrics.md"
ALERTS_PAGE: Final = DOCS / "monitoring.md"
RULES: Final = DOCS.parent / "deploy/monitoring/alerts.yaml"

# The tables of the page: each lists the metrics whose names start with these prefixes
# and that no earlier table lists.
PARTS: Final = {
    "slot": "towpath_relay_slot_",
    "relay": ("towpath_build_", "towpath_relay_"),
    "snapshots": "towpath_snapshot_",
    "sinks": "towpath_sink_",
    "inbox": "towpath_inbox_",
    "services": "towpath_service_",
}
_TABLE: Final = re.compile(r"(<!-- metrics: (\w+) -->\n\n)(?:\|.*\n)*")
_ALERTS: Final = re.compile(r"(<!-- alerts -->\n\n)(?:\|.*\n)*")


def part_of(metric: str) -> str:
    """Return the name of the table that lists a metric."""
    return next(part for part, start in PARTS.items() if metric.startswith(start))


def page_of(text: str, metrics: Iterable[Metric]) -> str:
    """Return the page with regenerated tables."""
    rows: dict[str, list[str]] = {part: [] for part in PARTS}
    for metric in metrics:
        rows[part_of(metric)].append(_row(metric))

    def table(match: re.Match[str]) -> str:
        lines = ("| metric | kind | means |", "|---|---|---|", *rows[match[2]])
        return match[1] + "\n".join(lines) + "\n"

    return _TABLE.sub(table, text)


def _row(metric: Metric) -> str:
    # Every metric of a sink or consumer is labeled with its name; pages say so once.
    labels = [label for label in metric.labels if label not in {"sink", "consumer"}]
    shown = "{" + ",".join(labels) + "}" if labels else ""
    return f"| `{metric}{shown}` | {metric.kind} | {metric.meaning} |"


def alerts_page_of(text: str, rules: str) -> str:
    """Return the page of alerts with a regenerated table."""
    groups = yaml.safe_load(rules)["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    head = ("| alert | severity | fires when | for |", "|---|---|---|---|")
    lines = (*head, *map(_alert_row, found))
    return _ALERTS.sub(lambda match: match[1] + "\n".join(lines) + "\n", text)


def _alert_row(rule: dict[str, Any]) -> str:
    name, page = rule["alert"], rule["annotations"]["runbook_url"]
    condition = " ".join(rule["expr"].split()).replace("|", "\\|")
    link = f"[{name}]({page.removeprefix('docs/')})"
    cells = (link, rule["labels"]["severity"], f"`{condition}`", rule.get("for", ""))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8"), published()), "utf-8")
    written = alerts_page_of(ALERTS_PAGE.read_text("utf-8"), RULES.read_text("utf-8"))
    ALERTS_PAGE.write_text(written, "utf-8")
