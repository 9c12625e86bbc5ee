"""
The topic with the copies of a sink's state: ``<prefix>-sink-<sink>``.

It has one partition and is compacted. Copies are written in transactions, so that a
reader sees all records of one write or none. The transactional id is the topic's name:
Kafka refuses the transactions of a driver after another driver has fenced it.
"""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from towpath.schemas import topics
from towpath.settings import Settings
from towpath.sinks.errors import BrokerUnavailableError, SinkTakenOverError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import (
    REQUEST_TIMEOUT_S,
    SINKS_GROUP,
    Topics,
    records_to,
    unavailable,
)

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own name
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
_READING: Final = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
}


class StateTopic:
    """Implements ``CopyStore``."""

    def __init__(self, settings: Settings, sink: str) -> None:
        self.name = topics.sink_state_topic(settings.database.prefix, sink)
        self._settings = settings
        self._cluster = Topics(settings.kafka)
        self._producer: Producer | None = None

    def read(self) -> Mapping[str, bytes]:
        self._cluster.create(self.name, self._settings, is_compacted=True)
        records: dict[str, bytes] = {}
        consumer = client.consumer(self._settings.kafka, SINKS_GROUP, _READING)
        try:
            for message in records_to({0: self.end()}, consumer, self.name, {}):
                key = (message.key() or b"").decode(errors="replace")
                value = message.value()
                if value is None:
                    records.pop(key, None)
                else:
                    records[key] = value
        except KafkaException as error:
            raise unavailable(error) from error
        finally:
            consumer.close()
        return records

    def end(self) -> int:
        return self._cluster.end_offsets([self.name]).get(self.name, {}).get("0", 0)

    def fence(self) -> None:
        producer = client.producer(self._settings.kafka, transactional_id=self.name)
        try:
            producer.init_transactions(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise unavailable(error) from error
        self._producer = producer

    def write(self, records: Mapping[str, bytes | None]) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            message = f"{self.name} has no writer"
            raise BrokerUnavailableError(message)
        try:
            producer.begin_transaction()
            for key, value in records.items():
                producer.produce(self.name, key=key.encode(), value=value)
            producer.commit_transaction(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in _FENCED:
                message = "a driver on another machine has taken the sink over"
                raise SinkTakenOverError(message) from error
            raise unavailable(error) from error
        # After a failure the producer is dropped: the next fence settles its open
        # transaction.
        self._producer = producer
