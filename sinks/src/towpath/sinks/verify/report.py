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
from towpath.sinks.verify.repair import Left

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
        source_rows: Rows of the source that were compared.
        sink_rows: Live rows of the sink; of a sample, those that were picked there.
        tombstones: Deleted rows that the sink remembers.
        differences: How many there are.
        restless: Keys that changed whenever they were looked at: neither equal nor not.
        repaired: Keys that differed, and are equal since they were asked for.
        left: Keys that were to be repaired and differ yet, by why they do.
        first: The first differences.
        error: Why the route could not be compared to its end, if it could not.
    """

    route: str
    table: str
    source_rows: int = 0
    sink_rows: int = 0
    tombstones: int = 0
    differences: int = 0
    first: tuple[Difference, ...] = ()
    restless: int = 0
    repaired: int = 0
    left: tuple[Left, ...] = ()
    elapsed_s: float = 0.0
    error: str | None = None


def verdict_of(routes: Sequence[RouteReport]) -> Verdict:
    """Sum up."""
    if any(route.differences for route in routes):
        return Verdict.DIFFERENT
    if any(route.error or route.restless for route in routes):
        return Verdict.UNVERIFIED
    return Verdict.EQUAL


def worse(one: Verdict, other: Verdict) -> Verdict:
    """Return the worse of two."""
    return max(one, other, key=_WORST_LAST.index)


def as_json(sink: str, routes: Sequence[RouteReport], *, is_line: bool = False) -> str:
    """Write the reports as one JSON document, perhaps on one line."""
    document = {
        "sink": sink,
        "result": verdict_of(routes),
        "differences": sum(route.differences for route in routes),
        "routes": [
            asdict(route)
            | {"first": [d._asdict() for d in route.first]}
            | {"left": [left._asdict() for left in route.left]}
            for route in routes
        ],
    }
    option = 0 if is_line else orjson.OPT_INDENT_2
    return orjson.dumps(document, option=option).decode()


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
    lines += [
        f"{r.route} {r.repaired:,} keys were asked for and are equal now"
        for r in routes
        if r.repaired
    ]
    lines += [
        f"{r.route} {left.keys:,} keys are not repaired: {left.reason}"
        for r in routes
        for left in r.left
    ]
    lines += [
        f"{r.route} {r.restless:,} keys changed whenever they were looked at"
        for r in routes
        if r.restless
    ]
    lines += [f"{r.route} could not be compared: {r.error}" for r in routes if r.error]
    lines.append(_SUMS[verdict_of(routes)].format(sink=sink, count=f"{total:,}"))
    return lines


_WORST_LAST = (Verdict.EQUAL, Verdict.UNVERIFIED, Verdict.DIFFERENT)

_SUMS = {
    Verdict.EQUAL: "{sink} equals the source, every key and column",
    Verdict.DIFFERENT: "{sink} differs from the source: {count} differences",
    Verdict.UNVERIFIED: "{sink} could not be verified",
}
