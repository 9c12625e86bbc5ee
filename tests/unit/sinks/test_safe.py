"""The safe position, below which tombstones may be purged."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from support.dead_letters import FixedPositions, Letters, StoppedClock, context_of
from support.kafka_rows import row, table
from support.parked_shop import ROUTES
from towpath.schemas import headers as names
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.sweeps import SafePosition
from towpath.sinks.kafka import offsets
from towpath.sinks.targets.memory import MemorySink

ABOVE_EVERYTHING = "f" * 16


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
def test_a_dead_letter_limits_the_safe_position(head, parked, expected):
    """
    A dead letter can be replayed, however old, so positions above it are not safe.
    """
    safe = SafePosition(FixedPositions(head), StoppedClock())
    safe.check(list)

    assert expected == safe.take(parked)


def test_a_safe_position_is_taken_once():
    """
    A purge burdens the target, so it is repeated only when a head has moved.
    """
    safe = SafePosition(FixedPositions("5"), StoppedClock())
    safe.check(list)

    assert ("5", None) == (safe.take(None), safe.take(None))


class PurgeRecorder(MemorySink):
    """Keeps the safe positions that it is given."""

    def __init__(self):
        super().__init__()
        self.safe = []

    def apply(self, batch):
        self.safe.append(batch.safe)
        super().apply(batch)


def test_a_batch_purges_no_tombstone_above_a_dead_letter():
    """
    A record that became a dead letter in one batch limits the next one.
    """
    context = context_of(Letters(), heads=FixedPositions(ABOVE_EVERYTHING))
    sink = PurgeRecorder()
    writer = RecordWriter(ROUTES, sink, context)
    writer.write_rest(table(row(3, "z")), 0)
    context.safe.check(list)
    lowest = context.parked.lowest()
    held = context_of(
        Letters(), parked=context.parked, heads=FixedPositions(ABOVE_EVERYTHING)
    )
    RecordWriter(ROUTES, sink, held).write_rest(table(row(4, "c", order=8)), 1)

    assert [ABOVE_EVERYTHING, lowest] == sink.safe
    assert lowest is not None


class RetentionPassing:
    """Topics whose first records are deleted between the lookup and the read."""

    def __init__(self, _kafka, _group, settings):
        self._is_at_the_end = settings.get("auto.offset.reset") != "earliest"
        self._topic = ""

    def assign(self, heads):
        """Keep the topic that is read."""
        self._topic = heads[0].topic

    def poll(self, _timeout_s):
        """Return the current first record, or the end of the partition."""
        if self._topic == "kept" or not self._is_at_the_end:
            number = {"kept": 9, "cut": 5}[self._topic]
            position = f"{number:016x}.0000000000".encode()
            headers = [(names.POSITION, position)]
            return SimpleNamespace(error=lambda: None, headers=lambda: headers)
        end = SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
        return SimpleNamespace(error=lambda: end)

    def close(self):
        """Do nothing."""


def test_a_first_record_deleted_meanwhile_is_not_taken_for_an_empty_partition(
    monkeypatch,
):
    """
    Otherwise a tombstone between the two topics' positions would be purged too early.
    """
    bounds = SimpleNamespace(
        first_offsets=lambda _: {"kept": {"0": 1}, "cut": {"0": 1}},
        end_offsets=lambda _: {"kept": {"0": 8}, "cut": {"0": 8}},
    )
    monkeypatch.setattr(offsets, "Topics", lambda _: bounds)
    monkeypatch.setattr(offsets.client, "consumer", RetentionPassing)
    found = offsets.KafkaEarliestPositions(None).lowest_position(["kept", "cut"])

    assert f"{5:016x}.0000000000" == found
