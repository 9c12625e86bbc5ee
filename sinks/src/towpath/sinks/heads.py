"""What topics begin with: how far back a replay can still reach."""

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from towpath.settings import Kafka
from towpath.sinks import clients
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import (
    REQUEST_TIMEOUT_S,
    Topics,
    headers_of,
    unavailable,
)
from towpath.sinks.record import UnreadableError, position_in


class Heads:
    """What topics begin with: the records that retention has not cut off."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._cluster = Topics(kafka)

    def lowest_position(self, names: Iterable[str]) -> str | None:
        """
        Return the lowest position among the first records of all partitions.

        Returns:
            ``None`` if no record is retained, or one has no position to go by.

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
        positions = [position_of_headers(r) for r in self._firsts(heads)]
        told = [position for position in positions if position is not None]
        return min(told) if told and len(told) == len(positions) else None

    def _firsts(self, heads: list[TopicPartition]) -> list[list[tuple[str, bytes]]]:
        """Return the headers of the first records."""
        reading = {
            "group.id": "towpath-sinks",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # A record of each is enough.
            "fetch.message.max.bytes": 65_536,
            "isolation.level": "read_uncommitted",
        }
        consumer = clients.consumer(self._kafka, reading)
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
                    # Nothing but marks of transactions is left.
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
    """Return the position that headers tell, if they tell one."""
    try:
        return position_in(dict(given))
    except UnreadableError:
        return None
