"""The guarantee of the nearest-rank percentile, for any samples."""

from hypothesis import given
from hypothesis import strategies as st

from towpath.loadtests.load.samples import at

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200).map(sorted)
SHARES = st.floats(0.001, 1.0)


@given(SAMPLES, SHARES)
def test_a_percentile_is_the_smallest_sample_that_covers_its_share(ordered, share):
    """
    At least this share of the samples is at or below it; a smaller sample covers less.
    """
    found = at(ordered, share)
    covered = [sum(x <= sample for x in ordered) / len(ordered) for sample in ordered]
    expected = min(
        sample
        for sample, part in zip(ordered, covered, strict=True)
        if part >= share - 1e-9
    )

    assert expected == found
