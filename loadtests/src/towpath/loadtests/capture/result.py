"""
The result of a comparison: one JSON document, a table, and a plot of the document.

::

    {"seed": 1, "transactions": 2000, "rate_per_s": 400.0, "interval_s": 0.1,
     "equal": true, "machine": {...},
     "ways": {"trigger": {"changes": ..., "check": {"missing": 0, ...},
                          "scenes": {"delete": [], "late": [], ...},
                          "cost": {"transaction": {"p50_ms": ..., "p99_ms": ...},
                                   "log_bytes": ..., "cpu_us": ...},
                          "lag": {"p50_ms": ..., "p99_ms": ...}}, ...}}

Costs are per committed transaction of the load, and include everything that the server
did meanwhile. ``equal`` concerns the relay alone: the other methods are expected to
lose changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from towpath.loadtests.capture.check import CaptureCheck
from towpath.loadtests.load.samples import Latency

Document = Mapping[str, Any]

_DIGITS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCost:
    """
    The cost of the load, per committed transaction.

    Attributes:
        transaction: The time from the start of a transaction until its writer
            continues; transactions that were held open or rolled back do not count.
        log_bytes: Bytes of the write-ahead log.
        cpu_us: CPU time of all the server's processes, in microseconds.
    """

    transaction: Latency
    log_bytes: float
    cpu_us: float

    def as_json(self) -> dict[str, Any]:
        """Return the cost as a JSON object."""
        return {
            "transaction": _latency(self.transaction),
            "log_bytes": round(self.log_bytes),
            "cpu_us": round(self.cpu_us),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """
    The result of one method; without capture it has only a cost.

    Attributes:
        cost: The cost of the load.
        changes: Committed changes, including those of the scenarios.
        check: The counts of everything that is wrong.
        scenarios: The kinds of loss at the keys of each scenario.
        lag: The time from a change's commit to its first append, for the load alone.
    """

    cost: MethodCost
    changes: int = 0
    check: CaptureCheck | None = None
    scenarios: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lag: Latency | None = None

    def line(self) -> str:
        """Return the counts above zero in one line."""
        if self.check is None:
            return "no capture"
        wrong = (f"{n:,} {name}" for name, n in self.check.counts().items() if n)
        return ", ".join(wrong) or f"{self.changes:,} changes, each once and in order"

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        found: dict[str, Any] = {"cost": self.cost.as_json()}
        if self.check is not None and self.lag is not None:
            found |= {
                "changes": self.changes,
                "check": self.check.counts(),
                "scenes": {name: list(wrong) for name, wrong in self.scenarios.items()},
                "lag": _latency(self.lag),
            }
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """
    The result of a comparison.

    Attributes:
        seed: The seed of the load.
        transactions: The transactions of the load of each method.
        rate_per_s: Transactions per second of all writers together.
        interval_s: The pause of a polling worker between two polls.
        machine: The machine on which the comparison ran.
        methods: The result of each method, by name.
        judged: The method whose check decides whether the result is verified.
    """

    seed: int
    transactions: int
    rate_per_s: float
    interval_s: float
    machine: Mapping[str, object]
    methods: Mapping[str, MethodResult]
    judged: str

    @property
    def verified(self) -> bool:
        """Whether the judged method captured each change once and in order."""
        check = self.methods[self.judged].check
        return check is not None and check.is_clean

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        return {
            "seed": self.seed,
            "transactions": self.transactions,
            "rate_per_s": self.rate_per_s,
            "interval_s": self.interval_s,
            "equal": self.verified,
            "machine": dict(self.machine),
            "ways": {name: one.as_json() for name, one in self.methods.items()},
        }


def _latency(latency: Latency) -> dict[str, float | None]:
    return {"p50_ms": latency.p50_ms, "p99_ms": latency.p99_ms}


_COUNTS: Final = {
    "missing": "keys missing",
    "ghosts": "deleted keys still there",
    "stale": "keys with an older row",
    "wrong_by_version": "keys wrong, by version",
    "unseen": "changes never seen",
    "unseen_deletes": "  deletes among them",
    "unseen_late": "  late commits among them",
    "disordered": "changes out of order",
    "duplicates": "duplicate records",
    "unknown": "records without a commit",
}
_SCENARIOS: Final = {
    "delete": "a row deleted later",
    "late": "a late commit",
    "race": "two writers of a row",
    "overtaking": "updates during an open transaction",
    "crash": "a writer killed",
}


def draw(result: CaptureResult) -> RenderableType:
    """Draw a table with one column per method, and the verdict on the judged one."""
    document = result.as_json()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{result.transactions:,} transactions", no_wrap=True)
    for name in document["ways"]:
        table.add_column(_shown(name), justify="right")
    for title, cells in table_rows(document):
        table.add_row(title, *cells)
    verdict = (
        f"{result.judged}: every change once and in order; the final rows are equal"
        if result.verified
        else f"{result.judged}: {result.methods[result.judged].line()}"
    )
    style = "green" if result.verified else "bold red"
    host = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    return Group(table, Text(), Text(verdict, style), Text(host, "dim"))


def table_rows(document: Document) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the cells of each line of the table."""
    ways = list(document["ways"].values())
    yield "changes", [f"{way['changes']:,}" if "check" in way else "-" for way in ways]
    for name, title in _COUNTS.items():
        counts = (way["check"][name] if "check" in way else None for way in ways)
        yield title, ["-" if count is None else f"{count:,}" for count in counts]
    for name, title in _SCENARIOS.items():
        yield title, [_scenario(way, name) for way in ways]
    costs = [way["cost"] for way in ways]
    yield "transaction p50 / p99 ms", [_percentiles(c["transaction"]) for c in costs]
    yield "log B/transaction", [f"{cost['log_bytes']:,}" for cost in costs]
    yield "server CPU us/transaction", [f"{cost['cpu_us']:,}" for cost in costs]
    lags = (way.get("lag") for way in ways)
    yield "commit to Kafka p50 / p99 ms", [_percentiles(lag) for lag in lags]


def _scenario(way: Document, name: str) -> str:
    if "scenes" not in way:
        return "-"
    return ", ".join(way["scenes"][name]) or "captured"


def _percentiles(latency: Document | None) -> str:
    if latency is None or latency["p50_ms"] is None:
        return "-"
    return f"{latency['p50_ms']:,.{_DIGITS}f} / {latency['p99_ms']:,.{_DIGITS}f}"


# Panels have fixed margins, so that the fonts of a machine do not shift them.
_CELL: Final = 44
_HEIGHT: Final = 240
_LOSS_MARGIN: Final = 110
_SPAN_MARGIN: Final = 60
_NAMES_MARGIN: Final = 110
_GAP: Final = 30
# The kinds of loss that the plot shows.
_LOSSES: Final = ("missing", "ghosts", "stale", "unseen", "disordered", "duplicates")
_SHADES: Final = (0, 10_000)
_COLORS: Final = ("#ffffff", "#b3360b")
# Above this count, the number in a cell is white.
_MAX_DARK_TEXT_COUNT: Final = 300


def plot(document: Document) -> str:
    """
    Plot a comparison as SVG: losses, the writers' transactions, and lags.

    Args:
        document: The JSON document of a result.
    """
    import altair as alt  # noqa: PLC0415 - only a plot needs it
    import vl_convert  # noqa: PLC0415 - as above

    panels = (
        _losses_panel(document),
        _spans_panel(document, "transaction", "a transaction, ms (p50 to p99)"),
        _spans_panel(document, "lag", "commit to Kafka, ms (p50 to p99)"),
    )
    chart = (
        alt.hconcat(*panels, bounds="flush", spacing=_SPAN_MARGIN + _GAP)
        .resolve_scale(color="independent")
        .configure_view(stroke=None)
        .properties(padding=12)
    )
    svg: str = vl_convert.vegalite_to_svg(chart.to_json())
    return svg


def _losses_panel(document: Document) -> Any:  # noqa: ANN401 - a chart of any kind
    """Return a panel with the count of each kind of loss, for each method."""
    import altair as alt  # noqa: PLC0415 - only a plot needs it

    points = [
        {"way": _shown(name), "kind": kind, "count": way["check"][kind]}
        for name, way in document["ways"].items()
        if "check" in way
        for kind in _LOSSES
    ]
    base = alt.Chart(alt.Data(values=points)).encode(
        x=_names_axis([name for name, way in document["ways"].items() if "lag" in way]),
        y=alt.Y(
            "kind:N",
            sort=list(_LOSSES),
            title=None,
            axis=alt.Axis(minExtent=_LOSS_MARGIN, maxExtent=_LOSS_MARGIN),
        ),
    )
    scale = alt.Scale(
        type="symlog",
        domain=list(_SHADES),
        range=list(_COLORS),
        clamp=True,
        interpolate="rgb",
    )
    shade = alt.Color("count:Q", scale=scale, legend=None)
    is_dark = alt.datum.count > _MAX_DARK_TEXT_COUNT
    color = alt.condition(is_dark, alt.value("white"), alt.value("black"))
    numbers = base.mark_text(fontSize=11).encode(
        text=alt.Text("count:Q", format=","), color=color
    )
    cells = base.mark_rect(stroke="#dddddd").encode(color=shade)
    return (cells + numbers).properties(
        width=alt.Step(_CELL), height=_HEIGHT, title="losses"
    )


def _spans_panel(document: Document, figure: str, title: str) -> Any:  # noqa: ANN401 - as above
    """Return a panel with a line from p50 to p99 for each method."""
    import altair as alt  # noqa: PLC0415 - only a plot needs it

    found = {
        name: way["cost"].get(figure) or way.get(figure)
        for name, way in document["ways"].items()
    }
    spans = {name: one for name, one in found.items() if one and one["p50_ms"]}
    points = [{"way": _shown(name), **one} for name, one in spans.items()]
    axis = alt.Axis(minExtent=_SPAN_MARGIN, maxExtent=_SPAN_MARGIN, tickCount=5)
    y = alt.Y("p50_ms:Q", title=None, scale=alt.Scale(type="log"), axis=axis)
    base = alt.Chart(alt.Data(values=points)).encode(x=_names_axis(list(spans)), y=y)
    lines = base.mark_rule(strokeWidth=6, color="#8fb3d9").encode(y2="p99_ms:Q")
    medians = base.mark_point(filled=True, opacity=1, size=80, color="#1f5fa8")
    return (lines + medians).properties(
        width=alt.Step(_CELL), height=_HEIGHT, title=title
    )


def _names_axis(names: list[str]) -> Any:  # noqa: ANN401 - a channel of any kind
    import altair as alt  # noqa: PLC0415 - only a plot needs it

    axis = alt.Axis(labelAngle=-40, minExtent=_NAMES_MARGIN, maxExtent=_NAMES_MARGIN)
    return alt.X("way:N", sort=list(map(_shown, names)), title=None, axis=axis)


def _shown(name: str) -> str:
    return name.replace("_", " ")
