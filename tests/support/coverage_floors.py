"""
``make coverage``: branch coverage of each member, compared with its floor.

The floors are in ``pyproject.toml`` under ``[tool.towpath.coverage]``: the percentage
of lines and branches that the unit and property tests run. Code that needs real servers
is not covered by these tests, so the floors of members with much I/O are lower.
"""

import json
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coverage import Coverage
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[2]


def percent_by_member(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the percentage of lines and branches that ran, by member."""
    covered: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name, file in report["files"].items():
        member = Path(name).parts[0]
        summary = file["summary"]
        covered[member] += summary["covered_lines"] + summary["covered_branches"]
        total[member] += summary["num_statements"] + summary["num_branches"]
    return {member: 100 * covered[member] / total[member] for member in total}


def below(found: Mapping[str, float], floors: Mapping[str, float]) -> list[str]:
    """List the members below their floors, and those without a figure."""
    return [name for name, floor in floors.items() if found.get(name, 0.0) < floor]


def main() -> int:
    """Print the coverage of the last measured run, and return an exit code."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    floors = settings["tool"]["towpath"]["coverage"]
    measured = Coverage()
    measured.load()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        measured.json_report(outfile=file.name)
        found = percent_by_member(json.loads(Path(file.name).read_text("utf-8")))
    missed = below(found, floors)
    table = Table("member", "covered", "floor")
    for name, floor in floors.items():
        style = "red" if name in missed else ""
        row = (name, f"{found.get(name, 0.0):.1f} %", f"{floor} %")
        table.add_row(*row, style=style)
    Console().print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
