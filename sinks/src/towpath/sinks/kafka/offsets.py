"""
Lookups of first records: their lowest position, and the lowest timestamp.

The lowest position of the first records shows how far back a replay can still reach.
For the oldest unapplied record, a consumer that joins no group reads one committed
record per partition: past the last committed record a sink has no lag, even if
transaction markers follow.
"""

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from towpath.settings import Kafka
from towpath.sinks.change import UnreadableError, position_in
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import (
    REQUEST_TIMEOUT_S,
    SINKS_GROUP,
    Topics,
    headers_of,
    unavailable,
)
from towpath.sinks.state.lag import PartitionOffsets


class KafkaEarliestPositions:
    """The positions of the first retained records of topics."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._cluster = Topics(kafka)

    def lowest_position(self, names: Iterable[str]) -> str | None:
        """
        Return the lowest position among the first records of all partitions.

        Returns:
            ``None`` if no record is retained, or a first record has no position.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        wanted = list(names)
        first, ends = (
            self._cluster.first_offsets(wanted),
            self._cluster.end_offsets(wanted),
        )
        heads = [
            TopicPartition(topic, int(partition), offset)
            for topic, partitions in first.items()
            for partition, offset in partitions.items()
            if offset < ends.get(topic, {}).get(partition, 0)
        ]
        positions = [position_of_headers(r) for r in self._first_headers(heads)]
        known = [position for position in positions if position is not None]
        return min(known) if known and len(known) == len(positions) else None

    def _first_headers(
        self, heads: list[TopicPartition]
    ) -> list[list[tuple[str, bytes]]]:
        """Return the headers of the first records."""
        reading = {
            # One record per partition is enough.
            "fetch.message.max.bytes": 65_536,
            "isolation.level": "read_uncommitted",
            # Retention may delete the first record before it is read. By default, the
            # client would skip to the end, as if only markers were left.
            "auto.offset.reset": "earliest",
        }
        consumer = client.consumer(self._kafka, SINKS_GROUP, reading)
        found = []
        try:
            for head in heads:
                consumer.assign([head])
                message = consumer.poll(REQUEST_TIMEOUT_S)
                if message is None:
                    text = f"the first record of {head.topic} could not be read"
                    raise BrokerUnavailableError(text)
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
                    # Only transaction markers are left.
                    continue
                if error is not None:
                    raise unavailable(KafkaException(error))
                found.append(headers_of(message))
        except KafkaException as error:
            raise unavailable(error) from error
        finally:
            consumer.close()
        return found


def position_of_headers(given: Iterable[tuple[str, bytes]]) -> str | None:
    """Return the position in headers; ``None`` if there is no valid one."""
    try:
        return position_in(dict(given))
    except UnreadableError:
        return None


_TIMEOUT_S: Final = 10.0

# The broker sends at least one record batch, however large, and no more are needed.
_FETCH_BYTES: Final = 4096


class KafkaRecordAges:
    """Looks up the timestamps of records; its calls must not overlap."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._consumer = client.consumer(
            kafka,
            f"{prefix}.sinks",
            {
                # Records deleted by retention do not count as lag.
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": _FETCH_BYTES,
                "queued.min.messages": 1,
                # One record fills the queue; the default backoff would then delay the
                # next partition by a second.
                "fetch.queue.backoff.ms": 0,
                "fetch.wait.max.ms": 10,
            },
        )

    def oldest_ms(self, offsets: PartitionOffsets) -> int | None:
        """
        Return the lowest timestamp among the first records at or after the offsets.

        Returns:
            Milliseconds since 1970; ``None`` if there are no such records.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        waiting = set(offsets)
        found: list[int] = []
        wanted = [TopicPartition(*at, offset) for at, offset in offsets.items()]
        self._consumer.assign(wanted)
        # Partitions of the previous call may still be paused.
        self._consumer.resume(wanted)
        try:
            while waiting:
                self._take(waiting, found)
        finally:
            self._consumer.unassign()
        return min(found, default=None)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _take(self, waiting: set[tuple[str, int]], found: list[int]) -> None:
        """Process the first record, or the end, of one partition."""
        message = self._consumer.poll(_TIMEOUT_S)
        if message is None:
            text = "the timestamps of records could not be read"
            raise BrokerUnavailableError(text)
        at = message.topic() or "", message.partition() or 0
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
            text = f"Kafka: {error.str()}"
            raise BrokerUnavailableError(text) from KafkaException(error)
        if at not in waiting:
            return
        waiting.discard(at)
        if error is None:
            found.append(message.timestamp()[1])
            self._consumer.pause([TopicPartition(*at)])
