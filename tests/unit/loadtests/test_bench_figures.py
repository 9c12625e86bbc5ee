"""Rates, percentiles, spreads and ratios."""

import pytest

from towpath.loadtests.bench.figures import (
    ArrivedEvent,
    CommittedEvent,
    Spread,
    drain_figures,
    latencies_ms,
    latency_figures,
    ratio,
    spread,
)


def test_a_drain_is_timed_in_three_ways():
    """
    It is timed from its first append, from its middle, and from the process's start.
    """
    # Ten events, with a pause of almost a second after the first five.
    appended_ms = [1000, 1000, 1100, 1100, 1200, 2000, 2000, 2100, 2100, 2200]

    assert {
        "events_per_s": pytest.approx(10 / 1.2),
        "second_half_per_s": pytest.approx(5 / 0.2),
        "from_start_per_s": pytest.approx(10 / 2.2),
        "first_event_s": 1.0,
    } == drain_figures(appended_ms, started_ms=0.0)


def test_the_order_of_append_times_does_not_matter():
    """
    Partitions are read one after the other, but the figures cover all of them.
    """
    assert drain_figures([5, 1, 9], 0.0) == drain_figures([1, 5, 9], 0.0)


def test_a_drain_within_one_clock_tick_counts_as_one_tick():
    """
    Times that cannot be distinguished must not cause a division by zero.
    """
    assert 2000.0 == drain_figures([7, 7], 7.0)["events_per_s"]


def test_percentiles_are_observed_values():
    """
    They are nearest-rank values of a hundred latencies, with the maximum.
    """
    found = latency_figures(float(n) for n in range(100, 0, -1))

    assert {
        "p50_ms": 50.0,
        "p95_ms": 95.0,
        "p99_ms": 99.0,
        "max_ms": 100.0,
        "samples": 100.0,
    } == found


def test_a_latency_is_the_time_from_commit_to_append_after_the_warm_up():
    """
    Earlier ones are left out. Half a millisecond makes up for truncated timestamps.
    """
    facts = {
        b"early": CommittedEvent(0, b"k", b"", 1_000_000),
        b"late": CommittedEvent(1, b"k", b"", 2_000_400),
    }
    arrivals = [
        ArrivedEvent(0, 0, b"early", b"k", b"", 1_003),
        ArrivedEvent(0, 1, b"late", b"k", b"", 2_003),
    ]

    assert [pytest.approx(3.1)] == latencies_ms(facts, arrivals, since_us=2_000_000)


def test_a_spread_has_minimum_median_and_maximum():
    """
    It covers each figure that all rounds have.
    """
    rounds = [{"a": 3.0, "b": 1.0}, {"a": 1.0}, {"a": 2.0, "b": 1.0}]

    assert {"a": Spread(1.0, 2.0, 3.0)} == spread(rounds)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"a": Spread(1, 30, 90)}, {"a": Spread(5, 10, 11)}, 3.0),
        ({"a": Spread(1, 30, 90)}, {"a": Spread(0, 0, 11)}, None),
        ({"a": Spread(1, 30, 90)}, {}, None),
        ({"a": Spread(1, 30, 90)}, None, None),
        (None, {"a": Spread(5, 10, 11)}, None),
    ],
)
def test_a_ratio_compares_medians_or_is_missing(ours, theirs, expected):
    """
    Our median is divided by theirs; a system without figures has no ratio.
    """
    assert expected == ratio(ours, theirs, "a")
