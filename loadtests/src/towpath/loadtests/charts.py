"""
Plots of a run as SVG: rate, latency, and each sink's lag, over time.

The library is loaded when a report is written, and at no other time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from towpath.loadtests.series import Step

Points = Sequence[Mapping[str, Any]]

_WIDTH: Final = 720
_HEIGHT: Final = 260
_SECOND_MS: Final = 1000


def rate(steps: Iterable[Step]) -> str:
    """Plot requests a second, a line for each kind."""
    points = [{"s": one.at_s, "value": one.per_s, "line": one.row[0]} for one in steps]
    return _lines(points, "requests/s", "request")


def latency(steps: Iterable[Step], name: str) -> str:
    """Plot the percentiles of one kind of request."""
    points = [
        {"s": one.at_s, "value": value, "line": line}
        for one in steps
        if one.row[0] == name
        for line, value in (
            ("p50", one.p50_ms),
            ("p95", one.p95_ms),
            ("p99", one.p99_ms),
        )
        if value is not None
    ]
    return _lines(points, f"{name}, ms", "percentile")


def lag(points: Iterable[tuple[float, str, str, float]]) -> str:
    """Plot lags (seconds, sink, percentile, milliseconds) on a logarithmic scale."""
    found = [
        {"s": at_s, "value": lag_ms / _SECOND_MS, "line": sink, "share": share}
        for at_s, sink, share, lag_ms in points
    ]
    return _lines(found, "commit to read, s", "sink", is_logarithmic=True)


def _lines(
    points: Points, title: str, legend: str, *, is_logarithmic: bool = False
) -> str:
    import altair as alt  # noqa: PLC0415 - only a report needs it
    import vl_convert  # noqa: PLC0415 - as above

    scale = alt.Scale(type="log") if is_logarithmic else alt.Scale(zero=True)
    encodings = {
        "x": alt.X("s:Q", title="seconds since the start"),
        "y": alt.Y("value:Q", title=title, scale=scale),
        "color": alt.Color("line:N", title=legend),
    }
    if any("share" in point for point in points):
        encodings["strokeDash"] = alt.StrokeDash("share:N", title="percentile")
    chart = (
        alt.Chart(alt.Data(values=list(points)))
        .mark_line(interpolate="monotone")
        .encode(**encodings)
        .properties(width=_WIDTH, height=_HEIGHT)
    )
    svg: str = vl_convert.vegalite_to_svg(chart.to_json())
    return svg
