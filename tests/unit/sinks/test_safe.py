"""The safe position: below it, tombstones may be purged."""

import pytest

from support.dead_letters import FixedPositions, Letters, StoppedClock, context_of
from support.kafka_rows import row, table
from support.parked_shop import ROUTES
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.sweeps import SafePosition
from towpath.sinks.targets.memory import MemorySink

BEHIND_EVERYTHING = "f" * 16


@pytest.mark.parametrize(
    ("head", "parked", "expected"),
    [
        ("5", None, "5"),
        ("5", "3", "3"),
        ("5", "7", "5"),
        (None, "3", None),
        (None, None, None),
    ],
)
def test_a_dead_letter_holds_the_safe_position_down(head, parked, expected):
    """
    It can be replayed, however old it is: what stands above it is not safe.
    """
    safe = SafePosition(FixedPositions(head), StoppedClock())
    safe.check(list)

    assert expected == safe.take(parked)


def test_a_safe_position_is_taken_once():
    """
    A purge is work for the target: it is repeated only when a head has moved.
    """
    safe = SafePosition(FixedPositions("5"), StoppedClock())
    safe.check(list)

    assert ("5", None) == (safe.take(None), safe.take(None))


class Purging(MemorySink):
    """Keeps the safe positions that it is given."""

    def __init__(self):
        super().__init__()
        self.safe = []

    def apply(self, batch):
        self.safe.append(batch.safe)
        super().apply(batch)


def test_a_batch_purges_no_tombstone_above_a_dead_letter():
    """
    The record that became a dead letter in a batch holds back the next one.
    """
    context = context_of(Letters(), heads=FixedPositions(BEHIND_EVERYTHING))
    sink = Purging()
    writer = RecordWriter(ROUTES, sink, context)
    writer.write_left(table(row(3, "z")), 0)
    context.safe.check(list)
    lowest = context.parked.lowest()
    held = context_of(
        Letters(), parked=context.parked, heads=FixedPositions(BEHIND_EVERYTHING)
    )
    RecordWriter(ROUTES, sink, held).write_left(table(row(4, "c", order=8)), 1)

    assert [BEHIND_EVERYTHING, lowest] == sink.safe
    assert lowest is not None
