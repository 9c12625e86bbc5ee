"""
The start of the history that the relay follows, as the relay stored it in Kafka.

Earlier commits may be unpublished, since the slot may have been recreated after them.
Only the newest record of one key counts; each record is read once.
"""

from typing import Final

import orjson
from confluent_kafka import KafkaException, Message, TopicPartition

from towpath.schemas.topics import state_topic
from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client

_TIMEOUT_S: Final = 10.0
_LINEAGE_KEY: Final = b"lineage"


class KafkaHistory:
    """The relay's lineages; its calls must not overlap."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._topic = state_topic(prefix)
        self._consumer = client.consumer(
            kafka,
            f"{self._topic}.wait",
            {
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",
            },
        )
        self._next_offsets: dict[int, int] = {}
        self._start_lsn: int | None = None

    def start_lsn(self) -> int | None:
        """
        Return the LSN from which every commit is published.

        Returns:
            The LSN; ``None`` if the relay has not begun, or is about to begin a new
            history.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        try:
            self._read_on()
        except KafkaException as error:
            message = f"Kafka: {error.args[0].str()}"
            raise BrokerUnavailableError(message) from error
        return self._start_lsn

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _read_on(self) -> None:
        if not self._next_offsets:
            topics = self._consumer.list_topics(timeout=_TIMEOUT_S).topics
            if self._topic not in topics:
                return
        place = TopicPartition(self._topic, 0)
        _, end = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
        reading = client.records_to(
            {0: end}, self._consumer, self._topic, self._next_offsets
        )
        for message in reading:
            self._take(message)

    def _take(self, message: Message) -> None:
        if message.key() == _LINEAGE_KEY and message.value() is not None:
            lineages = orjson.loads(message.value() or b"{}")["lineages"]
            self._start_lsn = lineages[-1]["start_lsn"] if lineages else None
