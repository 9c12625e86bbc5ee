"""
Metrics of sinks in Prometheus's format; ``docs/metrics.md`` describes each.

Counters are those of the progress files, so they continue across restarts. Labels are
the declared sinks, their states and the stages of a batch: all bounded by the
configuration and this code. An unknown value is left out, never zero.

The metrics port is served by a separate thread, so that a request never delays a
batch. It listens on this host only unless the configuration says otherwise: it has no
login.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from towpath.schemas import telemetry
from towpath.schemas.position import parse_position
from towpath.sinks.errors import MetricsPortError
from towpath.sinks.state.lag import Alarm, Lag
from towpath.sinks.state.progress import PROGRESS_PAGE, Progress, State, progress_page

# From a cache's fast batch to a warehouse's slow one.
_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_MS_PER_S: Final = 1000

_COUNTERS: Final[Mapping[str, tuple[str, Callable[[Progress], int]]]] = (
    MappingProxyType(
        {
            telemetry.SINK_BATCHES: ("Batches written.", lambda p: p.batches),
            telemetry.SINK_RECORDS: ("Records read.", lambda p: p.records),
            telemetry.SINK_ROWS: ("Changes and events written.", lambda p: p.rows),
            telemetry.SINK_STALE: (
                "Changes and events that the target had, or had newer.",
                lambda p: p.stale,
            ),
            telemetry.SINK_TOMBSTONES: ("Deletes written.", lambda p: p.tombstones),
            telemetry.SINK_DEAD_LETTERS: (
                "Records set aside.",
                lambda p: p.dead_letters,
            ),
            telemetry.SINK_SKIPPED: ("Records left out.", lambda p: p.skipped),
            telemetry.SINK_LEFT: (
                "Records of large batches that the driver wrote after their slices.",
                lambda p: p.left,
            ),
            telemetry.SINK_ASKED: (
                "Keys whose rows were asked for, because the target lacks them.",
                lambda p: p.asked,
            ),
            telemetry.SINK_NULLED: (
                "Values made null, because the target has no room for them.",
                lambda p: p.nulled,
            ),
            telemetry.SINK_RETRIES: (
                "Failures after which a batch or a query was tried again.",
                lambda p: p.retries,
            ),
        }
    )
)


@dataclass(slots=True)
class WatchedSink:
    """
    The published state of one sink; written by its own threads, read by requests.

    Attributes:
        progress: Returns the current progress.
        alarm: Its budget, and whether its lag is too high.
        lag: The last known lag; ``None`` while it is unknown.
    """

    progress: Callable[[], Progress]
    alarm: Alarm
    lag: Lag | None = None


@dataclass(slots=True)
class SinkMetrics:
    """The metrics of one driver's sinks."""

    sinks: dict[str, WatchedSink] = field(default_factory=dict)
    _registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _batch: Histogram = field(init=False)
    _engine: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self._registry.register(_SinksCollector(self.sinks))
        self._batch = self._histogram(
            telemetry.SINK_BATCH_SECONDS, "How long each stage of a batch took."
        )
        self._engine = self._histogram(
            telemetry.SINK_ENGINE_SECONDS,
            "How long the engine took for each step of a trigger.",
        )

    def batch(self, sink: str, stages_ms: Mapping[str, float]) -> None:
        """Record the durations of a batch's stages."""
        _observe(self._batch, sink, stages_ms)

    def engine(self, sink: str, steps_ms: Mapping[str, float]) -> None:
        """Record the durations of the engine's steps of a trigger."""
        _observe(self._engine, sink, steps_ms)

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def progress(self, sink: str) -> bytes | None:
        """Return a sink's current progress; ``None`` if it is not watched."""
        watched = self.sinks.get(sink)
        return None if watched is None else progress_page(watched.progress())

    def _histogram(self, name: str, what: str) -> Histogram:
        labels = ("sink", "stage")
        return Histogram(
            name, what, labels, buckets=_BUCKETS_S, registry=self._registry
        )


class _SinksCollector(Collector):
    """Collects the sinks' current progress and lag."""

    def __init__(self, sinks: Mapping[str, WatchedSink]) -> None:
        self._sinks = sinks

    def collect(self) -> Iterable[Metric]:
        seen = [(name, one, one.progress()) for name, one in list(self._sinks.items())]
        for name, (what, count) in _COUNTERS.items():
            counter = CounterMetricFamily(name, what, labels=["sink"])
            for sink, _, progress in seen:
                counter.add_metric([sink], count(progress))
            yield counter
        states = GaugeMetricFamily(
            telemetry.SINK_STATE,
            "1 for the sink's state, 0 for the others.",
            labels=["sink", "state"],
        )
        for sink, _, progress in seen:
            for state in State:
                states.add_metric([sink, state], int(state is progress.state))
        yield states
        yield from _gauges(seen)


def _gauges(seen: list[tuple[str, WatchedSink, Progress]]) -> Iterator[Metric]:
    values: Mapping[
        str, tuple[str, Callable[[WatchedSink, Progress], float | None]]
    ] = {
        telemetry.SINK_LAG_SECONDS: (
            "Age of the oldest record that is not applied; 0: nothing is behind.",
            lambda one, _: None if one.lag is None else one.lag.seconds,
        ),
        telemetry.SINK_LAG_RECORDS: (
            "Records that are not applied.",
            lambda one, _: None if one.lag is None else one.lag.records,
        ),
        telemetry.SINK_LAG_ALARM: (
            "1 from when the lag exceeds twice the budget until it is below it.",
            lambda one, _: int(one.alarm.is_raised),
        ),
        telemetry.SINK_BUDGET: (
            "How far the sink may be behind.",
            lambda one, _: one.alarm.budget_s,
        ),
        telemetry.SINK_PARKED_KEYS: (
            "Keys whose changes wait behind a dead letter.",
            lambda _, progress: progress.parked,
        ),
        telemetry.SINK_OWED_ROWS: (
            "Rows that were asked for and have not come yet.",
            lambda _, progress: progress.owed,
        ),
        telemetry.SINK_APPLIED_LSN: (
            "Commit LSN, with its lineage's offset, of the highest change applied.",
            lambda _, progress: _log_lsn(progress),
        ),
    }
    for name, (what, value_of) in values.items():
        gauge = GaugeMetricFamily(name, what, labels=["sink"])
        for sink, one, progress in seen:
            value = value_of(one, progress)
            if value is not None:
                gauge.add_metric([sink], value)
        yield gauge


def _log_lsn(progress: Progress) -> int | None:
    return parse_position(progress.position).log_lsn if progress.position else None


def _observe(histogram: Histogram, sink: str, times_ms: Mapping[str, float]) -> None:
    for stage, took_ms in times_ms.items():
        histogram.labels(sink, stage).observe(took_ms / _MS_PER_S)


# A connection without a request occupies a thread for this long.
_REQUEST_TIMEOUT_S: Final = 10.0


class _Server(ThreadingHTTPServer):
    """A server that does not print errors of connections."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    """Serves the metrics, and the progress of one sink."""

    page: Callable[[], bytes]
    progress: Callable[[str], bytes | None]
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        kind, body = self._answer(self.path.partition("?")[0])
        is_known = body is not None
        body = body if body is not None else b"/metrics\n"
        self.send_response(HTTPStatus.OK if is_known else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str) -> tuple[str, bytes | None]:
        if path == "/metrics":
            return CONTENT_TYPE_LATEST, type(self).page()
        if path.startswith(PROGRESS_PAGE):
            sink = unquote(path.removeprefix(PROGRESS_PAGE))
            return "application/json", type(self).progress(sink)
        return "text/plain; charset=utf-8", None

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the library's
        pass


class MetricsPort:
    """Serves the pages until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[], bytes],
        progress: Callable[[str], bytes | None],
    ) -> None:
        """
        Listen on ``port`` of ``host``; 0 picks a free one.

        Raises:
            MetricsPortError: The port is in use, or the address is not this host's.
        """
        pages = {"page": staticmethod(page), "progress": staticmethod(progress)}
        handler = type("Handler", (_Handler,), pages)
        try:
            self._server = _Server((host, port), handler)
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
