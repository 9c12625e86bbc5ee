"""Marks only rise, separately for each kind of record."""

import pytest

from support.relay_bench import Acknowledged
from towpath.relay.errors import PartitionCountChangedError, TopicTruncatedError
from towpath.relay.recovery.marks import (
    Confirmed,
    FormerCount,
    Mark,
    Marks,
    marks_document,
)

TOPIC = "p.shop.orders"
AT = (TOPIC, 0)
POSITION, LATER = b"0000000000000008.-", b"0000000000000010.-"


def marks_of_empty_topic():
    """Return the marks of a topic with one empty partition."""
    marks = Marks({})
    marks.begin(TOPIC, {0: 0})
    return marks


def test_a_read_row_before_a_streamed_record_is_not_a_truncation():
    """
    READ rows count when acknowledged, streamed records when their transaction settles.

    A streamed record may thus have a lower offset than an already counted READ row.
    """
    marks = marks_of_empty_topic()
    marks.move({}, {AT: Acknowledged(117)})
    marks.move({AT: (POSITION, Acknowledged(100))}, {})
    after_stream = marks.document(TOPIC)
    marks.move({AT: (LATER, Acknowledged(120))}, {AT: Acknowledged(119)})

    assert marks_document({0: Mark(118, POSITION)}) == after_stream
    assert marks_document({0: Mark(121, LATER)}) == marks.document(TOPIC)


@pytest.mark.parametrize("is_read", [False, True])
def test_an_offset_that_goes_back_halts_the_relay(is_read):
    """
    The topic was deleted and recreated: its earlier records no longer exist.
    """
    marks = marks_of_empty_topic()

    def take(offset):
        acknowledged = Acknowledged(offset)
        if is_read:
            marks.move({}, {AT: acknowledged})
        else:
            marks.move({AT: (POSITION, acknowledged)}, {})

    take(117)
    with pytest.raises(TopicTruncatedError, match="assigned offset 3 after offset 117"):
        take(3)


@pytest.mark.parametrize("count", [0, 2])
def test_a_topic_with_a_changed_partition_count_halts_the_relay(count):
    """
    Its keys would move to other partitions; a topic without marks may have any count.
    """
    marks = marks_of_empty_topic()
    marks.check_count(TOPIC, 1)
    marks.check_count("p.shop.parcels", count)

    with pytest.raises(PartitionCountChangedError):
        marks.check_count(TOPIC, count)


def test_a_former_partition_count_is_kept_until_the_stream_has_passed_it():
    """
    Repeated records up to that position are looked up in the former partitions.
    """
    former = (FormerCount(1, b"0000000000000008.0000000003"),)
    marks = Marks({TOPIC: {0: Mark(5, None)}}, {TOPIC: former})

    assert [False, False, True] == [
        marks.forget_former(TOPIC, log_lsn) for log_lsn in (7, 8, 9)
    ]
    assert "former" not in marks.document(TOPIC)


def test_a_checkpoint_that_is_moved_back_is_not_clean():
    """
    By then a run has begun: if it crashes, barriers are written before ends are read.
    """
    stopped = Confirmed(80, 1080, 1090, 3, is_clean=True, at="then")

    assert Confirmed(48, 1048, 1090, 3, is_clean=False, at="then") == (
        stopped.moved_back(48)
    )
