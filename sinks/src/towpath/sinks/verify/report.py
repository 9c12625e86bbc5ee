"""
What a verification found, for people and for scripts.

Every difference is counted; the first of them are shown with both values. A route that
could not be compared says why, beside what the others showed.
"""

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson
from rich.console import Console
from rich.table import Table

from towpath.sinks.verify.compare import Difference

FIRST_SHOWN = 20


class Verdict(enum.StrEnum):
    """What a verification comes to; a difference weighs more than a gap."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class RouteReport:
    """
    What became of one route.

    Attributes:
        table: The source's table, with its schema.
        source_rows: Rows compared.
        sink_rows: Live rows of the sink.
        tombstones: Deleted rows that the sink remembers.
        differences: How many there are.
        first: The first of them.
        error: Why the route could not be compared to its end, if it could not.
    """

    route: str
    table: str
    source_rows: int = 0
    sink_rows: int = 0
    tombstones: int = 0
    differences: int = 0
    first: tuple[Difference, ...] = ()
    error: str | None = None


def verdict_of(routes: Sequence[RouteReport]) -> Verdict:
    """Sum up."""
    if any(route.differences for route in routes):
        return Verdict.DIFFERENT
    if any(route.error for route in routes):
        return Verdict.UNVERIFIED
    return Verdict.EQUAL


def as_json(sink: str, routes: Sequence[RouteReport]) -> str:
    """Write the reports as one JSON document."""
    document = {
        "sink": sink,
        "result": verdict_of(routes),
        "differences": sum(route.differences for route in routes),
        "routes": [
            asdict(route) | {"first": [d._asdict() for d in route.first]}
            for route in routes
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def show(console: Console, sink: str, routes: Sequence[RouteReport]) -> None:
    """Print a table of the routes, then the first differences, one a line."""
    table = Table("route", title=f"{sink} against the source", title_justify="left")
    for heading in ("source rows", "sink rows", "tombstones", "differences"):
        table.add_column(heading, justify="right")
    for route in routes:
        counts = (
            *(route.source_rows, route.sink_rows, route.tombstones),
            route.differences,
        )
        table.add_row(route.route, *(f"{count:,}" for count in counts))
    console.print(table)
    for line in _lines(sink, routes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(sink: str, routes: Sequence[RouteReport]) -> list[str]:
    told = [(route, difference) for route in routes for difference in route.first]
    lines = [f"{route.route} {difference}" for route, difference in told[:FIRST_SHOWN]]
    total = sum(route.differences for route in routes)
    if total > len(lines):
        lines.append(f"... and {total - len(lines):,} more")
    lines += [f"{r.route} could not be compared: {r.error}" for r in routes if r.error]
    lines.append(_SUMS[verdict_of(routes)].format(sink=sink, count=f"{total:,}"))
    return lines


_SUMS = {
    Verdict.EQUAL: "{sink} equals the source, every key and column",
    Verdict.DIFFERENT: "{sink} differs from the source: {count} differences",
    Verdict.UNVERIFIED: "{sink} could not be verified",
}
