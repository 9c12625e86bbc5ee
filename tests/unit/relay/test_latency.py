"""Latencies, measured with one clock."""

from towpath.relay.stats import BOUNDS_S, Histogram, SourceClock

SECOND_US = 1_000_000
BEGAN_US = 1_000_000 * SECOND_US


def test_latency_buckets_are_cumulative():
    """
    Each bucket counts latencies up to its bound; the last counts all.
    """
    histogram = Histogram()
    histogram.observe(BOUNDS_S[0])
    histogram.observe(BOUNDS_S[1], 2)
    histogram.observe(1e9)
    buckets = histogram.buckets()

    assert [("0.001", 1), ("0.002", 3), ("600.0", 3), ("+Inf", 4)] == [
        buckets[0],
        buckets[1],
        *buckets[-2:],
    ]


def test_a_latency_is_never_negative():
    """
    A commit time in the future counts as zero seconds.
    """
    histogram = Histogram()
    histogram.observe(-5.0)

    assert (1, 0.0) == (histogram.counts[0], histogram.sum_s)


def test_a_clock_offset_does_not_affect_latencies():
    """
    B82: if our clock is an hour off, 5 ms until the acknowledgement are still 5 ms.
    """
    measured = []
    for off_us in (-3600 * SECOND_US, 0, 3600 * SECOND_US):
        clock = SourceClock()
        for waited_us in (900, 200, 50_000):
            sent_us = BEGAN_US + waited_us
            clock.observe(sent_us, sent_us + waited_us + off_us)
        measured.append(clock.since_s(BEGAN_US, BEGAN_US + 5200 + off_us))

    assert [0.005] * 3 == measured


def test_a_corrected_clock_is_followed_within_two_windows():
    """
    B82: after our clock is set forward, earlier differences are forgotten.

    They apply for one more window, so the first frame of a window decides nothing.
    """
    clock = SourceClock()
    clock.observe(BEGAN_US, BEGAN_US)
    ahead = []
    for second in range(0, 130, 10):
        sent_us = BEGAN_US + second * SECOND_US
        clock.observe(sent_us, sent_us + 7 * SECOND_US)
        ahead.append(clock.ahead_us)

    assert (0, 0, 7 * SECOND_US) == (ahead[0], ahead[6], ahead[-1])


def test_a_clock_set_back_is_followed_at_once():
    """
    B82: a smaller difference always replaces a larger one.
    """
    clock = SourceClock()
    clock.observe(BEGAN_US, BEGAN_US)
    clock.observe(BEGAN_US + 10, BEGAN_US + 10 - 7 * SECOND_US)

    assert -7 * SECOND_US == clock.ahead_us
