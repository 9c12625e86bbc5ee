"""The bookkeeping of latency samples."""

from types import SimpleNamespace

import pytest
import redis

from towpath.loadtests.load.sampler import CacheProbe, SearchProbe
from towpath.loadtests.load.samples import LOST_AFTER_S, Latency, Samples, SinkReport


def test_a_sample_is_measured_from_the_response_to_the_first_read():
    """
    The latency is the time from the checkout's response to the first read.
    """
    samples = Samples()
    samples.await_order(1, 10.0)
    samples.seen({1}, 10.25)
    expected = SinkReport(Latency(1, 250.0, 250.0, 250.0), awaited=0, lost=0)
    actual = samples.report()

    assert expected == actual


def test_only_the_first_sighting_of_an_order_counts():
    """
    Neither a second sighting nor an unknown order changes anything.
    """
    samples = Samples()
    samples.await_order(1, 10.0)
    found = [samples.seen({1}, 10.1), samples.seen({1, 2}, 99.0)]
    expected = ([1, 0], 1, 100.0)
    report = samples.report()
    actual = (
        [len(took_ms) for took_ms in found],
        report.latency.count,
        report.latency.p99_ms,
    )

    assert expected == actual


def test_a_sample_that_is_never_seen_is_lost():
    """
    After its timeout a sample counts as lost; younger samples are still awaited.
    """
    samples = Samples()
    samples.await_order(1, 0.0)
    samples.await_order(2, 60.0)
    lost = samples.expire(LOST_AFTER_S + 1, LOST_AFTER_S)
    expected = (1, SinkReport(Latency(0, None, None, None), awaited=1, lost=1))
    actual = (lost, samples.report())

    assert expected == actual


def test_a_key_template_may_contain_other_braces(monkeypatch: pytest.MonkeyPatch):
    """
    A hash tag keeps its braces; only the id's placeholder is replaced.
    """
    requested: list[str] = []
    pipeline = SimpleNamespace(
        hget=lambda key, _column: requested.append(key), execute=lambda: ["7"]
    )
    client = SimpleNamespace(pipeline=lambda **_: pipeline)
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_args, **_more: client)

    found = CacheProbe("redis://c", "{shop}:orders:{}").find((7,))

    assert ({7}, ["{shop}:orders:7"]) == (found, requested)


def test_a_search_requests_no_more_hits_than_an_index_returns(monkeypatch):
    """
    After an outage more orders may be awaited, and a larger request would be refused.
    """
    sizes = []

    def search(*, body, **_):
        sizes.append(body["size"])
        hits = [{"_id": each} for each in body["query"]["ids"]["values"]]
        return {"hits": {"hits": hits}}

    probe = SearchProbe("http://s", "orders")
    monkeypatch.setattr(probe, "_client", SimpleNamespace(search=search))
    awaited = range(20_001)

    assert {*awaited} == probe.find(awaited)
    assert [10_000, 10_000, 1] == sizes
