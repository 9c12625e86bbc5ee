"""
The state of consumers: committed offsets of their groups, and rows of their tables.

Reading the state joins no group and locks nothing.
"""

# ruff: noqa: S608 - the schema's name is quoted; values are parameters
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import quoted

TIMEOUT_S: Final = 10.0
# The codes for a login or a request that the brokers refuse: a retry does not help.
REFUSED: Final = (
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - the client's name
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)

PartitionId = tuple[str, int]


class OffsetReader:
    """
    Reads the offsets of partitions, and those that a group has committed.

    Each call raises ``KafkaException`` if the brokers refuse it or do not answer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def partitions(self, is_wanted: Callable[[str], bool]) -> list[PartitionId]:
        """Return the partitions of each existing topic with a wanted name."""
        topics = self._client.list_topics(timeout=TIMEOUT_S).topics
        return sorted(
            (name, number)
            for name, known in topics.items()
            if is_wanted(name)
            for number in known.partitions
        )

    def bounds(self, partition: PartitionId) -> tuple[int, int]:
        """Return a partition's first offset, and the next one to be written."""
        found = self._client.get_watermark_offsets(
            TopicPartition(*partition), timeout=TIMEOUT_S
        )
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the client's name
        return found

    def first_offsets(self, is_wanted: Callable[[str], bool]) -> dict[PartitionId, int]:
        """Return the first offset of each partition of topics with a wanted name."""
        return {
            partition: self.bounds(partition)[0]
            for partition in self.partitions(is_wanted)
        }

    def committed(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """Return the offsets that the group has committed."""
        requested = [TopicPartition(*partition) for partition in partitions]
        found = self._client.committed(requested, timeout=TIMEOUT_S)
        return {
            (one.topic, one.partition): one.offset for one in found if one.offset >= 0
        }


def client_settings(servers: str, file: Path | None = None) -> dict[str, str]:
    """
    Return the settings of the Kafka client.

    Args:
        servers: The bootstrap servers.
        file: More settings, one ``name=value`` per line.

    Raises:
        UsageError: The file cannot be read, or a line does not have that form.
    """
    settings = {"bootstrap.servers": servers}
    if file is None:
        return settings
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        message = f"cannot read the Kafka settings file: {reason}: {file}"
        raise UsageError(message) from error
    for number, line in enumerate(map(str.strip, lines), start=1):
        name, equals, value = line.partition("=")
        if not line or line.startswith("#"):
            continue
        if not equals:
            message = f"{file}, line {number}: no setting of the form name=value"
            raise UsageError(message)
        settings[name.strip()] = value.strip()
    return settings


@contextlib.contextmanager
def reading_offsets(settings: Mapping[str, Any]) -> Iterator[OffsetReader]:
    """Connect with the settings of a consumer; close the client at the end."""
    client = Client(dict(settings))
    with contextlib.closing(client):
        yield OffsetReader(client)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """
    A consumer's progress in one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        committed_offset: The next offset to be handled; None if none is committed.
        end_offset: The next offset to be written.
        lag: The number of records not handled yet. In a topic that is written in Kafka
            transactions, the markers of the transactions count too.
        ids: The number of ids that are stored for this partition.
    """

    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int
    lag: int
    ids: int


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """
    The state of one consumer.

    Attributes:
        consumer: The inbox's name. The offsets are those of the Kafka group with that
            name.
        partitions: All partitions of each topic for which the consumer has an id, a
            parked event or an offset.
        ids: The number of all stored ids.
        parked_events: The number of parked events.
        parked_keys: The number of keys with parked events; their later events are
            parked as well.
        oldest_parked_at: When the oldest parked event was parked; None if none is
            parked.
    """

    consumer: str
    partitions: tuple[PartitionStatus, ...]
    ids: int
    parked_events: int
    parked_keys: int
    oldest_parked_at: datetime | None

    @property
    def lag(self) -> int:
        """The number of records, in all partitions, that have not been handled yet."""
        return sum(one.lag for one in self.partitions)


class InboxTables:
    """Reads the tables of all consumers through a psycopg connection."""

    def __init__(self, connection: Any, schema: str) -> None:  # noqa: ANN401 - an extra's
        self._connection = connection
        self._applied = f"{quoted(schema)}.inbox"
        self._parked = f"{quoted(schema)}.inbox_parked"

    def consumers(self) -> list[str]:
        """Return the names of all consumers that have anything stored."""
        rows = self._connection.execute(
            f"select consumer from {self._applied}"
            f" union select consumer from {self._parked} order by 1"
        )
        return [name for (name,) in rows]

    def topics(self, consumer: str) -> set[str]:
        """Return the topics of a consumer's ids and parked events."""
        rows = self._connection.execute(
            f"select topic from {self._applied} where consumer = %(consumer)s union"
            f" select topic from {self._parked} where consumer = %(consumer)s",
            {"consumer": consumer},
        )
        return {name for (name,) in rows}

    def ids(self, consumer: str) -> Counter[PartitionId]:
        """Count ids by partition; -1 is for ids with copies in several partitions."""
        rows = self._connection.execute(
            f"select topic, partition, count(*) from {self._applied}"
            " where consumer = %s group by topic, partition",
            [consumer],
        )
        return Counter({(topic, number): count for topic, number, count in rows})

    def parked(self, consumer: str) -> tuple[int, int, datetime | None]:
        """Return how many events and keys are parked, and the oldest ``parked_at``."""
        events, keys, oldest = self._connection.execute(
            "select count(*), count(distinct (topic, key)) filter"
            f" (where key is not null), min(parked_at) from {self._parked}"
            " where consumer = %s",
            [consumer],
        ).fetchone()
        return events, keys, oldest


def consumer_status(
    consumer: str, tables: InboxTables, offsets: OffsetReader
) -> ConsumerStatus:
    """Read the state of a consumer."""
    committed = offsets.committed(offsets.partitions(lambda _: True))
    topics = tables.topics(consumer) | {topic for topic, _ in committed}
    ids = tables.ids(consumer)
    partitions = tuple(
        partition_status(partition, offsets.bounds(partition), committed, ids)
        for partition in offsets.partitions(topics.__contains__)
    )
    return ConsumerStatus(consumer, partitions, ids.total(), *tables.parked(consumer))


def partition_status(
    partition: PartitionId,
    bounds: tuple[int, int],
    committed: Mapping[PartitionId, int],
    ids: Mapping[PartitionId, int],
) -> PartitionStatus:
    """Return a partition's status, from its offsets and the committed offset."""
    first, end = bounds
    next_offset = max(committed.get(partition, first), first)
    return PartitionStatus(
        *partition,
        committed_offset=committed.get(partition),
        end_offset=end,
        lag=max(0, end - next_offset),
        ids=ids.get(partition, 0),
    )
