"""
The publisher sends refused records to the dead letters.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from support.copying import replace
from support.relay_bench import Acknowledged
from towpath.relay.encode.dead_letters import (
    NO_KEY,
    NO_SUCH_PARTITION,
    TOO_LARGE,
    TOPIC_REFUSED,
    DeadLetters,
)
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import ANY_PARTITION, Header, Record
from towpath.relay.errors import TopicRefusedError
from towpath.relay.kafka.producer import find_partitioner
from towpath.relay.ports import Outgoing, TopicFacts
from towpath.relay.publish.in_flight import RECORD_BYTES, Delivery, DeliveryLedger
from towpath.relay.publish.publisher import Publisher
from towpath.relay.publish.sender import RecordSender
from towpath.relay.recovery.marks import Published
from towpath.relay.stats import Stats

REFUSED = "a_b"
COMPACTED = "compacted"


class Kafka:
    """Keeps the records of topics with three partitions each; refuses one topic."""

    needs_commit = False

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.outgoing: list[Outgoing] = []
        self.requested: list[str] = []
        self.refused = {REFUSED}
        self.counts: Mapping[str, int] = defaultdict(lambda: 3)
        self.room = 10**9
        self.is_answering = False
        self.timeouts_s: list[float] = []

    def ensure(self, topic: str) -> TopicFacts:
        """Return a topic's facts."""
        self.requested.append(topic)
        if topic in self.refused:
            raise TopicRefusedError(topic)
        return TopicFacts(1000, 3, is_compacted=topic == COMPACTED)

    def ends(self, _topic: str, partition_count: int) -> Mapping[int, int]:
        """Return the end offsets."""
        return dict.fromkeys(range(partition_count), 0)

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        """Accept records until the queue is full."""
        taken = outgoing[: self.room]
        self.outgoing += taken
        self.records += [record for record, _, _ in taken]
        return len(taken)

    def poll(self, timeout_s: float) -> None:
        """Acknowledge nothing."""

    def flush(self, timeout_s: float) -> None:
        """Acknowledge everything, if the test requires it."""
        self.timeouts_s.append(timeout_s)
        if self.is_answering:
            acknowledge_all(self)
            self.outgoing.clear()

    def commit(self) -> None:
        """Commit nothing."""


class Checkpoints:
    """Checkpoints in which every topic already has its first mark."""

    def admit(self, _topic: str, _partition_count: int) -> None:
        """Write no mark."""


def acknowledge_all(
    kafka: Kafka, failing: bytes | None = None, *, since: int = 0
) -> None:
    """Report each record that has a callback; those with a given key fail."""
    for offset, (record, _, on_delivery) in enumerate(kafka.outgoing):
        if on_delivery is not None and offset >= since:
            error = "gone" if record.key == failing else None
            on_delivery(error, Acknowledged(offset))


def deliver(kafka: Kafka, publisher: Publisher) -> None:
    """Acknowledge all records, even those that wait for a partition's first record."""
    publisher.flush()
    reported = 0
    while reported < len(kafka.outgoing):
        count = len(kafka.outgoing)
        acknowledge_all(kafka, since=reported)
        reported = count
        publisher.flush()


def open_partitions(
    kafka: Kafka, publisher: Publisher, ledger: DeliveryLedger, topic: str
) -> None:
    """Deliver a first record to each partition, and forget these records."""
    for partition in range(3):
        first = Record(topic, b"0", b"", [], b"", 9, 100, partition)
        publisher.publish_internal(first, ledger.begin_untracked())
    deliver(kafka, publisher)
    kafka.outgoing.clear()
    kafka.records.clear()
    ledger.unordered_acks.clear()


def make_sender(
    kafka: Kafka, ledger: DeliveryLedger, dead: DeadLetters
) -> RecordSender:
    """Make a sender over a fake Kafka."""
    return RecordSender(kafka, kafka, ledger, dead, find_partitioner())


def make_publisher(
    kafka: Kafka, ledger: DeliveryLedger, dead: DeadLetters, stats: Stats
) -> Publisher:
    """Make a publisher over a fake Kafka."""
    sender = make_sender(kafka, ledger, dead)
    published = Published({})
    return Publisher(sender, ledger, stats, published, Checkpoints(), lambda: None)


def start_publisher() -> tuple[Kafka, DeliveryLedger, Publisher]:
    """Make a publisher with a fake Kafka and a ledger."""
    kafka, ledger, stats = Kafka(), DeliveryLedger(0), Stats()
    dead = DeadLetters("towpath", stats.count_dead_letter, ParkedAggregates(10))
    return kafka, ledger, make_publisher(kafka, ledger, dead, stats)


def publish_twice(
    topic: str,
    *,
    partition: int = ANY_PARTITION,
    size: int = 100,
    is_event: bool = True,
) -> tuple[Kafka, Stats, ParkedAggregates]:
    """Publish one record twice, at two positions."""
    kafka, stats, parked = Kafka(), Stats(), ParkedAggregates(10)
    dead = DeadLetters("towpath", stats.count_dead_letter, parked)
    ledger = DeliveryLedger(0)
    publisher = make_publisher(kafka, ledger, dead, stats)
    headers: list[Header] = [("aggregate_type", b"order")] if is_event else []
    for position in (b"P.1", b"P.2"):
        record = Record(topic, b"42", b"v", headers, position, 9, size, partition)
        publisher.publish_change(record, ledger.begin())
    deliver(kafka, publisher)
    return kafka, stats, parked


@pytest.mark.parametrize(
    ("topic", "partition", "size", "reason"),
    [
        ("e", 3, 100, NO_SUCH_PARTITION),
        (REFUSED, ANY_PARTITION, 100, TOPIC_REFUSED),
        ("e", ANY_PARTITION, 1001, TOO_LARGE),
    ],
)
def test_an_event_refused_by_its_topic_is_a_dead_letter(
    topic: str, partition: int, size: int, reason: str
):
    """
    The dead letter has its reason and is counted; its aggregate is parked.
    """
    kafka, stats, parked = publish_twice(topic, partition=partition, size=size)

    assert (["towpath.dead.relay"] * 2, {reason: 2}, True, {-1}) == (
        [record.topic for record in kafka.records],
        dict(stats.dead_letters),
        parked.holds("order", b"42", b"P.2"),
        {record.partition for record in kafka.records},
    )


@pytest.mark.parametrize("partition", [ANY_PARTITION, 0, 2])
def test_an_event_goes_to_the_partition_that_it_requests(partition: int):
    """
    An event without a partition is left to the partitioner.
    """
    kafka, stats, _ = publish_twice("e", partition=partition)

    assert ([("e", partition)] * 2, 0) == (
        [(record.topic, record.partition) for record in kafka.records],
        stats.dead_letters.total(),
    )


def test_a_poll_sends_queued_records():
    """
    Records that no flush has handed over do not wait for the next read.
    """
    kafka, ledger, stats = Kafka(), DeliveryLedger(0), Stats()
    dead = DeadLetters("towpath", stats.count_dead_letter, ParkedAggregates(10))
    sender = make_sender(kafka, ledger, dead)
    publisher = Publisher(
        sender, ledger, stats, Published({}), Checkpoints(), lambda: None
    )
    record = Record("e", b"42", b"v", [], b"P.1", 9, 100)
    publisher.publish_change(record, ledger.begin())
    sender.poll(0)

    assert [b"42"] == [sent.key for sent in kafka.records]


def test_a_record_without_a_key_is_not_sent_to_a_compacted_topic():
    """
    Brokers refuse it permanently, so it is a dead letter and is not retried.
    """
    kafka, stats, parked = Kafka(), Stats(), ParkedAggregates(10)
    dead = DeadLetters("towpath", stats.count_dead_letter, parked)
    ledger = DeliveryLedger(0)
    publisher = make_publisher(kafka, ledger, dead, stats)
    truncate = Record(COMPACTED, None, b"t", [], b"P", 9, 100, 1)
    publisher.publish_change(truncate, ledger.begin())
    publisher.publish_change(replace(truncate, key=b"42"), ledger.begin())
    publisher.flush()

    assert (["towpath.dead.relay", COMPACTED], {NO_KEY: 1}) == (
        [record.topic for record in kafka.records],
        dict(stats.dead_letters),
    )


def test_a_read_row_without_a_key_is_not_sent_to_a_compacted_topic():
    """
    A broker would refuse it at each attempt; the snapshot is notified of the row.
    """
    kafka, stats, parked = Kafka(), Stats(), ParkedAggregates(10)
    dead = DeadLetters("towpath", stats.count_dead_letter, parked)
    ledger = DeliveryLedger(0)
    publisher = make_publisher(kafka, ledger, dead, stats)
    rows = [Record(COMPACTED, key, b"r", [], b"P", 9, 100) for key in (b"1", None)]
    refused = publisher.publish_reads(rows, ledger.begin_untracked())
    publisher.flush()

    assert ([1], [COMPACTED, "towpath.dead.relay"], {NO_KEY: 1}) == (
        refused,
        [record.topic for record in kafka.records],
        dict(stats.dead_letters),
    )


def test_a_read_event_for_a_missing_partition_is_a_dead_letter():
    """
    The client refuses such a record, which would halt the relay at each start.
    """
    kafka, stats, parked = Kafka(), Stats(), ParkedAggregates(10)
    dead = DeadLetters("towpath", stats.count_dead_letter, parked)
    ledger = DeliveryLedger(0)
    publisher = make_publisher(kafka, ledger, dead, stats)
    rows = [Record("e", b"1", b"r", [], b"P", 9, 100, at) for at in (2, 3)]
    refused = publisher.publish_reads(rows, ledger.begin_untracked())
    publisher.flush()

    assert ([1], ["e", "towpath.dead.relay"], {NO_SUCH_PARTITION: 1}) == (
        refused,
        [record.topic for record in kafka.records],
        dict(stats.dead_letters),
    )


def test_a_refused_topic_is_requested_once():
    """
    Many events for a refused topic cost one request to Kafka.
    """
    kafka, _, _ = publish_twice(REFUSED)

    assert [REFUSED, "towpath.dead.relay"] == kafka.requested


def test_a_topic_that_is_no_longer_refused_gets_events_once_it_is_known():
    """
    A snapshot's rows show that the topic is accepted now; later events go to it, too.
    """
    kafka, ledger, publisher = start_publisher()
    headers: list[Header] = [("aggregate_type", b"order")]
    event = Record(REFUSED, b"1", b"v", headers, b"P", 9, 100)
    publisher.publish_change(event, ledger.begin())
    kafka.refused = set()
    publisher.publish_reads([event], ledger.begin_chunk(1))
    publisher.publish_change(event, ledger.begin())
    deliver(kafka, publisher)

    assert ["towpath.dead.relay", REFUSED, REFUSED] == [
        record.topic for record in kafka.records
    ]


def test_a_refused_topic_of_a_table_halts_the_relay():
    """
    All rows of the table would be dead letters, so the operator must rename the topic.
    """
    with pytest.raises(TopicRefusedError):
        publish_twice(REFUSED, is_event=False)


def publish_chunk(*records: Record) -> tuple[Kafka, Stats, Delivery, DeliveryLedger]:
    """Publish records of a chunk, all at once."""
    kafka, stats = Kafka(), Stats()
    dead = DeadLetters("towpath", stats.count_dead_letter, ParkedAggregates(10))
    ledger = DeliveryLedger(0)
    publisher = make_publisher(kafka, ledger, dead, stats)
    for topic in {record.topic for record in records} | {"towpath.dead.relay"}:
        open_partitions(kafka, publisher, ledger, topic)
    delivery = ledger.begin_chunk(1)
    publisher.publish_reads(records, delivery)
    publisher.flush()
    return kafka, stats, delivery, ledger


PLAIN = Record("rows", b"1", b"value", [], b"P", 9, 100)
ROWS = [PLAIN, replace(PLAIN, key=b"2", value=b"longer value")]


def test_the_last_row_of_each_partition_reports_the_rows_of_a_chunk():
    """
    After all acknowledgements nothing is in flight, and the chunk is delivered.
    """
    rows = [*ROWS, PLAIN]
    kafka, stats, delivery, ledger = publish_chunk(*rows)
    in_flight_bytes = ledger.in_flight_bytes
    ledger.end_chunk(1)
    callbacks = [on_delivery for _, _, on_delivery in kafka.outgoing]
    acknowledge_all(kafka)

    assert (rows, [0, 2, 0], 3, 22 + 3 * RECORD_BYTES) == (
        kafka.records,
        [partition for _, partition, _ in kafka.outgoing],
        stats.records,
        in_flight_bytes,
    )
    assert [True, False, False] == [each is None for each in callbacks]
    assert (0, 0, (1,), [("rows", 0), ("rows", 2)]) == (
        ledger.in_flight_bytes,
        delivery.pending,
        ledger.take_delivered(),
        sorted(ledger.unordered_acks),
    )


def test_a_failed_row_of_a_chunk_is_a_failure():
    """
    The failure counts, however many other rows are acknowledged.
    """
    kafka, _, delivery, ledger = publish_chunk(*ROWS)
    acknowledge_all(kafka, failing=b"1")

    assert ("gone", 2) == (ledger.failure, delivery.pending)


def test_streamed_and_other_records_of_a_partition_share_a_batch():
    """
    The acknowledgement of the last one has the last position of the stream.
    """
    kafka, ledger, publisher = start_publisher()
    open_partitions(kafka, publisher, ledger, PLAIN.topic)
    change, chunk = ledger.begin(), ledger.begin_chunk(1)
    for position in (b"P.1", b"P.2"):
        publisher.publish_change(replace(PLAIN, position=position), change)
    publisher.publish_reads([PLAIN, PLAIN], chunk)
    publisher.flush()
    acknowledge_all(kafka)
    position, last = ledger.ordered_acks["rows", 0]

    assert (b"P.2", 3, {}) == (position, last.offset(), ledger.unordered_acks)
    assert (0, 1, 0) == (change.pending, chunk.pending, ledger.in_flight_bytes)


def test_the_first_record_of_a_partition_is_sent_alone():
    """
    A broker would accept a producer's second batch even if it had refused the first.

    All later records of the partition wait for its acknowledgement.
    """
    kafka, ledger, publisher = start_publisher()
    transaction = ledger.begin()
    sent = []
    for number in (1, 2, 3):
        for key in (b"1", b"2", b"7"):
            value = b"%s of %d" % (key, number)
            record = replace(PLAIN, key=key, value=value, position=value)
            publisher.publish_change(record, transaction)
        publisher.flush()
        sent.append([record.value for record in kafka.records])
    acknowledge_all(kafka)
    in_flight_bytes, pending = ledger.in_flight_bytes, transaction.pending
    publisher.flush()
    partitions = [partition for _, partition, _ in kafka.outgoing]
    first = [r.value for r, partition, _ in kafka.outgoing if partition == 0]
    acknowledge_all(kafka, since=2)

    # If a single record is handed over, it is also the last of its batch.
    assert ([[b"1 of 1", b"2 of 1"]] * 3, 8) == (sent, pending)
    assert in_flight_bytes > 0
    assert (6, 3) == (partitions.count(0), partitions.count(2))
    assert [b"1 of 1", b"7 of 1", b"1 of 2", b"7 of 2", b"1 of 3", b"7 of 3"] == first
    assert (0, 0) == (transaction.pending, ledger.in_flight_bytes)


def test_a_drain_delivers_records_that_wait_for_a_first_record():
    """
    A stop leaves nothing in flight.
    """
    kafka, ledger, publisher = start_publisher()
    kafka.is_answering = True
    for position in (b"1", b"2", b"3"):
        publisher.publish_change(replace(PLAIN, position=position), ledger.begin())
    left_s = iter((10.0, 2.0))
    publisher.drain(SimpleNamespace(remaining_s=lambda: next(left_s)))

    assert (3, 0) == (len(kafka.records), ledger.in_flight_bytes)
    # The second wait has only the time that the first one left.
    assert [10.0, 2.0] == kafka.timeouts_s


def test_a_refused_first_record_is_not_followed_by_others():
    """
    The failure counts at once, although the batch's end was never sent.
    """
    kafka, ledger, publisher = start_publisher()
    for position in (b"1", b"2"):
        publisher.publish_change(replace(PLAIN, position=position), ledger.begin())
    publisher.flush()
    acknowledge_all(kafka, failing=PLAIN.key)
    publisher.flush()

    assert (1, "gone") == (len(kafka.outgoing), ledger.failure)


def test_records_that_do_not_fit_keep_their_order_and_their_callbacks():
    """
    The producer accepts one at a time; records that arrive meanwhile follow.
    """
    stats = Stats()
    dead = DeadLetters("towpath", stats.count_dead_letter, ParkedAggregates(10))
    kafka, ledger = Kafka(), DeliveryLedger(0)
    kafka.room = 1
    sender = make_sender(kafka, ledger, dead)
    first, second = ledger.begin_untracked(), ledger.begin_untracked()
    sender.send(PLAIN, first)
    acknowledge_all(kafka)
    kafka.outgoing.clear()
    for position in (b"1", b"2"):
        sender.queued.append((replace(PLAIN, value=position), first, position))
    taken = [sender.send_queued()]
    sender.queued.append((replace(PLAIN, value=b"3"), second, b"3"))
    taken += [sender.send_queued() for _ in range(3)]

    assert [False, False, True, True] == taken
    assert [(b"1", True), (b"2", False), (b"3", False)] == [
        (record.value, on_delivery is None) for record, _, on_delivery in kafka.outgoing
    ]


@pytest.mark.parametrize(
    ("odd", "produced"),
    [
        ({"size": 1001}, ("towpath.dead.relay", b"2", -1)),
        ({"key": None}, ("rows", None, 1)),
        ({"partition": 1}, ("rows", b"2", 1)),
        ({"topic": "others"}, ("others", b"2", -1)),
    ],
)
def test_an_unusual_row_of_a_chunk_is_handled_alone(odd: dict, produced: tuple):
    """
    Its neighbors are published normally, in their order.
    """
    kafka, _, delivery, _ = publish_chunk(
        PLAIN, replace(replace(PLAIN, key=b"2"), **odd), PLAIN
    )

    assert ([("rows", b"1", -1), produced, ("rows", b"1", -1)], 4) == (
        [(record.topic, record.key, record.partition) for record in kafka.records],
        delivery.pending,
    )


def test_an_empty_slice_of_a_chunk_publishes_nothing():
    """
    The last slice of a chunk may be empty.
    """
    kafka, _, delivery, _ = publish_chunk()

    assert ([], 1) == (kafka.records, delivery.pending)


def test_the_sender_names_the_partitions_that_it_will_choose():
    """
    A record without a key may go to any partition.
    """
    kafka, ledger, stats = Kafka(), DeliveryLedger(0), Stats()
    dead = DeadLetters("towpath", stats.count_dead_letter, ParkedAggregates(10))
    sender = make_sender(kafka, ledger, dead)
    keys = [b"%d" % number for number in range(9)]
    for key in keys:
        sender.send(Record("t.s.a", key, b"v", [], b"", 9, 100), Delivery(ledger))
        acknowledge_all(kafka, since=len(kafka.outgoing) - 1)
    chosen = {record.key: partition for record, partition, _ in kafka.outgoing}

    assert ([chosen[key] for key in keys], ()) == (
        sender.partitions_of(keys, 3),
        sender.partitions_of([b"1", None], 3),
    )
