"""
Metrics of sinks in Prometheus's format; ``docs/metrics.md`` describes each.

Counters come from the progress files and continue across restarts, except that of
unpublished records. Labels are the declared sinks, their states, the stages of a batch
and the steps of a trigger: all bounded by the configuration, this code and the engine.
An unknown value is left out, never reported as zero.

The metrics port is served by a separate thread, so that a request never delays a
batch. It is open only to this host unless the configuration says otherwise, because it
has no login.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from towpath.schemas import telemetry
from towpath.schemas.page_server import PageServer
from towpath.schemas.position import parse_position
from towpath.sinks.errors import MetricsPortError
from towpath.sinks.state.lag import Alarm, Lag
from towpath.sinks.state.progress import Progress, State
from towpath.sinks.state.published import PublishedVerification

# From a cache's fast batch to a warehouse's slow one.
_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# From a cache within its trigger to a warehouse beyond its budget of an hour.
_LATENCY_BUCKETS_S: Final = (
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    *(30, 60, 300, 900, 3600, 7200),
)
_MS_PER_S: Final = 1000

_COUNTERS: Final[Mapping[telemetry.Metric, Callable[[Progress], int]]] = (
    MappingProxyType(
        {
            telemetry.SINK_BATCHES: lambda p: p.batches,
            telemetry.SINK_RECORDS: lambda p: p.records,
            telemetry.SINK_ROWS: lambda p: p.rows,
            telemetry.SINK_STALE: lambda p: p.stale,
            telemetry.SINK_TOMBSTONES: lambda p: p.tombstones,
            telemetry.SINK_DEAD_LETTERS: lambda p: p.dead_letters,
            telemetry.SINK_SKIPPED: lambda p: p.skipped,
            telemetry.SINK_LEFT: lambda p: p.left,
            telemetry.SINK_REFETCHED: lambda p: p.asked,
            telemetry.SINK_NULLED: lambda p: p.nulled,
            telemetry.SINK_RETRIES: lambda p: p.retries,
        }
    )
)


@dataclass(slots=True)
class WatchedSink:
    """
    The published state of one sink; written by its own threads, read by requests.

    Attributes:
        progress: Returns the current progress.
        alarm: The budget of its lag, and whether the lag is too high.
        unpublished: Returns how many records of its progress were not published.
        verification: Returns the result of its last verification, if it has one.
        folder: The folder of its state.
        lag: The last known lag; ``None`` while it is unknown.
    """

    progress: Callable[[], Progress]
    alarm: Alarm
    unpublished: Callable[[], int] = lambda: 0
    verification: Callable[[], PublishedVerification | None] = lambda: None
    folder: Path | None = None
    lag: Lag | None = None


@dataclass(slots=True)
class SinkMetrics:
    """
    The metrics of one driver's sinks.

    Attributes:
        published: Returns when the newest progress of each sink was published,
            including the sinks that other drivers run.
    """

    published: Callable[[], Mapping[str, datetime]] = dict
    sinks: dict[str, WatchedSink] = field(default_factory=dict)
    _registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _batch: Histogram = field(init=False)
    _engine: Histogram = field(init=False)
    _latency: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self._registry.register(_SinksCollector(self.sinks, self.published))
        self._batch = self._histogram(telemetry.SINK_BATCH_SECONDS)
        self._engine = self._histogram(telemetry.SINK_ENGINE_SECONDS)
        self._latency = self._histogram(telemetry.SINK_LATENCY, _LATENCY_BUCKETS_S)

    def batch(self, sink: str, stages_ms: Mapping[str, float]) -> None:
        """Record the durations of a batch's stages."""
        _observe(self._batch, sink, stages_ms)

    def engine(self, sink: str, steps_ms: Mapping[str, float]) -> None:
        """Record the durations of the engine's steps in a trigger."""
        _observe(self._engine, sink, steps_ms)

    def applied(self, sink: str, age_s: float) -> None:
        """Record the age of a durable batch's oldest record, at least zero."""
        self._latency.labels(sink).observe(max(0.0, age_s))

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def _histogram(
        self, metric: telemetry.Metric, buckets: Sequence[float] = _BUCKETS_S
    ) -> Histogram:
        return Histogram(
            metric,
            metric.help,
            metric.labels,
            buckets=buckets,
            registry=self._registry,
        )


class _SinksCollector(Collector):
    """Collects the sinks' current progress and lag."""

    def __init__(
        self,
        sinks: Mapping[str, WatchedSink],
        published: Callable[[], Mapping[str, datetime]],
    ) -> None:
        self._sinks = sinks
        self._published = published

    def collect(self) -> Iterable[Metric]:
        seen = [(name, one, one.progress()) for name, one in list(self._sinks.items())]
        for metric, count in _COUNTERS.items():
            counter = _counter(metric)
            for sink, _, progress in seen:
                counter.add_metric([sink], count(progress))
            yield counter
        unpublished = _counter(telemetry.SINK_UNPUBLISHED)
        for sink, one, _ in seen:
            unpublished.add_metric([sink], one.unpublished())
        yield unpublished
        states = _gauge(telemetry.SINK_STATE)
        for sink, _, progress in seen:
            for state in State:
                states.add_metric([sink, state], int(state is progress.state))
        yield states
        published = _gauge(telemetry.SINK_PUBLISHED_AT)
        for sink, at in self._published().items():
            published.add_metric([sink], at.timestamp())
        yield published
        yield from _gauges(seen)


def _gauges(seen: list[tuple[str, WatchedSink, Progress]]) -> Iterator[Metric]:
    values: Mapping[
        telemetry.Metric, Callable[[WatchedSink, Progress], float | None]
    ] = {
        telemetry.SINK_LAG_SECONDS: lambda one, _: _lag_s(one.lag),
        telemetry.SINK_LAG_RECORDS: lambda one, _: _lag_records(one.lag),
        telemetry.SINK_LAG_ALARM: lambda one, _: int(one.alarm.is_raised),
        telemetry.SINK_BUDGET: lambda one, _: one.alarm.budget_s,
        telemetry.SINK_PARKED_KEYS: lambda _, progress: progress.parked,
        telemetry.SINK_PENDING_REFETCHES: lambda _, progress: (
            progress.pending_refetches
        ),
        telemetry.SINK_APPLIED_LSN: lambda _, progress: _log_lsn(progress),
        telemetry.SINK_VERIFY_DIFFERENCES: lambda one, _: _differences(one),
        telemetry.SINK_STATE_FREE: lambda one, _: _free_bytes(one),
        telemetry.SINK_VERIFIED_AT: lambda one, _: _verified_at(one),
    }
    for metric, value_of in values.items():
        gauge = _gauge(metric)
        for sink, one, progress in seen:
            value = value_of(one, progress)
            if value is not None:
                gauge.add_metric([sink], value)
        yield gauge


def _counter(metric: telemetry.Metric) -> CounterMetricFamily:
    return CounterMetricFamily(metric, metric.help, labels=metric.labels)


def _gauge(metric: telemetry.Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric, metric.help, labels=metric.labels)


def _lag_s(lag: Lag | None) -> float | None:
    return None if lag is None else lag.seconds


def _lag_records(lag: Lag | None) -> int | None:
    return None if lag is None else lag.records


def _log_lsn(progress: Progress) -> int | None:
    return parse_position(progress.position).log_lsn if progress.position else None


def _free_bytes(one: WatchedSink) -> int | None:
    """Return the free bytes on the disk of the state; ``None`` if they are unknown."""
    if one.folder is None:
        return None
    try:
        return shutil.disk_usage(one.folder).free
    except OSError:
        return None


def _differences(one: WatchedSink) -> int | None:
    found = one.verification()
    return None if found is None else found.differences


def _verified_at(one: WatchedSink) -> float | None:
    found = one.verification()
    return None if found is None else datetime.fromisoformat(found.at).timestamp()


def _observe(histogram: Histogram, sink: str, times_ms: Mapping[str, float]) -> None:
    for stage, took_ms in times_ms.items():
        histogram.labels(sink, stage).observe(took_ms / _MS_PER_S)


# A connection without a request occupies a thread for at most this long.
_REQUEST_TIMEOUT_S: Final = 10.0


class _Handler(BaseHTTPRequestHandler):
    """Serves the metrics."""

    page: Callable[[], bytes]
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        kind, body = self._response(self.path.partition("?")[0])
        is_known = body is not None
        body = body if body is not None else b"/metrics\n"
        self.send_response(HTTPStatus.OK if is_known else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _response(self, path: str) -> tuple[str, bytes | None]:
        if path == "/metrics":
            return CONTENT_TYPE_LATEST, type(self).page()
        return "text/plain; charset=utf-8", None

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the library's
        pass


class MetricsPort:
    """Serves the metrics until it is closed."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        """
        Listen on ``port`` of ``host``; 0 picks a free one.

        Raises:
            MetricsPortError: The port is in use, or the address is not this host's.
        """
        handler = type("Handler", (_Handler,), {"page": staticmethod(page)})
        try:
            self._server = PageServer(host, port, handler)
        except OSError as error:
            reason = f"the metrics port {host}:{port}: {error.strerror or error}"
            raise MetricsPortError(reason) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port number."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
