"""
``make house``: every measure of the source, with its earlier value and its goal.

``--json`` prints the same as JSON, ``--paths`` prints the main paths call by call, and
``--lower`` lowers the ceilings of ``measures.toml``, which a test enforces.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from house import paths
from house.hops import drawing, hops_of
from house.measures import TABLE, Measure, measures, values, with_ceilings
from support.last_run import last_run

_WALKS = (
    paths.outbox_row,
    paths.table_row,
    paths.acknowledgement,
    paths.idle_turn,
    paths.cache_record,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the chosen output and return an exit code."""
    parser = argparse.ArgumentParser(prog="make house", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--paths", action="store_true", help="draw the main paths")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings")
    options = parser.parse_args(arguments)
    text = TABLE.read_text(encoding="utf-8")
    console = Console()
    if options.paths:
        for walk in _WALKS:
            calls = walk()
            title = f"{walk.__name__}: {hops_of(calls)}\n{drawing(calls)}\n"
            console.print(title, markup=False, highlight=False, soft_wrap=True)
    elif options.json:
        console.print_json(json.dumps(rows(measures(text), values())))
    else:
        console.print(table_of(rows(measures(text), values())))
    if options.lower:
        TABLE.write_text(with_ceilings(text, values()), encoding="utf-8")
    return 0


def rows(
    lines: Sequence[Measure], found: Mapping[str, float | None]
) -> list[dict[str, object]]:
    """Join the measures with their current values."""
    return [
        {
            "name": line.name,
            "title": line.title,
            "before": line.before,
            "now": found[line.name],
            "goal": line.goal,
            "ceiling": line.ceiling,
            "reached": line.is_reached(found[line.name]),
        }
        for line in lines
    ]


def table_of(lines: Sequence[Mapping[str, object]]) -> Table:
    """Return the table for a terminal."""
    table = Table("measure")
    for name in ("before", "now", "goal"):
        table.add_column(name, justify="right")
    table.add_column("reached")
    answers = {True: "yes", False: "no", None: ""}
    styles = {True: "green", False: "yellow", None: ""}
    for line in lines:
        reached = line["reached"]
        goal = "" if line["goal"] is None else str(line["goal"])
        now = _now(line)
        row = (str(line["title"]), str(line["before"]), now, goal, answers[reached])
        table.add_row(*row, style=styles[reached])
    return table


def _now(line: Mapping[str, object]) -> str:
    if line["name"] != "test_minutes":
        return str(line["now"])
    run = last_run()
    return "not run here" if run is None else f"{line['now']} ({run.outcome})"


if __name__ == "__main__":
    sys.exit(main())
