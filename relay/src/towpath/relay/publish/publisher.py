"""
The publisher: every record passes here, and waits here while Kafka takes no more.

Sizes are checked against the topic's limit before producing; a record that is too large
becomes a dead letter, so that none can be refused for its size later. While there is no
room, the loop's own duties (feedback above all) continue through ``while_waiting``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Final

from towpath.relay.encode.dead_letters import (
    NO_KEY,
    NO_SUCH_PARTITION,
    TOPIC_REFUSED,
    DeadLetters,
    is_event,
)
from towpath.relay.encode.record import (
    ANY_PARTITION,
    Record,
    barrier_records,
    partition_of,
    place_keyless,
)
from towpath.relay.errors import DeliveryFailedError, TopicRefusedError
from towpath.relay.ports import Outgoing, RecordProducer, TopicCatalog, TopicFacts
from towpath.relay.publish.in_flight import RECORD_BYTES, Delivery, DeliveryLedger
from towpath.relay.recovery.marks import Published
from towpath.relay.stats import Stats

# How long one wait for room lasts before the loop's duties are looked after again.
WAIT_S: Final = 0.05

# Names of topics that Kafka refuses: each is asked for once, within this bound.
_REMEMBERED: Final = 1024

_TOPIC: Final = attrgetter("topic")
_KEY: Final = attrgetter("key")
_SIZE: Final = attrgetter("size")
_PARTITION: Final = attrgetter("partition")

# Finds a topic's end offsets, by partition.
FindEnds = Callable[[], Mapping[int, int]]
# Takes a topic in before its first streamed record: name, partition count, ends.
Admit = Callable[[str, int, FindEnds], None]


class Publisher:
    """Hands records to the producer, within the bound of bytes on their way."""

    def __init__(
        self,
        producer: RecordProducer,
        catalog: TopicCatalog,
        ledger: DeliveryLedger,
        dead: DeadLetters,
        stats: Stats,
        published: Published,
    ) -> None:
        self.while_waiting: Callable[[], None] = _do_nothing
        self.admit: Admit = _admit_all
        # How often everything acknowledged until then was made visible.
        self.commits = 0
        self._producer = producer
        self._produce = producer.produce
        self._outgoing: list[Outgoing] = []
        self._catalog = catalog
        self._ledger = ledger
        self._dead = dead
        self._stats = stats
        self._facts: dict[str, TopicFacts] = {}
        # Of the topics that have their first mark: what a record may take.
        self._limits: dict[str, int] = {}
        self._refused: set[str] = set()
        # Only while the stream repeats what came before a crash.
        self._published = published if published.horizon else None
        # Topics whose streamed records still stand by a former partition count, and
        # the barriers behind the last of them.
        self._former = dict(published.former)
        self._ended: list[str] = []
        self._barriers = ledger.loose()
        # For notifications and shapes, which no transaction waits for.
        self._loose = ledger.loose()

    def publish_change(self, record: Record, delivery: Delivery) -> None:
        """
        Produce a streamed record; waits while there is no room.

        A record that Kafka already holds from before a crash is not published again.

        Raises:
            DeliveryFailedError: A record was given up; nothing more may be produced.
            UnavailableError: Kafka is away when a new topic is needed.
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
        self._outgoing.append((record, partial(delivery, position)))
        self._stats.records += 1

    def takes(self, record: Record) -> bool:
        """Tell whether a record goes where it says, and is no dead letter."""
        limit_bytes = self.facts(record.topic).limit_bytes
        return record.topic != self._dead.topic and record.size <= limit_bytes

    def publish_unordered(
        self, record: Record, delivery: Delivery | None = None
    ) -> None:
        """
        Produce a record that has no place in the stream's order: READ, shape, notice.

        Raises:
            DeliveryFailedError: A record was given up; nothing more may be produced.
            UnavailableError: Kafka is away when a new topic is needed.
        """
        self.publish_internal(record, delivery)
        self._stats.records += 1

    def publish_reads(
        self, records: Sequence[Record], delivery: Delivery
    ) -> Sequence[int]:
        """
        Gather the records of a slice of a chunk, as ``publish_change`` does. Hot path.

        Returns:
            The places of the records that are dead letters.

        Raises:
            DeliveryFailedError: A record was given up; nothing more may be produced.
            UnavailableError: Kafka is away when a new topic is needed.
        """
        if not self._are_plain(records):
            refused = [at for at, one in enumerate(records) if not self.takes(one)]
            for record in records:
                self.publish_unordered(record, delivery)
            return refused
        topic = records[0].topic
        delivery.expect_all([record.value or b"" for record in records])
        self._outgoing += zip(records, repeat(partial(delivery.passed_into, topic)))
        self._stats.records += len(records)
        return ()

    def publish_internal(
        self, record: Record, delivery: Delivery | None = None
    ) -> None:
        """
        Produce a record for the relay itself, which is not counted: mark, heartbeat.

        Raises:
            DeliveryFailedError: A record was given up; nothing more may be produced.
            UnavailableError: Kafka is away when a new topic is needed.
        """
        facts = self._facts.get(record.topic) or self.facts(record.topic)
        if record.size > facts.limit_bytes:
            record, facts = self._too_large(record, facts)
        record = place_keyless(record, facts.partition_count)
        if delivery is None:
            delivery = self._loose
        delivery.expect(record.value)
        self._outgoing.append((record, delivery.passed))
        self.flush()

    def flush(self) -> None:
        """
        Hand over what was gathered; waits while there is no room.

        Call order: after each read's messages, and each turn's rows. Gathered, the
        records of a backlog reach the client at once and fill its batches, which spares
        broker and client the greater part of their work; a lone record goes at once
        just as well.

        Raises:
            DeliveryFailedError: A record was given up; nothing more may be produced.
        """
        while self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            taken = self._produce(outgoing)
            if taken == len(outgoing):
                continue
            self._outgoing = outgoing[taken:]
            self.poll(WAIT_S)
            self.while_waiting()

    def facts(self, topic: str) -> TopicFacts:
        """Return a topic's facts, from memory if it was met before."""
        facts = self._facts.get(topic)
        if facts is None:
            facts = self._facts[topic] = self._catalog.ensure(topic)
        return facts

    def take_ended(self) -> Sequence[str]:
        """Hand over the topics that have passed their former partition count."""
        if self._barriers.pending:
            return ()
        ended, self._ended = self._ended, []
        return ended

    @property
    def needs_commit(self) -> bool:
        """Whether records wait for ``commit`` to become visible."""
        return self._producer.needs_commit

    def commit(self) -> None:
        """
        Make what is acknowledged visible, where that is a step of its own.

        Raises:
            DeliveryFailedError: It was given up.
        """
        self._producer.commit()
        self.commits += 1

    def poll(self, timeout_s: float) -> None:
        """
        Let acknowledgements come in.

        Raises:
            DeliveryFailedError: A record was given up.
        """
        self._producer.poll(timeout_s)
        if self._ledger.failure is not None:
            raise DeliveryFailedError(self._ledger.failure)

    def drain(self, timeout_s: float) -> None:
        """
        Wait until everything is acknowledged, or the time is over.

        Raises:
            DeliveryFailedError: A record was given up.
        """
        self.flush()
        self._producer.flush(timeout_s)
        self.poll(0)

    def _are_plain(self, records: Sequence[Record]) -> bool:
        """Tell whether they go into one topic as they are, each where its key says."""
        topics = set(map(_TOPIC, records))
        is_one = len(topics) == 1 and self._dead.topic not in topics
        if not is_one or None in map(_KEY, records):
            return False
        limit_bytes = self.facts(records[0].topic).limit_bytes
        return max(map(_SIZE, records)) <= limit_bytes and {ANY_PARTITION} == set(
            map(_PARTITION, records)
        )

    def _prepare(self, record: Record) -> Record | None:
        """
        Return what is to be produced of a record; None if Kafka has it.

        The way of what is not plain: the first record of a topic, a record without a
        key or with a partition of its own, a large one, and all after a crash.
        """
        facts = self._facts.get(record.topic)
        if facts is None:
            record, facts = self._first_of_topic(record)
        if record.partition >= self._count(record, facts):
            record, facts = self._set_aside(record, NO_SUCH_PARTITION)
        if record.key is None and facts.is_compacted:
            record, facts = self._set_aside(record, NO_KEY)
        if record.size > facts.limit_bytes:
            record, facts = self._too_large(record, facts)
        if record.topic not in self._limits:
            self._admit(record.topic, facts)
        record = self._place(record, facts)
        return None if self._is_published(record, facts) else record

    def _count(self, record: Record, facts: TopicFacts) -> int:
        """Return the partition count that holds at a streamed record's position."""
        for former in self._former.get(record.topic, ()):
            if record.position <= former.until:
                return former.partition_count
        return facts.partition_count

    def _place(self, record: Record, facts: TopicFacts) -> Record:
        """Give a streamed record its partition, where the producer cannot."""
        former = self._former.get(record.topic)
        if former is None:
            return place_keyless(record, facts.partition_count)
        if record.position > former[-1].until:
            self._end_former(record.topic, facts)
        count = self._count(record, facts)
        if record.partition == ANY_PARTITION and record.key is not None:
            return record._replace(partition=partition_of(record.key, count))
        return place_keyless(record, count)

    def _end_former(self, topic: str, facts: TopicFacts) -> None:
        """Write barriers between the records of the former count and the others."""
        del self._former[topic]
        self._limits[topic] = facts.limit_bytes
        records = barrier_records(
            topic, facts.partition_count, is_compacted=facts.is_compacted
        )
        for record in records:
            self.publish_internal(record, self._barriers)
        self._ended.append(topic)

    def _first_of_topic(self, record: Record) -> tuple[Record, TopicFacts]:
        """Learn a topic; an event of a topic that Kafka refuses is set aside."""
        topic = record.topic
        if topic not in self._refused:
            try:
                return record, self.facts(topic)
            except TopicRefusedError:
                if not is_event(record):
                    raise
            if len(self._refused) >= _REMEMBERED:
                self._refused.clear()
            self._refused.add(topic)
        return self._set_aside(record, TOPIC_REFUSED)

    def _set_aside(self, record: Record, reason: str) -> tuple[Record, TopicFacts]:
        return self._dead.of_record(record, reason), self.facts(self._dead.topic)

    def _too_large(
        self, record: Record, facts: TopicFacts
    ) -> tuple[Record, TopicFacts]:
        """Set a record aside that its topic does not take."""
        dead = self.facts(self._dead.topic)
        return self._dead.of_large(record, facts.limit_bytes, dead.limit_bytes), dead

    def _admit(self, topic: str, facts: TopicFacts) -> None:
        count = facts.partition_count
        self.admit(topic, count, lambda: self._catalog.ends(topic, count))
        if topic not in self._former:
            self._limits[topic] = facts.limit_bytes

    def _is_published(self, record: Record, facts: TopicFacts) -> bool:
        """Tell whether Kafka has the record; stop asking once the stream is past."""
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


def _do_nothing() -> None:
    pass


def _admit_all(_topic: str, _partition_count: int, _ends: FindEnds) -> None:
    pass
