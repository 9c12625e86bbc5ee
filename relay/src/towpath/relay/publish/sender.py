"""
The record sender: one queue in front of the producer.

The sender never waits for room. Queued records are given to the client together, so
that they fill its batches; each partition's records leave in the order in which they
were queued. Records for which the producer has no room stay in the queue: the publisher
waits for room; checkpoints do not.

A key's partition is the one that Kafka's Java client chooses by default, given the
partition count that the relay has stored. librdkafka itself would use added partitions
as soon as it learned of them, which would move keys before an operator allows it.

The first record that a session sends to a partition is sent on its own. A broker that
knows nothing of a producer accepts any first sequence number, so after refusing the
first of two batches it would still append the second.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from towpath.relay.encode.dead_letters import (
    NO_KEY,
    NO_SUCH_PARTITION,
    DeadLetters,
)
from towpath.relay.encode.record import (
    Acknowledgement,
    Partition,
    Record,
    place_keyless,
)
from towpath.relay.errors import DeliveryFailedError
from towpath.relay.ports import (
    OnDelivery,
    Outgoing,
    Partitioner,
    RecordProducer,
    TopicCatalog,
    TopicFacts,
)
from towpath.relay.publish.hot_path import batched, partitions_of
from towpath.relay.publish.in_flight import Delivery, DeliveryLedger, Queued
from towpath.schemas.clock import Deadline


def refusal_of(record: Record, facts: TopicFacts) -> str | None:
    """Return why a topic cannot take a record, its size aside; None if it can."""
    if record.key is None and facts.is_compacted:
        return NO_KEY
    return None if record.partition < facts.partition_count else NO_SUCH_PARTITION


class RecordSender:
    """
    Queues records and gives them to the producer.

    Attributes:
        queued: The queued records.
        dead: Makes dead letters.
        commits: The number of successful commits, with or without transactions.
    """

    def __init__(
        self,
        producer: RecordProducer,
        catalog: TopicCatalog,
        ledger: DeliveryLedger,
        dead: DeadLetters,
        partitioner: Partitioner,
    ) -> None:
        """
        Create the sender.

        Args:
            producer: Takes the records.
            catalog: Knows the topics.
            ledger: The deliveries in flight.
            dead: Makes dead letters.
            partitioner: Chooses a key's partition; the C module does so itself.
        """
        self.queued: list[Queued] = []
        self.dead = dead
        self.commits = 0
        self._producer = producer
        self._produce = producer.produce
        self._catalog = catalog
        self._ledger = ledger
        self._counts = catalog.counts
        self._partitioner = partitioner
        # The records to produce next, with their partitions and callbacks.
        self._outgoing: list[Outgoing] = []
        # Partitions with an acknowledged record of this session. For other partitions,
        # the records that wait until the partition's first record is acknowledged.
        self._opened: set[Partition] = set()
        self._waiting: dict[Partition, list[Outgoing]] = {}
        self._facts: dict[str, TopicFacts] = {}

    def send(self, record: Record, delivery: Delivery) -> None:
        """
        Queue a record outside the stream's order; send queued records if there is room.

        A record becomes a dead letter if it is too large for its topic, lacks the key
        that its topic needs, or names a partition that its topic does not have.

        Raises:
            UnavailableError: The topic is new and Kafka cannot be reached.
        """
        facts = self.facts(record.topic)
        reason = refusal_of(record, facts)
        if reason is not None:
            record = self.dead.of_record(record, reason)
            facts = self.facts(record.topic)
        if record.size > facts.limit_bytes:
            record, facts = self.large_dead_letter(record, facts)
        record = place_keyless(record, facts.partition_count)
        delivery.expect(record.value)
        self.queued.append((record, delivery, b""))
        self.send_queued()

    def send_queued(self) -> bool:
        """Give queued records to the producer; return whether it took all of them."""
        outgoing = self._outgoing
        if self.queued:
            ready, partitions = batched(
                self.queued, self._ledger, self._counts, self._partitioner
            )
            self.queued.clear()
            if not self._opened.issuperset(partitions):
                ready = list(self._without_waiting(ready))
            outgoing += ready
        if not outgoing:
            return True
        taken = self._produce(outgoing)
        del outgoing[:taken]
        return not outgoing

    def _without_waiting(self, outgoing: Iterable[Outgoing]) -> Iterable[Outgoing]:
        """Yield the records to send now; keep those of partitions not opened yet."""
        for record, partition, on_delivery in outgoing:
            at = record.topic, partition
            if at in self._opened:
                yield record, partition, on_delivery
            elif at in self._waiting:
                self._waiting[at].append((record, partition, on_delivery))
            else:
                self._waiting[at] = []
                yield record, partition, partial(self._open, at, on_delivery)

    def _open(
        self,
        at: Partition,
        on_delivery: OnDelivery | None,
        error: object,
        acknowledgement: Acknowledgement,
    ) -> None:
        """Record the acknowledgement of a partition's first record."""
        if on_delivery is not None:
            on_delivery(error, acknowledgement)
        if error is not None:
            self._ledger.fail(error)
            return
        self._opened.add(at)
        self._outgoing += self._waiting.pop(at)

    def facts(self, topic: str) -> TopicFacts:
        """Return a topic's facts; they are cached."""
        facts = self._facts.get(topic)
        if facts is None:
            facts = self._facts[topic] = self._catalog.ensure(topic)
        return facts

    def known_facts(self, topic: str) -> TopicFacts | None:
        """Return a topic's facts if they are cached."""
        return self._facts.get(topic)

    def partitions_of(
        self, keys: Sequence[bytes | None], partition_count: int
    ) -> Sequence[int]:
        """Return the partition of each key; empty if any key is None."""
        present = [key for key in keys if key is not None]
        if len(present) < len(keys):
            return ()
        return partitions_of(present, partition_count, self._partitioner)

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the end offset of each partition."""
        return self._catalog.ends(topic, self.facts(topic).partition_count)

    def large_dead_letter(
        self, record: Record, facts: TopicFacts
    ) -> tuple[Record, TopicFacts]:
        """Return the dead letter of a record that is too large for its topic."""
        dead = self.facts(self.dead.topic)
        return self.dead.of_large(record, facts.limit_bytes, dead.limit_bytes), dead

    @property
    def needs_commit(self) -> bool:
        """Whether sent records become visible only with the next ``commit``."""
        return self._producer.needs_commit

    def commit(self) -> None:
        """
        Make acknowledged records visible, if the producer is transactional.

        Raises:
            DeliveryFailedError: The transaction failed.
        """
        self._producer.commit()
        self.commits += 1

    def poll(self, timeout_s: float) -> None:
        """
        Send queued records and receive acknowledgements.

        Raises:
            DeliveryFailedError: A record could not be delivered.
        """
        if self.queued or self._outgoing:
            self.send_queued()
        self._producer.poll(timeout_s)
        if self._outgoing:
            self.send_queued()
        if self._ledger.failure is not None:
            raise DeliveryFailedError(self._ledger.failure)

    def drain(self, deadline: Deadline) -> None:
        """
        Wait until all records of the producer are acknowledged, or the deadline passes.

        Records that waited for a partition's first record are sent and awaited too.

        Raises:
            DeliveryFailedError: A record could not be delivered.
        """
        self._producer.flush(deadline.remaining_s())
        has_more = bool(self._outgoing)
        self.poll(0)
        if has_more:
            self._producer.flush(deadline.remaining_s())
            self.poll(0)
