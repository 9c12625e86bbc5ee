"""
The way out: every record passes here, and waits here when Kafka takes no more.

Sizes are checked against the topic's limit before producing; what is too large becomes
a dead letter, so that nothing can be refused for its size later. While there is no
room the loop's own duties (feedback, above all) go on through ``while_waiting``.
"""

import zlib
from collections.abc import Callable
from typing import Final

from towpath.relay.delivery import Delivery, DeliveryLedger
from towpath.relay.errors import DeliveryFailedError
from towpath.relay.ports import RecordProducer, TopicCatalog, TopicFacts
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.record import ANY_PARTITION, Record
from towpath.relay.tally import Tally

# How long one wait for room lasts before the loop's duties are looked after again.
WAIT_S: Final = 0.05


class Outlet:
    """Hands records to the producer, within the bound of bytes on their way."""

    def __init__(
        self,
        producer: RecordProducer,
        catalog: TopicCatalog,
        ledger: DeliveryLedger,
        dead: DeadLetters,
        tally: Tally,
    ) -> None:
        self.while_waiting: Callable[[], None] = _do_nothing
        self._producer = producer
        self._catalog = catalog
        self._ledger = ledger
        self._dead = dead
        self._tally = tally
        self._facts: dict[str, TopicFacts] = {}
        # For notifications and shapes, which no transaction waits for.
        self._loose = Delivery(ledger)

    def send(self, record: Record, delivery: Delivery | None = None) -> None:
        """
        Produce a record, as part of ``delivery`` if any; waits while there is no room.

        Raises:
            DeliveryFailedError: A record was given up; nothing more may be produced.
            UnavailableError: Kafka is away when a new topic is needed.
        """
        topic = record.topic
        facts = self._facts.get(topic) or self._learn(topic)
        if record.size > facts.limit_bytes:
            room_bytes = self.facts(self._dead.topic).limit_bytes
            record = self._dead.of_large(record, facts.limit_bytes, room_bytes)
            facts = self.facts(self._dead.topic)
        if record.key is None and record.partition == ANY_PARTITION:
            partition = zlib.crc32(record.position) % facts.partition_count
            record = record._replace(partition=partition)
        if delivery is None:
            delivery = self._loose
        delivery.expect(record.value)
        while not self._producer.produce(record, delivery):
            self._wait(delivery, record)
        self._tally.records += 1

    def facts(self, topic: str) -> TopicFacts:
        """Return a topic's facts, from memory if it was met before."""
        return self._facts.get(topic) or self._learn(topic)

    def poll(self, timeout_s: float) -> None:
        """
        Let acknowledgements come in.

        Raises:
            DeliveryFailedError: A record was given up.
        """
        self._producer.poll(timeout_s)
        if self._ledger.failure is not None:
            raise DeliveryFailedError(self._ledger.failure)

    def flush(self, timeout_s: float) -> None:
        """
        Wait until everything is acknowledged, or the time is over.

        Raises:
            DeliveryFailedError: A record was given up.
        """
        self._producer.flush(timeout_s)
        self.poll(0)

    def _wait(self, delivery: Delivery, record: Record) -> None:
        try:
            self.poll(WAIT_S)
            self.while_waiting()
        except BaseException:
            delivery.withdraw(record.value)
            raise

    def _learn(self, topic: str) -> TopicFacts:
        facts = self._facts[topic] = self._catalog.ensure(topic)
        return facts


def _do_nothing() -> None:
    pass
