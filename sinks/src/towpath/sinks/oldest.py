"""
The age of records, asked of Kafka one record per partition.

The consumer belongs to no group and reads committed records only: behind the last of
them nothing is behind, even if the marks of transactions still follow. It takes one
small fetch per partition and lets go.
"""

from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from towpath.settings import Kafka
from towpath.sinks import clients
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.lag import Places

_TIMEOUT_S: Final = 10.0

# The broker sends at least one batch of records, however large; no need for more.
_FETCH_BYTES: Final = 4096


class KafkaOldest:
    """Looks records up; its calls must not overlap."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._consumer = clients.consumer(
            kafka,
            {
                # Never joined: partitions are assigned, nothing is committed.
                "group.id": f"{prefix}.sinks",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # What retention has taken is not behind any more.
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": _FETCH_BYTES,
                "queued.min.messages": 1,
                # One record is enough, so each fetch fills the queue: by default the
                # next partition would wait for a second behind it.
                "fetch.queue.backoff.ms": 0,
                "fetch.wait.max.ms": 10,
            },
        )

    def oldest_ms(self, places: Places) -> int | None:
        """
        Return the lowest timestamp of the first record at or behind each place.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        waiting = set(places)
        found: list[int] = []
        wanted = [TopicPartition(*at, places[at]) for at in places]
        self._consumer.assign(wanted)
        # Those of the look before may still be paused.
        self._consumer.resume(wanted)
        try:
            while waiting:
                self._take(waiting, found)
        finally:
            self._consumer.unassign()
        return min(found, default=None)

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def _take(self, waiting: set[tuple[str, int]], found: list[int]) -> None:
        """Take one answer in."""
        message = self._consumer.poll(_TIMEOUT_S)
        if message is None:
            text = "the age of records could not be read"
            raise BrokerUnavailableError(text)
        place = message.topic() or "", message.partition() or 0
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
            text = f"Kafka: {error.str()}"
            raise BrokerUnavailableError(text) from KafkaException(error)
        if place not in waiting:
            return
        waiting.discard(place)
        if error is None:
            found.append(message.timestamp()[1])
            self._consumer.pause([TopicPartition(*place)])
