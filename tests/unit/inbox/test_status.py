"""The state of a consumer, computed from offsets."""

import pytest

from towpath.inbox.status import ConsumerStatus, partition_status

PARTITION = ("t", 0)


@pytest.mark.parametrize(
    ("committed", "bounds", "lag"),
    [
        pytest.param(4, (0, 10), 6, id="some are not handled"),
        pytest.param(10, (0, 10), 0, id="all are handled"),
        pytest.param(None, (3, 10), 7, id="nothing is committed, so all records count"),
        pytest.param(1, (3, 10), 7, id="retention has deleted unhandled records"),
        pytest.param(20, (0, 10), 0, id="the topic was recreated"),
        pytest.param(0, (0, 0), 0, id="an empty partition"),
    ],
)
def test_lag_counts_the_records_that_can_still_be_handled(committed, bounds, lag):
    """
    The lag begins at the committed offset, or at the partition's first one.
    """
    known = {} if committed is None else {PARTITION: committed}
    found = partition_status(PARTITION, bounds, known, {PARTITION: 5})

    assert (committed, bounds[1], lag, 5) == (
        *(found.committed_offset, found.end_offset),
        *(found.lag, found.ids),
    )


def test_the_lag_of_a_consumer_is_the_sum_over_its_partitions():
    """
    Without partitions, the lag is zero.
    """
    found = [
        partition_status(("t", number), (0, 10), {("t", number): number}, {})
        for number in range(3)
    ]

    assert 27 == ConsumerStatus("c", tuple(found), 0, 0, 0, None).lag
    assert 0 == ConsumerStatus("c", (), 0, 0, 0, None).lag
