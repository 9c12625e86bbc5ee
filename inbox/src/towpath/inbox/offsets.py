"""Offsets of topics and of a group, read without joining the group."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

TIMEOUT_S: Final = 10.0

Place = tuple[str, int]


class OffsetReader:
    """
    Reads the offsets of partitions, and those that a group has committed.

    Each call raises ``KafkaException`` if the brokers do not answer or refuse it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def places(self, is_wanted: Callable[[str], bool]) -> list[Place]:
        """Return the partitions of each existing topic with a wanted name."""
        topics = self._client.list_topics(timeout=TIMEOUT_S).topics
        return sorted(
            (name, number)
            for name, known in topics.items()
            if is_wanted(name)
            for number in known.partitions
        )

    def bounds(self, place: Place) -> tuple[int, int]:
        """Return the first offset that a partition has, and the next one to come."""
        found = self._client.get_watermark_offsets(
            TopicPartition(*place), timeout=TIMEOUT_S
        )
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the client's name
        return found

    def firsts(self, is_wanted: Callable[[str], bool]) -> dict[Place, int]:
        """Return the first offset of each partition of topics with a wanted name."""
        return {place: self.bounds(place)[0] for place in self.places(is_wanted)}

    def committed(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return the offsets that the group has committed."""
        asked = [TopicPartition(*place) for place in places]
        found = self._client.committed(asked, timeout=TIMEOUT_S)
        return {
            (one.topic, one.partition): one.offset for one in found if one.offset >= 0
        }


@contextlib.contextmanager
def reading_offsets(settings: Mapping[str, Any]) -> Iterator[OffsetReader]:
    """Connect by the settings of a consumer; close the client at the end."""
    client = Client(dict(settings))
    with contextlib.closing(client):
        yield OffsetReader(client)
