"""
The relay's state in Kafka: which history of which database it follows.

Key ``lineage``, value ``{"system_identifier", "timeline", "offset", "slot"}``, in the
compacted topic ``<prefix>.relay-state``. It is acknowledged there before the first
record of the lineage is published. It stands in Kafka, not in the database, because
the database may be the thing that was restored.
"""

from dataclasses import asdict
from typing import Final

import orjson
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from towpath.relay.errors import BrokerUnavailableError, StateLostError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    configuration,
    translated,
)
from towpath.relay.kafka.lineage import Lineage
from towpath.schemas import topics
from towpath.settings import Kafka

_LINEAGE_KEY: Final = b"lineage"


class StateTopic:
    """Reads and writes the state. Call order: the topic exists."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._kafka = kafka
        self._topic = topics.state_topic(prefix)

    def read_lineage(self) -> Lineage | None:
        """
        Return the newest lineage; None if none was ever written.

        Raises:
            BrokerUnavailableError: Kafka does not answer.
            StateLostError: What stands there is not a lineage.
        """
        consumer = Consumer(
            configuration(
                self._kafka,
                {
                    "group.id": "towpath-relay-state",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    # The end is what is waited for: let the broker say so at once.
                    "fetch.wait.max.ms": 10,
                },
            )
        )
        try:
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            return self._newest(consumer)
        except KafkaException as error:
            raise translated(error, f"reading {self._topic}") from error
        finally:
            consumer.close()

    def write_lineage(self, lineage: Lineage) -> None:
        """
        Write a lineage; it is durable when this returns.

        Raises:
            BrokerUnavailableError: Kafka does not answer in time.
        """
        refused: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer = Producer(
            configuration(self._kafka, {"enable.idempotence": True, "acks": "all"})
        )
        value = orjson.dumps(asdict(lineage))
        producer.produce(self._topic, value, _LINEAGE_KEY, on_delivery=on_delivery)
        if producer.flush(REQUEST_TIMEOUT_S) or refused:
            reason = f"{self._topic} did not take the lineage"
            raise BrokerUnavailableError(reason)

    def _newest(self, consumer: Consumer) -> Lineage | None:
        newest: bytes | None = None
        while True:
            message = consumer.poll(REQUEST_TIMEOUT_S)
            if message is None:
                reason = f"{self._topic} could not be read in {REQUEST_TIMEOUT_S:g} s"
                raise BrokerUnavailableError(reason)
            error = message.error()
            if error is None:
                if message.key() == _LINEAGE_KEY:
                    newest = message.value()
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                return None if newest is None else _parse(newest)
            else:
                raise KafkaException(error)


def _parse(text: bytes) -> Lineage:
    try:
        return Lineage(**orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError) as error:
        reason = "the state topic holds a lineage that cannot be read"
        raise StateLostError(reason) from error
