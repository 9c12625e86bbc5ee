"""Percentiles by nearest rank."""

from towpath.loadtests.load.samples import Latency, at


def test_without_samples_there_are_no_percentiles():
    """
    Without samples the count is zero, and there are no percentiles.
    """
    expected = Latency(0, None, None, None)
    actual = Latency.of([])

    assert expected == actual


def test_one_sample_is_every_percentile():
    """
    A single sample is the value of all three percentiles.
    """
    expected = Latency(1, 7.0, 7.0, 7.0)
    actual = Latency.of([7.0])

    assert expected == actual


def test_percentiles_are_samples_by_nearest_rank():
    """
    The samples 1 to 100, in any order, have the percentiles 50, 95 and 99.
    """
    expected = Latency(100, 50, 95, 99)
    actual = Latency.of(reversed(range(1, 101)))

    assert expected == actual


def test_the_hundredth_percentile_is_the_highest_sample():
    """
    All samples are at or below the 100th percentile.
    """
    expected = 9.0
    actual = at([1.0, 2.0, 9.0], 1.0)

    assert expected == actual
