"""The loop over fakes of its ports: confirmation, limits, and its other duties."""

from itertools import pairwise

import orjson
import pytest

from support.relay_bench import (
    EVERYTHING_VISIBLE,
    FAR,
    START,
    Bench,
    Column,
    frames,
    inserted,
    keepalive,
    relation,
    transaction,
)
from towpath.relay.encode.record import Record, partition_of
from towpath.relay.errors import BrokerUnavailableError, DeliveryFailedError
from towpath.relay.loop import BACKLOG_FRAMES, GATHER_S, STATUS_INTERVAL_S
from towpath.relay.recovery.marks import FormerCount
from towpath.relay.snapshot.changed_keys import (
    ChangedKeyFeed,
    ChangedKeys,
    ChangeOutcome,
)
from towpath.relay.snapshot.protocol import SignalStored, VisibilityRead
from towpath.relay.wal.messages import Begin, Commit, RelationShape
from towpath.relay.wal.pgoutput import parse_message


def ends() -> list[int]:
    """List the ends of the recorded transactions."""
    messages = [parse_message(frame, 25) for frame in frames()]
    return [m.end_lsn for m in messages if isinstance(m, Commit)]


def test_a_keepalive_inside_a_transaction_confirms_nothing():
    """
    A position sent within a transaction does not move the confirmed LSN.
    """
    bench = Bench()
    for frame in frames()[:4]:
        bench.stream.reads += [[frame], [keepalive(reply=True)]]
    bench.turn(20)

    assert START == bench.confirmed


def test_a_keepalive_after_an_unacknowledged_record_confirms_nothing():
    """
    While Kafka is silent, the server's position does not move the confirmed LSN.
    """
    bench = Bench()
    bench.producer.is_answering = False
    bench.stream.reads += [frames()[:5], [keepalive(reply=True)]]
    bench.turn(20)

    assert START == bench.confirmed


def test_an_acknowledged_and_visible_transaction_is_confirmed():
    """
    The end of the last complete transaction is confirmed.
    """
    bench = Bench()
    bench.stream.reads.append(frames())
    bench.turn(20)

    assert ends()[-1] == bench.confirmed


def test_an_invisible_transaction_is_not_confirmed():
    """
    An acknowledged transaction waits until a snapshot is known to see it.
    """
    bench = Bench()
    bench.reader.is_answering = False
    bench.stream.reads += [frames()[:5], [keepalive(reply=True)]]
    bench.turn(20)
    before = bench.confirmed
    bench.reader.waiting.append(VisibilityRead(EVERYTHING_VISIBLE))
    bench.turn(3)

    assert (START, ends()[0]) == (before, bench.confirmed)


def test_idle_traffic_moves_the_confirmed_lsn():
    """
    With nothing open or in flight, the server's position is confirmed.
    """
    bench = Bench()
    bench.stream.reads += [frames(), [], [], [], [keepalive()]]
    bench.turn(20)

    assert FAR == bench.confirmed


def test_at_the_limit_reading_stops_and_feedback_continues():
    """
    If Kafka is silent, reading stops at the limit; periodic status updates continue.
    """
    bench = Bench(max_in_flight_bytes=1000)
    bench.producer.is_answering = False
    bench.stream.reads += [[frame] for frame in frames()]
    began_s = bench.clock.now_s
    bench.turn(1500)
    waited_s = bench.clock.now_s - began_s
    unread = len(bench.stream.reads)

    assert (True, True, True) == (
        unread > 20,
        len(bench.stream.confirmed) >= waited_s / STATUS_INTERVAL_S - 1,
        waited_s > 3 * STATUS_INTERVAL_S,
    )


def test_only_a_limited_number_of_transactions_follows_a_held_one():
    """
    While a signal cannot be stored, reading stops after this many transactions.
    """
    bench = Bench()
    bench.pipeline.max_unsettled = 2
    bench.stream.reads.append(signal_frames())
    bench.turn(5)
    bench.stream.reads += [[frame] for frame in frames()]
    bench.turn(200)
    unread = len(bench.stream.reads)
    bench.reader.waiting.append(SignalStored("s1", is_new=True))
    bench.turn(400)

    assert (True, 0) == (unread > 20, len(bench.stream.reads))


def test_below_the_limit_reading_continues():
    """
    When Kafka responds again, the rest of the stream is read, and nothing is missing.
    """
    bench = Bench(max_in_flight_bytes=1000)
    bench.producer.is_answering = False
    bench.stream.reads += [[frame] for frame in frames()]
    bench.turn(50)
    bench.producer.is_answering = True
    bench.turn(200)
    undisturbed = Bench()
    undisturbed.stream.reads.append(frames())
    undisturbed.turn(5)

    assert streamed(undisturbed) == streamed(bench)


def partition(record: Record) -> tuple[str, int]:
    """Return the topic and the partition of a record."""
    if record.key is None:
        return record.topic, record.partition
    return record.topic, partition_of(record.key, 2)


def streamed(bench: Bench) -> list[tuple]:
    """
    List published records, in order for each partition.

    Notifications of rows that are refetched are left out.
    """
    records = sorted(bench.producer.records, key=partition)
    return [
        (record.topic, record.key, record.position)
        for record in records
        if record.topic != "towpath.notifications"
    ]


def test_a_full_producer_queue_is_retried():
    """
    A record that the client could not queue is offered again, and feedback continues.
    """
    bench = Bench()
    bench.producer.room = 1
    bench.stream.reads.append(frames())
    bench.turn(20)

    assert (ends()[-1], 0) == (bench.confirmed, bench.stats.in_flight_bytes)


def test_a_failed_record_ends_the_loop():
    """
    A delivery failure is raised, and nothing is confirmed.
    """
    bench = Bench()
    bench.producer.error = "refused"
    bench.stream.reads.append(frames()[:5])
    with pytest.raises(DeliveryFailedError):
        bench.turn(5)

    assert [START] == (bench.stream.confirmed or [START])


def test_a_schema_is_published_before_its_first_row():
    """
    The recording's first records are the table's schema and then its row.
    """
    bench = Bench()
    bench.stream.reads.append(frames()[:5])
    bench.turn(1)

    assert [
        ("towpath.relations", b"rec.item"),
        ("towpath.rec.item", b'{"a":1,"id":2}'),
    ] == [(r.topic, r.key) for r in bench.producer.records]


def test_an_unchanged_schema_is_published_once():
    """
    A relation message that repeats a schema publishes nothing.
    """
    bench = Bench()
    bench.stream.reads.append(frames())
    bench.turn(1)
    columns_by_key: dict[bytes | None, list[list]] = {}
    for record in bench.producer.records:
        if record.topic == "towpath.relations":
            columns = orjson.loads(record.value or b"")["columns"]
            columns_by_key.setdefault(record.key, []).append(columns)

    assert (True, []) == (
        b"rec.item" in columns_by_key,
        [
            one
            for versions in columns_by_key.values()
            for one, next_ in pairwise(versions)
            if one == next_
        ],
    )


def test_a_large_record_is_a_dead_letter_and_the_rest_is_published():
    """
    A record that its topic refuses is a dead letter.

    It counts as delivered like any other.
    """
    bench = Bench()
    bench.topics.limits["towpath.rec.item"] = 3000
    bench.stream.reads.append(frames())
    bench.turn(20)
    dead = [r for r in bench.producer.records if r.topic == "towpath.dead.relay"]

    assert (1, 1, ends()[-1]) == (
        len(dead),
        total(bench.stats.dead_letters),
        bench.confirmed,
    )


def total(counter: dict[str, int]) -> int:
    """Return the total of a counter."""
    return sum(counter.values())


def test_a_record_without_a_key_gets_the_same_partition_every_time():
    """
    A truncate reaches each partition; a replay chooses the same partitions.
    """
    placed = []
    for _ in range(2):
        bench = Bench()
        bench.stream.reads.append(frames())
        bench.turn(1)
        placed.append([(r.partition, r.key) for r in bench.producer.records])

    assert placed[0] == placed[1]


def test_a_repeated_truncate_reaches_only_the_former_partitions():
    """
    Its records have no place in partitions that were added later.
    """
    first = Bench(partitions=2)
    first.stream.reads.append(frames())
    first.turn(1)
    truncates = [r for r in first.producer.records if r.key is None]
    former = {r.topic: (FormerCount(2, b"f"),) for r in truncates}
    again = Bench(partitions=4, former=former)
    again.stream.reads.append(frames())
    again.turn(1)

    assert (
        sorted((r.topic, r.partition) for r in truncates),
        0,
    ) == (
        sorted((r.topic, r.partition) for r in again.producer.records if r.key is None),
        total(again.stats.dead_letters),
    )


def test_a_repeated_table_event_empties_only_the_former_partitions():
    """
    Its records are those of the first run, and none is a dead letter.
    """
    event = {"schema": "s", "table": "t", "oid": 42, "renamed_to": None}
    event |= {"relay": "towpath", "event": "DROPPED", "on_drop": "truncate"}
    content = orjson.dumps({**event, "empties": True, "is_swept": False})
    head = b"M\x01" + bytes(8) + b"towpath.table\0"
    message = head + len(content).to_bytes(4, "big") + content
    bench = Bench(partitions=4, former={"towpath.s.t": (FormerCount(2, b"f"),)})
    bench.stream.reads.append(transaction(START + 8, message))
    bench.turn(1)
    emptied = [r.partition for r in bench.producer.records if r.topic == "towpath.s.t"]

    assert ([0, 1], 0) == (sorted(emptied), total(bench.stats.dead_letters))


def test_a_stop_completes_only_the_open_transaction():
    """
    The open transaction is completed and confirmed; later ones are streamed again.
    """
    bench = Bench()
    data = frames()
    bench.stream.reads += [data[:3], data[3:], [keepalive()]]
    bench.run(turns=2)

    assert (ends()[0], False) == (bench.confirmed, bench.stats.is_streaming)


def test_a_keepalive_after_frames_left_unread_by_a_stop_confirms_nothing():
    """
    The server has sent the unread frames, so its position is beyond them.
    """
    bench = Bench()
    bench.stream.reads += [frames()[:3], frames()[3:]]
    bench.run(turns=2)
    before = bench.confirmed
    bench.stream.reads.append([keepalive()])
    bench.run(turns=5)

    assert (ends()[0], ends()[0]) == (before, bench.confirmed)


def test_a_stop_with_a_silent_broker_ends_in_time():
    """
    Records that Kafka does not acknowledge in time are not confirmed.
    """
    bench = Bench()
    bench.producer.is_answering = False
    bench.stream.reads.append(frames())
    began_s = bench.clock.now_s
    bench.run(turns=2)

    waited_s = bench.clock.now_s - began_s

    assert (START, True, True) == (
        bench.confirmed,
        waited_s < 12,
        len(bench.producer.pending) > 0,
    )


def test_a_stop_with_a_full_client_queue_ends_in_time():
    """
    A record that the client does not accept is not waited for beyond the deadline.
    """
    bench = Bench()
    bench.producer.is_answering = False
    bench.producer.room = 0
    bench.stream.reads.append(frames())
    began_s = bench.clock.now_s
    bench.clock.until_s = began_s + 60
    bench.run(turns=2)

    assert (START, True) == (bench.confirmed, bench.clock.now_s - began_s < 12)


def test_a_server_shutdown_is_not_delayed_by_a_silent_kafka():
    """
    While Kafka stores nothing, a server that is waiting for confirmation is released.
    """
    bench = Bench()
    bench.stream.reads.append(frames())
    bench.turn(20)
    bench.producer.is_answering = False
    bench.stream.reads.append([keepalive(reply=True)])
    bench.turn(4000)
    bench.stream.reads.append([keepalive(reply=True)])
    with pytest.raises(BrokerUnavailableError):
        bench.turn(1)

    assert ends()[-1] == bench.confirmed


def test_a_signal_holds_its_transaction_until_it_is_stored():
    """
    The signal's transaction is confirmed only once its answer is stored.
    """
    bench = Bench()
    bench.stream.reads.append(signal_frames())
    bench.turn(20)
    before = bench.confirmed
    bench.reader.waiting.append(SignalStored("s1", is_new=True))
    bench.turn(20)

    assert (START, FAR + 8) == (before, bench.confirmed)


def signal_frames() -> list[bytes]:
    """Make a transaction that inserts a signal."""
    columns = [Column(name, 25) for name in (b"id", b"type", b"data")]
    shape = relation(99, b"towpath", b"signal", columns)
    return transaction(FAR, shape, inserted(99, (b"s1", b"log", b"{}")))


@pytest.mark.parametrize("skipped", [[], ["c", "u"]])
def test_a_change_without_a_record_causes_its_row_to_be_read_again(skipped: list[str]):
    """
    A change that yields no record drops a read row, which is then read again.
    """
    bench = Bench(skipped_operations=skipped)
    shape = next(m for m in map(parse, frames()) if isinstance(m, RelationShape))
    feed, changed_keys = ChangedKeyFeed(), ChangedKeys()
    feed.recordings.append(changed_keys)
    changed_keys.begin()
    bench.pipeline._snapshots.table_feeds[shape.oid] = feed
    bench.stream.reads.append(frames()[:4])
    bench.turn()
    [key] = changed_keys._by_key

    assert changed_keys.outcome(key, 0, EVERYTHING_VISIBLE) is (
        ChangeOutcome.PARTIAL if skipped else ChangeOutcome.FULL
    )


def test_the_recording_begins_at_the_fixtures_lsn():
    """
    The start LSN of these tests is below the first recorded commit.
    """
    first = next(m for m in map(parse, frames()) if isinstance(m, Begin))

    assert START < first.final_lsn < ends()[-1] < FAR


def parse(frame: bytes) -> object:
    """Decode a frame's message."""
    return parse_message(frame, 25)


@pytest.mark.parametrize(
    ("frames", "waited_s"),
    [(3, GATHER_S), (BACKLOG_FRAMES - 1, GATHER_S), (BACKLOG_FRAMES, 0.0)],
)
def test_frames_are_gathered_at_a_high_rate(frames, waited_s):
    """
    The next read waits briefly, unless there is a backlog or enough time has passed.
    """
    bench = Bench()
    bench.stream.reads += [[keepalive()] * frames, [keepalive()]]
    bench.turn()
    before_s = bench.clock.now_s
    bench.turn()
    gathered_s = bench.clock.now_s - before_s
    bench.clock.now_s += GATHER_S
    bench.stream.reads.append([keepalive()])
    before_s = bench.clock.now_s
    bench.turn()

    assert (waited_s, 0.0) == (
        pytest.approx(gathered_s),
        bench.clock.now_s - before_s,
    )


def test_the_rest_of_a_transaction_is_read_at_once():
    """
    Its records wait only for their own frames.
    """
    bench = Bench()
    begin, *rest = frames()
    bench.stream.reads += [[begin], rest]
    bench.turn()
    before_s = bench.clock.now_s
    bench.turn()

    assert before_s == bench.clock.now_s
