"""The state of a consumer, computed from offsets."""

import pytest

from towpath.inbox.status import ConsumerStatus, partition_status

PLACE = ("t", 0)


@pytest.mark.parametrize(
    ("committed", "bounds", "lag"),
    [
        pytest.param(4, (0, 10), 6, id="some are not handled"),
        pytest.param(10, (0, 10), 0, id="all are handled"),
        pytest.param(None, (3, 10), 7, id="nothing is committed: all that there are"),
        pytest.param(1, (3, 10), 7, id="retention has removed some that were not"),
        pytest.param(20, (0, 10), 0, id="the topic was made again"),
        pytest.param(0, (0, 0), 0, id="an empty partition"),
    ],
)
def test_lag_counts_the_records_that_can_still_be_handled(committed, bounds, lag):
    """
    From the committed offset, or the first one that the partition has, to its end.
    """
    known = {} if committed is None else {PLACE: committed}
    found = partition_status(PLACE, bounds, known, {PLACE: 5})

    assert (committed, bounds[1], lag, 5) == (
        *(found.committed_offset, found.end_offset),
        *(found.lag, found.ids),
    )


def test_the_lag_of_a_consumer_is_that_of_all_its_partitions():
    """
    Without partitions there is none.
    """
    found = [
        partition_status(("t", number), (0, 10), {("t", number): number}, {})
        for number in range(3)
    ]

    assert 27 == ConsumerStatus("c", tuple(found), 0, 0, 0, None).lag
    assert 0 == ConsumerStatus("c", (), 0, 0, 0, None).lag
