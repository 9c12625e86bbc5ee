"""The heartbeat in a checkpoint that proves that a source has all published changes."""

import struct

import orjson
import pytest

from support.relay_bench import (
    START,
    STATE,
    Bench,
    Clock,
    Column,
    Producer,
    inserted,
    relation,
    transaction,
)
from towpath.relay.publish.checkpoints import MARKS_INTERVAL_S
from towpath.relay.recovery.marks import Confirmed

ITEM = relation(7, b"rec", b"item", [Column(b"id", 23, is_key=True)])


class CheckpointRecorder(Producer):
    """A producer that also records the stored checkpoints."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.checkpoints: list[Confirmed] = []

    def produce(self, outgoing) -> int:
        for record, _, _ in outgoing:
            if (record.topic, record.key) == (STATE, b"confirmed"):
                self.checkpoints.append(Confirmed(**orjson.loads(record.value)))
        return super().produce(outgoing)


def heartbeat(counter: int, relay: str = "towpath") -> bytes:
    """Make the message of a heartbeat."""
    content = orjson.dumps({"counter": counter, "run": "r", "relay": relay})
    head = b"M\x01" + struct.pack(">Q", 0) + b"towpath.heartbeat\0"
    return head + struct.pack(">I", len(content)) + content


def row(number: int) -> bytes:
    """Make the message of an inserted row, which is published."""
    return inserted(7, (b"%d" % number,))


@pytest.mark.parametrize(
    ("messages", "heartbeats"),
    [
        ([row(1)], (0, None)),
        ([heartbeat(4), row(1)], (4, None)),
        ([row(1), heartbeat(5), heartbeat(6)], (6, 5)),
        ([row(1), heartbeat(5), row(2)], (5, None)),
        ([row(1), heartbeat(5), row(2), heartbeat(6)], (6, 6)),
        ([heartbeat(6), row(1), heartbeat(5)], (6, None)),
        ([heartbeat(6), row(1), heartbeat(6)], (6, None)),
        ([row(1), heartbeat(9, relay="other")], (0, None)),
    ],
    ids=[
        "no heartbeat",
        "before",
        "the first after",
        "not after the last",
        "after the last",
        "falls",
        "repeats",
        "of a different relay",
    ],
)
def test_a_checkpoint_has_a_heartbeat_that_follows_the_last_published_record(
    messages: list[bytes], heartbeats: tuple[int, int | None]
):
    """
    Each message is its own transaction, whose records are acknowledged at once.
    """
    producer = CheckpointRecorder()
    bench = Bench(producer=producer)
    bench.stream.reads.append(transaction(START + 80, ITEM))
    for number, message in enumerate(messages, start=2):
        bench.stream.reads.append(transaction(START + 80 * number, message))
        bench.turn(5)
        bench.clock.now_s += MARKS_INTERVAL_S
    bench.turn(5)
    last = producer.checkpoints[-1]

    assert heartbeats == (last.heartbeat, last.following_heartbeat)


def test_a_heartbeat_before_a_record_in_flight_does_not_count_as_following():
    """
    The heartbeat follows every acknowledged record, but a later record is in flight.
    """
    producer = CheckpointRecorder()
    bench = Bench(producer=producer)
    bench.stream.reads.append(transaction(START + 80, ITEM, row(1)))
    bench.turn(5)
    producer.is_answering = False
    bench.stream.reads += [
        transaction(START + 160, heartbeat(1)),
        transaction(START + 240, row(2)),
    ]
    bench.turn(5)
    producer.is_answering = True
    bench.clock.now_s += MARKS_INTERVAL_S
    bench.turn(20)

    assert None is producer.checkpoints[-1].following_heartbeat


def test_a_heartbeat_follows_only_the_records_of_its_checkpoint():
    """
    Records that a crashed relay published after the checkpoint are found in the topics.
    """
    checkpoint = Confirmed(80, 1080, 1090, 6, False, "then", following_heartbeat=5)

    assert (5, 5, None) == tuple(
        checkpoint.heartbeat_after(log_lsn) for log_lsn in (1080, 1090, 1098)
    )
