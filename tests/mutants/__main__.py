"""
``make mutants``: prove that each planted defect makes a test fail.

The runner is our own rather than mutmut, cosmic-ray or mutatest: these generate
thousands of defects with mutation operators, and measure the share of survivors. Here
the list is chosen by hand, each entry violates an invariant or a decision, and none may
survive. Running pytest in forks is enough for that.

Each defect is run against the tests that import its module, the nearest first. A test
that catches a defect must pass without it: at the end, all tests that caught one are
run once more.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from mutants import catalogue
from mutants.campaign import CAUGHT, Campaign, Result, failing

# Libraries that are slow to import; the project itself is imported in the forks.
_PRELOADED: Final = (
    "confluent_kafka", "fastavro", "flask", "opensearchpy", "prometheus_client",
    "psycopg", "pyarrow.compute", "pydantic", "pyiceberg.catalog", "pyspark.sql",
    "redis", "requests", "sqlalchemy", "structlog",
)  # fmt: skip
_COLUMNS: Final = (
    TextColumn("mutants"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[rate]}"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen defects and return an exit code."""
    options = _parser().parse_args(arguments)
    console = Console()
    chosen = [m for m in catalogue.load() if not options.ids or m.id in options.ids]
    chosen = [m for m in chosen if options.real or not m.real]
    unknown = set(options.ids) - {mutant.id for mutant in chosen}
    stale = [f"no mutant is named {name}, or it needs --real" for name in unknown]
    if stale := [*stale, *catalogue.stale(chosen)]:
        console.print("\n".join(stale), markup=False)
        return 2
    for name in _PRELOADED:
        importlib.import_module(name)
    results = _run(Campaign(chosen, options.workers), len(chosen), console)
    results = _proven(results)
    _print(results, console)
    return 0 if all(result.verdict == CAUGHT for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", help="names of defects; all by default")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        choices=range(1, 65),
        metavar="COUNT",
        help="number of concurrent forks",
    )
    parser.add_argument(
        "--real", action="store_true", help="include defects that need the local stack"
    )
    return parser


def _run(campaign: Campaign, total: int, console: Console) -> list[Result]:
    """Run all defects with a progress bar; print survivors immediately."""
    results: list[Result] = []
    with Progress(*_COLUMNS, console=console) as progress:
        task = progress.add_task("", total=total, rate="")
        began_s = time.monotonic()
        for result in campaign.results():
            results.append(result)
            rate = 60 * len(results) / (time.monotonic() - began_s)
            progress.update(task, advance=1, rate=f"{rate:.0f}/min")
            if result.verdict != CAUGHT:
                line = f"{result.mutant.id}: {result.verdict} {result.text}"
                console.print(line, markup=False, highlight=False)
    return results


def _proven(results: Sequence[Result]) -> list[Result]:
    """Replace ``CAUGHT`` in results whose test fails even without a defect."""
    found: set[str] = set()
    for is_real in (False, True):
        tests = [r.by for r in results if r.by and r.mutant.real == is_real]
        found |= failing(tests, is_real=is_real)
    return [
        r._replace(verdict="fails without it") if r.by in found else r for r in results
    ]


def _print(results: Sequence[Result], console: Console) -> None:
    table = Table("mutant", "breaks", "result", "by", "s")
    for result in results:
        mutant, verdict, by, seconds, _ = result
        style = "" if verdict == CAUGHT else "red"
        name = by.removeprefix("tests/").partition("[")[0]
        table.add_row(
            mutant.id, mutant.breaks, verdict, name, f"{seconds:.1f}", style=style
        )
    console.print(table)
    caught = sum(result.verdict == CAUGHT for result in results)
    console.print(f"{caught} of {len(results)} planted defects are caught")


if __name__ == "__main__":
    sys.exit(main())
