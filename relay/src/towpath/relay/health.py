"""
The admin port: ``/metrics``, ``/health/live``, ``/health/ready``.

A thread of its own answers from the tally, which the loop writes: nothing that a
scraper does can hold the loop up.
"""

import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from towpath.relay.tally import Tally
from towpath.schemas import telemetry

_TEXT: Final = "text/plain; charset=utf-8"


class TallyCollector(Collector):
    """Shows the tally as metrics."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        tally = self._tally
        counts = (
            (telemetry.RELAY_TRANSACTIONS, "Transactions", tally.transactions),
            (telemetry.RELAY_RECORDS, "Records produced", tally.records),
            (telemetry.SNAPSHOT_ROWS, "Snapshot rows produced", tally.snapshot_rows),
        )
        for name, what, value in counts:
            yield CounterMetricFamily(name, what, value)
        gauges = (
            (telemetry.RELAY_IN_FLIGHT_BYTES, "On their way", tally.in_flight_bytes),
            (telemetry.RELAY_CONFIRMED_LSN, "Confirmed LSN", tally.confirmed_lsn),
            (telemetry.RELAY_RECEIVED_LSN, "Received LSN", tally.received_lsn),
        )
        for name, what, value in gauges:
            yield GaugeMetricFamily(name, what, value)
        reasons = (
            (telemetry.RELAY_DEAD_LETTERS, "Dead letters", tally.dead_letters),
            (telemetry.RELAY_SKIPPED, "Changes without a record", tally.skipped),
        )
        for name, what, counter in reasons:
            family = CounterMetricFamily(name, what, labels=["reason"])
            for reason, count in list(counter.items()):
                family.add_metric([reason], count)
            yield family


class HealthServer:
    """Serves the admin port until it is closed."""

    def __init__(self, port: int, tally: Tally) -> None:
        """
        Listen on ``port`` of this host; 0 takes a free one.

        Raises:
            OSError: The port is taken.
        """
        registry = CollectorRegistry()
        registry.register(TallyCollector(tally))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = _answer(self.path, tally, registry)
                self.send_response(answer[0])
                self.send_header("Content-Type", _TEXT)
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the library's
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(
    path: str, tally: Tally, registry: CollectorRegistry
) -> tuple[HTTPStatus, bytes]:
    if path == "/metrics":
        return HTTPStatus.OK, generate_latest(registry)
    if path == "/health/live":
        return HTTPStatus.OK, b"live\n"
    if path == "/health/ready":
        if tally.is_streaming:
            return HTTPStatus.OK, b"ready\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, b"not streaming\n"
    return HTTPStatus.NOT_FOUND, b"/metrics, /health/live, /health/ready\n"
