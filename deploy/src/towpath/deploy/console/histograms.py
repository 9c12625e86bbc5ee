"""
Histograms of sinks, read from the metrics of their drivers and drawn as bars.

Only drivers whose ports are in ``[sinks] metrics_ports`` are read: the port of any
other driver is only in its log. The histograms count from the driver's start.
"""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from towpath.schemas import telemetry
from towpath.settings import Settings

# The drivers are on this machine or near it, and a page waits for their metrics.
_ANSWERED_WITHIN_S: Final = 1.0
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound here
_MOST: Final = 0.95
# The histograms that are drawn: metric, stage if it has stages, and title.
_DRAWN: Final = (
    (telemetry.SINK_BATCH_SECONDS, "batch", "Batch duration"),
    ("towpath_sink_commit_to_applied_seconds", None, "Time from commit to applied"),
)


class HistogramBar(NamedTuple):
    """One bucket: its bound, its count, and its percentage of the largest count."""

    text: str
    values: int
    share: int


class SinkHistogram(NamedTuple):
    """
    A histogram of one sink.

    Attributes:
        sink: The sink.
        title: The quantity that was measured.
        values: The number of values.
        most_s: The bound that 95 % of the values do not exceed; None if it is unknown.
        bars: The buckets, without empty ones at both ends.
    """

    sink: str
    title: str
    values: int
    most_s: float | None
    bars: Sequence[HistogramBar]


class _Bucket(NamedTuple):
    """A bucket: its upper bound, and the number of values that do not exceed it."""

    bound_s: float
    cumulative: int


def read_histograms(settings: Settings) -> list[SinkHistogram]:
    """Return the histograms of all sinks whose drivers answer."""
    known = {sink.driver for sink in settings.sink}
    host = settings.sinks.metrics_host
    return [
        histogram
        for driver, port in settings.sinks.metrics_ports.items()
        if driver in known
        for histogram in histograms_of(_page(_ANY_ADDRESS.get(host, host), port))
    ]


def _page(host: str, port: int) -> str:
    """Return the metrics of a driver; empty if it does not answer."""
    connection = HTTPConnection(host, port, timeout=_ANSWERED_WITHIN_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        page = response.read().decode("utf-8", "replace")
    except (OSError, HTTPException):
        # The status of the driver's sinks shows that the driver is not running.
        return ""
    finally:
        connection.close()
    return page if response.status == HTTPStatus.OK else ""


def histograms_of(page: str) -> Iterator[SinkHistogram]:
    """
    Yield the drawn histograms of a page of metrics, metric by metric.

    The page of another program, which may be listening on the port, has none.
    """
    try:
        families = {each.name: each for each in text_string_to_metric_families(page)}
    except (ValueError, IndexError):
        return
    for name, stage, title in _DRAWN:
        if name in families:
            yield from _histograms(families[name], stage, title)


def _histograms(
    family: Metric, stage: str | None, title: str
) -> Iterator[SinkHistogram]:
    buckets: dict[str, list[_Bucket]] = {}
    for sample in family.samples:
        labels = sample.labels
        is_drawn = labels.get("stage") == stage and {"le", "sink"} <= labels.keys()
        if sample.name.endswith("_bucket") and is_drawn:
            bucket = _Bucket(float(labels["le"]), int(sample.value))
            buckets.setdefault(labels["sink"], []).append(bucket)
    for sink, found in buckets.items():
        found.sort()
        if count := found[-1].cumulative:
            most_s = next(b.bound_s for b in found if b.cumulative >= _MOST * count)
            is_known = most_s != float("inf")
            bars = _bars(found)
            yield SinkHistogram(sink, title, count, most_s if is_known else None, bars)


def _bars(buckets: Sequence[_Bucket]) -> list[HistogramBar]:
    """Return a bar for each bucket, without empty ones at both ends."""
    below = [0, *(bucket.cumulative for bucket in buckets)]
    counts = [upper - lower for lower, upper in pairwise(below)]
    used = [number for number, count in enumerate(counts) if count]
    largest = max(counts)
    return [
        HistogramBar(
            _bound_text(buckets, number),
            counts[number],
            round(100 * counts[number] / largest),
        )
        for number in range(used[0], used[-1] + 1)
    ]


def _bound_text(buckets: Sequence[_Bucket], number: int) -> str:
    bound_s = buckets[number].bound_s
    if bound_s == float("inf"):
        return f"above {_time_text(buckets[number - 1].bound_s)}"
    return f"up to {_time_text(bound_s)}"


def _time_text(time_s: float) -> str:
    """Return the bound of a bucket as text, without rounding."""
    return f"{time_s * 1000:g} ms" if time_s < 1 else f"{time_s:g} s"
