"""The console's histograms, from a driver's metrics page."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from towpath.deploy.console.histograms import histograms_of, read_histograms
from towpath.deploy.local import ports
from towpath.settings import Settings


@pytest.fixture
def page():
    """Provide the metrics of two sinks, one of which has written nothing."""
    registry = CollectorRegistry()
    batches = Histogram(
        "towpath_sink_batch_seconds",
        "duration",
        ["sink", "stage"],
        buckets=(0.01, 0.1, 1, 10),
        registry=registry,
    )
    for time_s in [0.05] * 6 + [0.5] * 12 + [0.7, 99.0]:
        batches.labels("cache", "batch").observe(time_s)
    batches.labels("cache", "decode").observe(0.001)
    batches.labels("search", "batch")
    return generate_latest(registry).decode()


def test_a_bar_has_the_values_of_its_own_bucket(page):
    """
    Prometheus counts cumulatively; other stages and sinks without batches are left out.
    """
    [found] = histograms_of(page)

    assert ("cache", 20, 1) == (found.sink, found.values, found.most_s)
    assert [
        ("up to 100 ms", 6, 46),
        ("up to 1 s", 13, 100),
        ("up to 10 s", 0, 0),
        ("above 10 s", 1, 8),
    ] == list(found.bars)


@pytest.mark.parametrize(
    "text",
    [
        "<html>404</html>",
        "{, =:=#a",
        'towpath_sink_batch_seconds_bucket{le="1",stage="batch"} 3\n',
    ],
)
def test_a_page_of_another_program_has_no_histogram(page, text):
    """
    A different program may listen on the configured port.
    """
    kind = page[page.index("# TYPE") :].splitlines()[0]

    assert [] == list(histograms_of(text))
    assert [] == list(histograms_of(f"{kind}\n{text}"))


def test_a_driver_that_does_not_answer_has_no_histogram():
    """
    The page is shown without it; a driver without sinks is not queried.
    """
    sink = {"name": "cache", "kind": "cache", "url": "x", "driver": "serving"}
    sink["route"] = [{"topic": "towpath.shop.orders", "name": "orders"}]
    settings = Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "x", "tables": ["shop.orders"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "sinks": {"metrics_ports": {"serving": ports.any_free(), "other": 1}},
            "sink": [sink],
        }
    )

    assert [] == read_histograms(settings)
