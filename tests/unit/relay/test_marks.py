"""Marks only rise, each kind of record in its own order."""

from dataclasses import dataclass

import pytest

from towpath.relay.errors import TopicTruncatedError
from towpath.relay.recovery.marks import Mark, Marks

TOPIC = "p.shop.orders"
AT = (TOPIC, 0)
POSITION, LATER = b"0000000000000008.-", b"0000000000000010.-"


@dataclass
class Acknowledged:
    """An acknowledgement of one record of the partition."""

    at: int

    def __len__(self):
        return 1

    def topic(self):
        return TOPIC

    def partition(self):
        return 0

    def offset(self):
        return self.at


def marks_of_empty_topic():
    """Return the marks of a topic with one empty partition."""
    marks = Marks({})
    marks.begin(TOPIC, {0: 0})
    return marks


def test_a_read_row_beside_a_streamed_record_is_no_truncation():
    """
    READ rows count when acknowledged, streamed records when their transaction settles.

    So a streamed record may have a lower offset than an earlier counted READ row.
    """
    marks = marks_of_empty_topic()
    marks.move({}, {AT: Acknowledged(117)})
    marks.move({AT: (POSITION, Acknowledged(100))}, {})
    after_stream = dict(marks._marks[TOPIC])
    marks.move({AT: (LATER, Acknowledged(120))}, {AT: Acknowledged(119)})

    assert {0: Mark(118, POSITION)} == after_stream
    assert {0: Mark(121, LATER)} == marks._marks[TOPIC]


@pytest.mark.parametrize("is_read", [False, True])
def test_an_offset_that_goes_back_halts(is_read):
    """
    The topic was deleted and created again: its earlier records no longer exist.
    """
    marks = marks_of_empty_topic()

    def take(offset):
        place = Acknowledged(offset)
        if is_read:
            marks.move({}, {AT: place})
        else:
            marks.move({AT: (POSITION, place)}, {})

    take(117)
    with pytest.raises(
        TopicTruncatedError, match="took a record at 3, but reached 118"
    ):
        take(3)
