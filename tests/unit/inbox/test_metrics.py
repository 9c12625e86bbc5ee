"""The metrics of consumers in the application's registry."""

import importlib
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.exposition import mistakes
from support.inbox_place import event
from towpath.inbox import Inbox, Observer
from towpath.inbox import metrics as inbox_metrics
from towpath.inbox.metrics import InboxMetrics
from towpath.schemas import telemetry
from towpath.schemas.failure import UsageError


def report_all(observer: Observer) -> None:
    """Make one report of each kind."""
    observer.handled(event(), 0.3)
    observer.applied(event())
    observer.skipped(event())
    observer.retried(event(), "any\ntext")
    observer.parked(event(), "any\ntext")
    observer.parked_events(3)
    observer.lag("t", 0, 5)
    observer.lag("t", 1, 6)


def test_every_metric_has_its_documented_name():
    """
    Several consumers in a process share a registry; reasons do not become labels.
    """
    registry = CollectorRegistry()
    metrics = InboxMetrics(registry)
    for name in ("one", "two"):
        report_all(metrics.of(Inbox(name)))
    page = generate_latest(registry).decode()

    assert [] == mistakes(page, ("towpath_inbox_",))
    assert "any" not in page
    for name in ("one", "two"):
        labels = {"consumer": name, "topic": "t"}
        assert [1.0] * 4 == [
            registry.get_sample_value(metric, labels)
            for metric in (
                telemetry.INBOX_APPLIED,
                telemetry.INBOX_DUPLICATES,
                telemetry.INBOX_RETRIES,
                telemetry.INBOX_PARKED,
            )
        ]
        seconds = f"{telemetry.INBOX_HANDLER_SECONDS}_sum"
        assert registry.get_sample_value(seconds, labels) == pytest.approx(0.3)


def test_a_partition_that_is_read_elsewhere_has_no_lag():
    """
    Its gauge is removed, even if it was never set; the others are kept.
    """
    registry = CollectorRegistry()
    observer = InboxMetrics(registry).of(Inbox("one"))
    observer.lag("t", 9, None)
    report_all(observer)
    observer.lag("t", 0, None)
    lags = [
        registry.get_sample_value(
            telemetry.INBOX_LAG,
            {"consumer": "one", "topic": "t", "partition": partition},
        )
        for partition in "01"
    ]

    assert [None, 6] == lags


def test_an_observer_that_overrides_nothing_does_nothing():
    """
    A subclass that is interested in some reports may ignore the others.
    """
    report_all(Observer())


def test_metrics_without_their_library_name_the_extra(monkeypatch):
    """
    The package alone does not install the library.
    """
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'towpath-inbox\[metrics\]'"):
        importlib.reload(inbox_metrics)
