"""
Metrics of consumers in Prometheus's format; ``docs/metrics.md`` describes each.

They are registered together with the application's own metrics and served on its port;
a consumer opens no port of its own. Labels are the consumer's name and, on most
metrics, the topic; the lag also has a partition.
"""

from typing import Final

from towpath.inbox.effects import Observer
from towpath.inbox.event import Event
from towpath.inbox.inbox import Inbox
from towpath.schemas import telemetry
from towpath.schemas.failure import UsageError

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    _MISSING = "metrics need prometheus-client: pip install 'towpath-inbox[metrics]'"
    raise UsageError(_MISSING) from error

# The buckets range from a single statement to a handler that calls other services.
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120)


class InboxMetrics:
    """The metrics of all consumers of a process; create one instance per registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the metrics in the application's registry."""

        def counter(metric: telemetry.Metric) -> Counter:
            return Counter(metric, metric.help, metric.labels, registry=registry)

        def gauge(metric: telemetry.Metric) -> Gauge:
            return Gauge(metric, metric.help, metric.labels, registry=registry)

        self.applied = counter(telemetry.INBOX_APPLIED)
        self.skipped = counter(telemetry.INBOX_DUPLICATES)
        self.retries = counter(telemetry.INBOX_RETRIES)
        self.parked = counter(telemetry.INBOX_PARKED)
        handler = telemetry.INBOX_HANDLER_SECONDS
        self.handler = Histogram(
            handler,
            handler.help,
            handler.labels,
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.parked_events = gauge(telemetry.INBOX_PARKED_EVENTS)
        self.lag = gauge(telemetry.INBOX_LAG)

    def of(self, inbox: Inbox) -> Observer:
        """Return the observer of a consumer with this inbox."""
        return _Metrics(self, inbox.consumer)


class _Metrics(Observer):
    """Updates the metrics of one consumer."""

    def __init__(self, metrics: InboxMetrics, consumer: str) -> None:
        self._metrics = metrics
        self._consumer = consumer

    def handled(self, event: Event, duration_s: float) -> None:
        histogram = self._metrics.handler
        histogram.labels(self._consumer, event.topic).observe(duration_s)

    def applied(self, event: Event) -> None:
        self._metrics.applied.labels(self._consumer, event.topic).inc()

    def skipped(self, event: Event) -> None:
        self._metrics.skipped.labels(self._consumer, event.topic).inc()

    def retried(self, event: Event, reason: str) -> None:
        del reason  # As a label, it would create an unlimited number of series.
        self._metrics.retries.labels(self._consumer, event.topic).inc()

    def parked(self, event: Event, reason: str) -> None:
        del reason
        self._metrics.parked.labels(self._consumer, event.topic).inc()

    def parked_events(self, count: int) -> None:
        self._metrics.parked_events.labels(self._consumer).set(count)

    def lag(self, topic: str, partition: int, records: int | None) -> None:
        labels = (self._consumer, topic, str(partition))
        if records is None:
            self._metrics.lag.remove(*labels)
        else:
            self._metrics.lag.labels(*labels).set(records)
