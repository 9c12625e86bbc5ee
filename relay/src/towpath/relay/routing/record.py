"""A record on its way to Kafka; made for every change, hence a plain named tuple."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from towpath.schemas import headers as names

# Room that a record's framing, position and fixed headers take beside its key, its
# value and what a row brings along; the names of our headers add up to 80 bytes.
FIXED_BYTES: Final = 512

# By the key, as every other client of the topic would choose it.
ANY_PARTITION: Final = -1

# The only partition of topics that must read in one order; others may have been added.
FIRST_PARTITION: Final = 0

# What a barrier has for a key where the topic is compacted: the tombstone of no row.
KEY_THAT_NEVER_WAS: Final = b"towpath-barrier"

Header = tuple[str, str | bytes | None]


class Record(NamedTuple):
    """
    What Kafka gets.

    Attributes:
        topic: Its topic.
        key: What Kafka partitions and compacts by; None without.
        value: None for a tombstone.
        headers: Names and values, in the order written.
        position: The position's text, which the headers carry too.
        timestamp_ms: When the change was committed.
        size: An upper bound of its bytes in an uncompressed batch.
        partition: Explicit, or ``ANY_PARTITION``.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    position: bytes
    timestamp_ms: int
    size: int
    partition: int = ANY_PARTITION


def barrier_records(
    topic: str, partition_count: int, *, is_compacted: bool
) -> Iterator[Record]:
    """
    Return a barrier for each partition: it says nothing of any row.

    Behind it, records of the partition are placed by this partition count.
    """
    key = KEY_THAT_NEVER_WAS if is_compacted else None
    count = str(partition_count).encode()
    marks: list[Header] = [(names.BARRIER, b"1"), (names.PARTITION_COUNT, count)]
    for partition in range(partition_count):
        yield Record(topic, key, None, marks, b"", 0, FIXED_BYTES, partition)
