"""The benchmark of the whole shop: its backlogs, and the invariants that it reports."""

import pytest

from towpath.deploy.bench import checkout
from towpath.deploy.bench.checkout import BacklogSampler, Totals
from towpath.deploy.demo.compare import Published
from towpath.deploy.demo.table import StoreResult
from towpath.deploy.errors import StepError


def totals(at_s, **changed):
    """Make the totals at one time."""
    usual = {
        "at_s": at_s,
        "log_bytes": 1_000.0 * at_s,
        "records": {"cache": 100.0 * at_s},
        "published": Published(0, 0, 0),
        "cpu_s": {},
        "machine_s": 0.0,
        "load": {"checkouts": int(20 * at_s), "elapsed_s": at_s},
    }
    return Totals(**usual | changed)


def test_each_backlog_is_compared_with_its_own_input():
    """
    Records are compared with records, bytes with bytes, orders with checkouts.
    """
    sampler = BacklogSampler(stage=None)
    for name in ("cache", "relay", "saga"):
        sampler.samples[name] = [(0.0, 5.0), (10.0, 15.0)]
    found = sampler.backlogs(totals(0.0), totals(10.0))

    assert {"cache": 100.0, "relay": 1_000.0, "saga": 20.0} == {
        name: one.incoming_per_s for name, one in found.items()
    }
    assert 1.0 == found["saga"].slope


def test_all_records_of_a_topic_created_during_the_run_count_as_input():
    """
    A sink without records at first has no earlier total to subtract.
    """
    sampler = BacklogSampler(stage=None, samples={"cache": [(0.0, 0.0), (10.0, 0.0)]})
    found = sampler.backlogs(totals(0.0, records={}), totals(10.0))

    assert 100.0 == found["cache"].incoming_per_s


def test_a_violated_invariant_is_a_finding_with_its_store():
    """
    A store whose totals agree yields no finding.
    """
    stores = [
        StoreResult(name="database", orders=5),
        StoreResult(name="cache", orders=5, findings=("1 products: p", "2 parcels: o")),
    ]

    assert ["checkout cache: 1 products: p", "checkout cache: 2 parcels: o"] == list(
        checkout.contradictions(stores)
    )


def test_a_store_that_could_not_be_read_ends_the_benchmark():
    """
    No figure is published unless the invariants were checked.
    """
    stores = [StoreResult(name="warehouse", failure="it went away")]

    with pytest.raises(StepError, match="warehouse could not be read: it went away"):
        list(checkout.contradictions(stores))
