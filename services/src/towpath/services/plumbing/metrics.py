"""
The metrics of a service: the page ``/metrics`` on the service's port.

A service is one process, so one registry holds everything: gunicorn runs a single
worker, and a replaced worker resets its counters, as Prometheus expects. The
application keeps its ``ServiceMetrics`` in ``app.extensions[METRICS]``. A process that
serves HTTP adds the page to its routes; one that only consumes events opens a port for
the page.

Labels are bounded: a route is a template, never a path, and a method that HTTP does not
define is ``other``. Health checks and scrapes are not counted: they would be most of
the requests in a quiet service. Outbox rows are counted at commit, so rows that are
rolled back are never counted.
"""

from collections import Counter as Counts
from collections.abc import Callable, Mapping
from http import HTTPMethod
from typing import Any, Final

from flask import Blueprint, Flask, Response, g, request
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from towpath.inbox.metrics import InboxMetrics
from towpath.outbox import OutboxEvent
from towpath.schemas import telemetry
from towpath.schemas.clock import Clock
from towpath.schemas.failure import UsageError

METRICS: Final = "towpath.metrics"
PATH: Final = "/metrics"
_UNMATCHED: Final = "unmatched"
_OTHER: Final = "other"
_METHODS: Final = frozenset(HTTPMethod)
# Blueprints whose requests are not counted.
_UNCOUNTED: Final = frozenset({"health", "metrics"})
# The ``Session.info`` key that holds the counts of outbox rows, by transaction and by
# event type.
_WRITTEN: Final = "towpath.outbox.written"
# The buckets range from a read by key to a request that waits for a sink.
_BUCKETS_S: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

Translate = Callable[[Any, Session], OutboxEvent]


class ServiceMetrics:
    """The metrics of a service's process, including those of its consumers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.inbox = InboxMetrics(self._registry)
        request_seconds = telemetry.SERVICE_REQUEST_SECONDS
        self._requests = Histogram(
            request_seconds,
            request_seconds.help,
            request_seconds.labels,
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        rows, sagas = telemetry.SERVICE_OUTBOX_ROWS, telemetry.SERVICE_SAGAS
        self._rows = Counter(rows, rows.help, rows.labels, registry=self._registry)
        self._sagas = Gauge(sagas, sagas.help, sagas.labels, registry=self._registry)

    def count_rows(self, sessions: sessionmaker[Session]) -> None:
        """Count the outbox rows of the sessions' transactions from now on."""
        event.listen(sessions, "after_commit", self._committed)
        event.listen(sessions, "after_transaction_end", _forget_written)

    def show_sagas(self, read: Callable[[], Mapping[str, int]]) -> None:
        """
        Show the unfinished sagas by status.

        If ``read`` fails, no numbers are shown until it succeeds again.

        Args:
            read: Returns the number of sagas per status, including zeros, always for
                the same statuses.
        """
        try:
            counts = read()
        except BaseException:
            self._sagas.clear()
            raise
        for status, count in counts.items():
            self._sagas.labels(status).set(count)

    def observe(self, method: str, route: str, status: int, took_s: float) -> None:
        """Record the duration of a request."""
        known = method if method in _METHODS else _OTHER
        self._requests.labels(known, route, str(status)).observe(took_s)

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def listen(self, host: str, port: int) -> None:
        """
        Serve the page on its own port, until the process ends.

        An IPv6 address may be in brackets, as for the service's own port.

        Raises:
            UsageError: The port is in use, or the address is invalid or not this
                machine's.
        """
        try:
            start_http_server(port, host.strip("[]"), self._registry)
        except OSError as error:
            message = f"--metrics-port {port} on --host {host}: {error.strerror}"
            raise UsageError(message) from error
        # Raised for a host name with an empty or overlong label.
        except ValueError as error:
            message = f"--metrics-port {port} on --host {host}: not a host name"
            raise UsageError(message) from error

    def _committed(self, session: Session) -> None:
        # A savepoint may still be rolled back with its transaction.
        if session.in_nested_transaction():
            _pass_on_written(session)
            return
        written = _written(session).pop(session.get_transaction(), Counts())
        for event_type, count in written.items():
            self._rows.labels(event_type).inc(count)


def _written(session: Session) -> dict[SessionTransaction | None, Counts[str]]:
    """Return the counts of each open transaction and savepoint."""
    written: dict[SessionTransaction | None, Counts[str]]
    written = session.info.setdefault(_WRITTEN, {})
    return written


def _pass_on_written(session: Session) -> None:
    """Add the counts of a released savepoint to those of its parent transaction."""
    released = session.get_nested_transaction()
    if released is not None and (counts := _written(session).pop(released, None)):
        _written(session).setdefault(released.parent, Counts()).update(counts)


def _forget_written(session: Session, transaction: SessionTransaction) -> None:
    """Forget the counts of a rolled-back transaction; others are already removed."""
    _written(session).pop(transaction, None)


def counted(translate: Translate) -> Translate:
    """Wrap a translation so that it counts each event in its session, by type."""

    def count(domain_event: Any, session: Session) -> OutboxEvent:  # noqa: ANN401 - the service's own
        found = translate(domain_event, session)
        current = session.get_nested_transaction() or session.get_transaction()
        _written(session).setdefault(current, Counts())[found.type] += 1
        return found

    return count


def metrics_of(app: Flask) -> ServiceMetrics:
    """Return the metrics of an application."""
    metrics: ServiceMetrics = app.extensions[METRICS]
    return metrics


def install_metrics(app: Flask, clock: Clock) -> None:
    """Count the requests of an application, and add the page to its routes."""
    metrics = metrics_of(app)
    blueprint = Blueprint("metrics", __name__)

    @blueprint.get(PATH)
    def page() -> Response:
        """Return the metrics of the process."""
        return Response(metrics.page(), content_type=CONTENT_TYPE_LATEST)

    def begin() -> None:
        g.request_began_s = clock.monotonic_s()

    def end(response: Response) -> Response:
        if request.blueprint not in _UNCOUNTED:
            route = _UNMATCHED if request.url_rule is None else request.url_rule.rule
            took_s = clock.monotonic_s() - g.request_began_s
            metrics.observe(request.method, route, response.status_code, took_s)
        return response

    app.before_request(begin)
    app.after_request(end)
    app.register_blueprint(blueprint)
