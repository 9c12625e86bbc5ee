"""
The publisher: produces the records of stream and snapshots; waits if Kafka is slow.

Sizes are checked against the topic's limit before producing; a record that is too large
becomes a dead letter, so that the broker refuses none for its size, unless the limit
has been lowered meanwhile. While there is no room, the loop's duties (feedback above
all) continue through ``run_duties``.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final

from towpath.relay.encode.dead_letters import (
    NO_KEY,
    NO_SUCH_PARTITION,
    TOPIC_REFUSED,
    is_event,
)
from towpath.relay.encode.record import (
    ANY_PARTITION,
    Record,
    barrier_records,
    partition_of,
    place_keyless,
)
from towpath.relay.errors import TopicRefusedError
from towpath.relay.ports import TopicFacts
from towpath.relay.publish.checkpoints import CheckpointWriter
from towpath.relay.publish.in_flight import RECORD_BYTES, Delivery, DeliveryLedger
from towpath.relay.publish.sender import RecordSender, refusal_of
from towpath.relay.recovery.marks import Published
from towpath.relay.stats import Stats
from towpath.schemas.clock import Deadline

# The longest wait for room before the loop's duties run again.
WAIT_S: Final = 0.05

# A bound on the cached names of refused topics, each requested once while cached.
_MAX_REFUSED_TOPICS: Final = 1024

_TOPIC: Final = attrgetter("topic")
_KEY: Final = attrgetter("key")
_SIZE: Final = attrgetter("size")
_PARTITION: Final = attrgetter("partition")


class Publisher:
    """Publishes the records of the stream and of snapshots."""

    def __init__(
        self,
        sender: RecordSender,
        ledger: DeliveryLedger,
        stats: Stats,
        published: Published,
        checkpoints: CheckpointWriter,
        run_duties: Callable[[], None],
    ) -> None:
        """
        Create the publisher.

        Args:
            sender: Gives records to the producer.
            ledger: The deliveries in flight.
            stats: Counts records and duplicates.
            published: The records that Kafka holds from before the session.
            checkpoints: Writes the first mark of each topic.
            run_duties: Runs the loop's duties, between two waits for room.
        """
        self._sender = sender
        # Appended to directly: a call per record would cost a tenth of the time.
        self._queued = sender.queued
        self._ledger = ledger
        self._dead = sender.dead
        self._stats = stats
        self._checkpoints = checkpoints
        self._run_duties = run_duties
        # The size limit of records, by topic; only for topics with a first mark.
        self._limits: dict[str, int] = {}
        self._refused: set[str] = set()
        # Set only while the stream repeats records from before a crash.
        self._published = published if published.horizon else None
        # Topics whose streamed records still belong to a former partition count.
        self._former = dict(published.former)
        # For records that no transaction waits for, such as notifications of snapshots.
        self._untracked = ledger.begin_untracked()

    def publish_change(self, record: Record, delivery: Delivery) -> None:
        """
        Queue a streamed record, which ``flush`` gives to the producer.

        A record that Kafka already holds from before a crash is not published again.

        Raises:
            DeliveryFailedError: A record could not be delivered.
            UnavailableError: The topic is new and Kafka cannot be reached.
        """
        topic, key, value, _, position, _, size, partition = record
        if (
            size > self._limits.get(topic, 0)
            or key is None
            or partition != ANY_PARTITION
            or self._published is not None
        ):
            prepared = self._prepare(record)
            if prepared is None:
                return
            record, value, position = prepared, prepared.value, prepared.position
        delivery.pending += 1
        self._ledger.in_flight_bytes += len(value or b"") + RECORD_BYTES
        self._queued.append((record, delivery, position))
        self._stats.records += 1

    def partition_count(self, topic: str, position: bytes) -> int:
        """Return how many partitions a topic has at a streamed record's position."""
        for former in self._former.get(topic, ()):
            if position <= former.until:
                return former.partition_count
        return self._sender.facts(topic).partition_count

    def fits(self, record: Record) -> bool:
        """Return whether a record goes to its own topic, not to the dead letters."""
        facts = self._sender.facts(record.topic)
        if record.topic == self._dead.topic or record.size > facts.limit_bytes:
            return False
        return refusal_of(record, facts) is None

    def publish_unordered(
        self, record: Record, delivery: Delivery | None = None
    ) -> None:
        """
        Produce a record outside the stream's order: READ, schema, notification.

        Raises:
            DeliveryFailedError: A record could not be delivered.
            UnavailableError: The topic is new and Kafka cannot be reached.
        """
        self.publish_internal(record, delivery)
        self._stats.records += 1

    def publish_reads(
        self, records: Sequence[Record], delivery: Delivery
    ) -> Sequence[int]:
        """
        Queue the records of a slice of a chunk. Hot path.

        Returns:
            The indexes of the records that are dead letters.

        Raises:
            DeliveryFailedError: A record could not be delivered.
            UnavailableError: The topic is new and Kafka cannot be reached.
        """
        if not self._are_plain(records):
            refused = [at for at, one in enumerate(records) if not self.fits(one)]
            for record in records:
                self.publish_unordered(record, delivery)
            return refused
        delivery.expect_all([record.value or b"" for record in records])
        self._queued += zip(records, repeat(delivery), repeat(b""))
        self._stats.records += len(records)
        return ()

    def publish_internal(
        self, record: Record, delivery: Delivery | None = None
    ) -> None:
        """
        Produce an uncounted record of the relay itself: heartbeat, barrier, skip.

        Raises:
            DeliveryFailedError: A record could not be delivered.
            UnavailableError: The topic is new and Kafka cannot be reached.
        """
        self._sender.send(record, self._untracked if delivery is None else delivery)
        self.flush()

    def flush(self) -> None:
        """
        Give queued records to the producer, and wait while there is no room.

        Call order: after the messages of each read, and the rows of each turn. The
        records of a backlog then reach the client together and fill its batches, which
        saves broker and client most of their work.

        Raises:
            DeliveryFailedError: A record could not be delivered.
        """
        while not self._sender.send_queued():
            self._wait()

    def drain(self, deadline: Deadline) -> None:
        """
        Wait until all records are acknowledged, or the deadline passes.

        Raises:
            DeliveryFailedError: A record could not be delivered.
        """
        self.flush()
        self._sender.drain(deadline)

    def _wait(self) -> None:
        self._sender.poll(WAIT_S)
        self._run_duties()

    def _are_plain(self, records: Sequence[Record]) -> bool:
        """Return whether all records go to one topic, unchanged, partitioned by key."""
        topics = set(map(_TOPIC, records))
        is_one = len(topics) == 1 and self._dead.topic not in topics
        if not is_one or None in map(_KEY, records):
            return False
        limit_bytes = self._sender.facts(records[0].topic).limit_bytes
        partitions = set(map(_PARTITION, records))
        return max(map(_SIZE, records)) <= limit_bytes and partitions == {ANY_PARTITION}

    def _prepare(self, record: Record) -> Record | None:
        """
        Return the record to produce; None if Kafka already has it.

        Called for the first record of a topic; for a record that is large, has no key
        or has an explicit partition; and for every record while the topic has a former
        partition count, or while records are repeated after a crash.
        """
        record, facts = self._with_facts(record)
        if record.partition >= self.partition_count(record.topic, record.position):
            record, facts = self._dead_letter(record, NO_SUCH_PARTITION)
        if record.key is None and facts.is_compacted:
            record, facts = self._dead_letter(record, NO_KEY)
        if record.size > facts.limit_bytes:
            record, facts = self._sender.large_dead_letter(record, facts)
        if record.topic not in self._limits:
            self._admit(record.topic, facts)
        record = self._place(record, facts)
        return None if self._is_published(record, facts) else record

    def _place(self, record: Record, facts: TopicFacts) -> Record:
        """
        Set the partition of a record that the sender would place wrongly.

        These are records without a key, and those under a former partition count.
        """
        former = self._former.get(record.topic)
        if former is None:
            return place_keyless(record, facts.partition_count)
        if record.position > former[-1].until:
            self._end_former_count(record.topic, facts)
        count = self.partition_count(record.topic, record.position)
        if record.partition == ANY_PARTITION and record.key is not None:
            return record._replace(partition=partition_of(record.key, count))
        return place_keyless(record, count)

    def _end_former_count(self, topic: str, facts: TopicFacts) -> None:
        """Write barriers between the records of the former and the current count."""
        del self._former[topic]
        self._limits[topic] = facts.limit_bytes
        barriers = self._ledger.begin_untracked()
        records = barrier_records(
            topic, facts.partition_count, is_compacted=facts.is_compacted
        )
        for record in records:
            self.publish_internal(record, barriers)
        self._checkpoints.end_former_count(topic, barriers)

    def _with_facts(self, record: Record) -> tuple[Record, TopicFacts]:
        """Return a record and its topic's facts; refused events become dead letters."""
        topic = record.topic
        known = self._sender.known_facts(topic)
        if known is not None:
            return record, known
        if topic not in self._refused:
            try:
                return record, self._sender.facts(topic)
            except TopicRefusedError:
                if not is_event(record):
                    raise
            if len(self._refused) >= _MAX_REFUSED_TOPICS:
                self._refused.clear()
            self._refused.add(topic)
        return self._dead_letter(record, TOPIC_REFUSED)

    def _dead_letter(self, record: Record, reason: str) -> tuple[Record, TopicFacts]:
        dead = self._dead
        return dead.of_record(record, reason), self._sender.facts(dead.topic)

    def _admit(self, topic: str, facts: TopicFacts) -> None:
        """Store a topic's first mark before its first streamed record is produced."""
        mark = self._checkpoints.admit(topic, facts.partition_count)
        while mark is not None and mark.pending:
            self._wait()
        if topic not in self._former:
            self._limits[topic] = facts.limit_bytes

    def _is_published(self, record: Record, facts: TopicFacts) -> bool:
        """Return whether Kafka holds the record from before a crash."""
        published = self._published
        if published is None or record.position > published.horizon:
            self._published = None
            return False
        partition = record.partition
        if partition == ANY_PARTITION and record.key is not None:
            partition = partition_of(record.key, facts.partition_count)
        if not published.has(record.topic, partition, record.position):
            return False
        self._stats.duplicates += 1
        return True
