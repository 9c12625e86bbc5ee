"""
The summary of several benchmarks: one line per comparison, as a table and a plot.

The documents are those that ``towpath bench <name> --json`` prints, by name. A document
of a benchmark that found a difference has no cases, and therefore no lines. This module
does no I/O.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from towpath.loadtests.bench.context import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    DRAINS,
    LIMIT,
    RECVLOGICAL,
    RELAY,
    SAME_HEADERS,
    STEADIES,
)
from towpath.loadtests.bench.sinks.result import BASELINE_OF
from towpath.loadtests.bench.snapshot.source import (
    COPY,
    DEBEZIUM_INITIAL,
    DEBEZIUM_READ_ONLY,
)
from towpath.loadtests.bench.sustained import UNITS

Document = Mapping[str, Any]

_NAMES: Final = {
    LIMIT: "the server's decoding alone",
    RECVLOGICAL: "pg_recvlogical",
    DEBEZIUM_TUNED: "Debezium tuned",
    DEBEZIUM_STOCK: "Debezium stock",
    DEBEZIUM_READ_ONLY: "Debezium read-only",
    DEBEZIUM_INITIAL: "Debezium's initial snapshot",
    COPY: "a bare COPY",
    "none": "the transaction without an event",
    "hset": "HSET without a guard",
    "bulk": "a bulk load without versions",
    "merge": "one MERGE from Parquet",
}
_GOAL: Final = "the goal"
_RATE_FORM: Final = "{:,.0f}"
_TIME_FORM: Final = "{:,.1f}"


class Line(NamedTuple):
    """
    One figure of the platform, and the figure that it is compared with.

    Attributes:
        measure: The figure with its unit.
        ours: The platform's figure.
        other: The name of the system or goal that it is compared with.
        theirs: The figure of that system or goal.
        is_time: Whether lower is better.
    """

    measure: str
    ours: float
    other: str
    theirs: float
    is_time: bool = False

    @property
    def ratio(self) -> float:
        """How many times as good ours is: ours / theirs, inverted for times."""
        return self.theirs / self.ours if self.is_time else self.ours / self.theirs

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the line in a table."""
        form = _TIME_FORM if self.is_time else _RATE_FORM
        ours, theirs = form.format(self.ours), form.format(self.theirs)
        return (self.measure, ours, self.other, theirs, f"{self.ratio:.2f}")


def lines(documents: Mapping[str, Document]) -> list[Line]:
    """Return the lines of all benchmarks, in the order of the documents."""
    return [
        line
        for name, document in documents.items()
        for line in _LINES[name](document.get("cases", {}))
        if line.ours and line.theirs
    ]


HEADER: Final = ("measure", "Towpath", "compared with", "its figure", "times as good")


def markdown(found: Sequence[Line]) -> str:
    """Return lines as a Markdown table."""
    rows = [HEADER, ("---",) * len(HEADER), *(line.cells() for line in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


_ROW_HEIGHT: Final = 18
_WIDTH: Final = 460
_LONGEST_LABEL: Final = 520
_COLORS: Final = ("#b3360b", "#2f6f8f")


def plot(found: Sequence[Line]) -> str:
    """Plot the ratio of each line as SVG; 1 means that both figures are equal."""
    import altair as alt  # noqa: PLC0415 - only a plot needs it
    import vl_convert  # noqa: PLC0415 - as above

    points = [
        {
            "line": f"{line.measure}, against {line.other}",
            "from": 1.0,
            "ratio": round(line.ratio, 2),
            "better": line.ratio >= 1,
        }
        for line in found
    ]
    names = [str(point["line"]) for point in points]
    base = alt.Chart(alt.Data(values=points)).encode(
        y=alt.Y(
            "line:N", sort=names, title=None, axis=alt.Axis(labelLimit=_LONGEST_LABEL)
        )
    )
    bars = base.mark_bar().encode(
        x=alt.X("ratio:Q", scale=alt.Scale(type="log"), title="times as good"),
        x2="from:Q",
        color=alt.Color(
            "better:N",
            scale=alt.Scale(domain=[False, True], range=_COLORS),
            legend=None,
        ),
    )
    numbers = base.mark_text(align="left", dx=4).encode(x="ratio:Q", text="ratio:Q")
    chart = (bars + numbers).properties(
        width=_WIDTH, height=_ROW_HEIGHT * max(1, len(points)), padding=12
    )
    svg: str = vl_convert.vegalite_to_svg(chart.to_json())
    return svg


def _relay_lines(cases: Document) -> Iterator[Line]:
    for name, case in cases.items():
        systems = case["systems"]
        is_drain = name in DRAINS
        figure = "events_per_s" if is_drain else "p99_ms"
        drain = "drain with the same headers" if name == SAME_HEADERS else "drain"
        title = (
            f"{drain}, rows per transaction: {DRAINS[name]}, events/s"
            if is_drain
            else f"{STEADIES[name]:,} transactions/s, commit to append p99 ms"
        )
        yield from _comparisons(title, systems, RELAY, figure, is_time=not is_drain)
        if is_drain:
            title = f"{title.removesuffix('events/s')}CPU us per event"
            yield from _comparisons(
                title, systems, RELAY, "cpu_us_per_event", is_time=True
            )


def _snapshot_lines(cases: Document) -> Iterator[Line]:
    for case in cases.values():
        for load, found in case["loads"].items():
            title = f"snapshot, {load}, rows/s"
            yield from _comparisons(title, found["systems"], RELAY, "rows_per_s")
        meanwhile, before = case["live_p99_ms"] or 0.0, case["idle_p99_ms"] or 0.0
        title = "snapshot, updates meanwhile, commit to append p99 ms"
        yield Line(title, meanwhile, "no snapshot", before, is_time=True)


def _outbox_lines(cases: Document) -> Iterator[Line]:
    for case in cases.values():
        systems = case["systems"]
        for way in ("keep", "delete", "message"):
            one = {way: systems[way], "none": systems["none"]} if way in systems else {}
            yield from _comparisons(
                f"outbox, {way}, commits/s", one, way, "commits_per_s"
            )


def _sink_lines(cases: Document) -> Iterator[Line]:
    systems = cases.get("catch_up", {}).get("systems", {})
    for sink, other in BASELINE_OF.items():
        if sink in systems and other in systems:
            ours, theirs = (systems[n]["rows_per_s"] for n in (sink, other))
            yield Line(f"{sink}, backlog, rows/s", ours, _NAMES[other], theirs)


def _checkout_lines(cases: Document) -> Iterator[Line]:
    for case in cases.values():
        for rate in case["rates"]:
            for sink, wanted_ms in case["wanted_ms"].items():
                title = f"{rate['rate_per_s']:g} {UNITS[case['name']]}, {sink}, p99 ms"
                ours = rate.get(f"{sink}_p99_ms") or 0.0
                yield Line(title, ours, _GOAL, wanted_ms, is_time=True)


def _comparisons(
    title: str, systems: Document, ours: str, figure: str, *, is_time: bool = False
) -> Iterator[Line]:
    """Yield a line for each other system that has the figure."""
    medians = {
        name: spreads[figure]["median"]
        for name, spreads in systems.items()
        if figure in spreads
    }
    for other, theirs in medians.items():
        if other != ours and ours in medians:
            name = _NAMES.get(other, other)
            yield Line(title, medians[ours], name, theirs, is_time)


_LINES: Final[Mapping[str, Callable[[Document], Iterator[Line]]]] = {
    "relay": _relay_lines,
    "snapshot": _snapshot_lines,
    "outbox": _outbox_lines,
    "sinks": _sink_lines,
    "checkout": _checkout_lines,
}
BENCHMARKS: Final = tuple(_LINES)
