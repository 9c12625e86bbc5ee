"""
A record as Kafka receives it, and the partitions of records.

``partition_of`` is murmur2, as Java's default partitioner and ``murmur2_random``
compute it. This function serves look-ups, and platforms without a faster one. Produced
records use faster implementations: the C module of the hot path has its own, and
``kafka.producer`` finds the client's for Python.
"""

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from towpath.schemas import headers as names

# The bytes of a record's framing, position and fixed headers, in addition to its key,
# its value, the texts of an event's headers and the row's own headers; the names of
# fixed headers take up to 80 bytes.
FIXED_BYTES: Final = 512

# An upper bound on the bytes of a header besides its name and its value.
HEADER_BYTES: Final = 10

# The key chooses the partition, as in every other client of the topic.
ANY_PARTITION: Final = -1

# The only partition of topics whose records have one total order.
FIRST_PARTITION: Final = 0

# The key of a barrier in a compacted topic, which belongs to no row.
BARRIER_KEY: Final = b"towpath-barrier"

Header = tuple[str, str | bytes | None]


class Record(NamedTuple):
    """
    A record as Kafka receives it.

    Attributes:
        topic: Its topic.
        key: The partitioning and compaction key; None if it has none.
        value: None for a tombstone.
        headers: Names and values, in order.
        position: The position's text, which the headers carry, too; empty if it has no
            position.
        timestamp_ms: The commit time, the time at which the record was created, or the
            time from a column of an event; 0 for the time at which it is sent.
        size: An upper bound on its bytes in an uncompressed batch.
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


def named_partition(record: Record) -> list[Header]:
    """Return the header of a record's explicit partition, for its dead letter."""
    if record.partition == ANY_PARTITION:
        return []
    return [(names.SOURCE_PARTITION, b"%d" % record.partition)]


def barrier_records(
    topic: str, partition_count: int, *, is_compacted: bool
) -> Iterator[Record]:
    """
    Yield a barrier for each partition; a barrier is not a row.

    Records after the barrier are partitioned by this partition count.
    """
    key = BARRIER_KEY if is_compacted else None
    count = str(partition_count).encode()
    own: list[Header] = [(names.BARRIER, b"1"), (names.PARTITION_COUNT, count)]
    for partition in range(partition_count):
        yield Record(topic, key, None, own, b"", 0, FIXED_BYTES, partition)


class Acknowledgement(Protocol):
    """The acknowledgement of one record."""

    def offset(self) -> int | None: ...


# A topic and its partition, as the client names them.
Partition = tuple[str | None, int | None]


_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the murmur2 hash as an unsigned 32-bit number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> _R
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a record with this key."""
    return (murmur2(key) & _POSITIVE) % partition_count


def place_keyless(record: Record, partition_count: int) -> Record:
    """Give a record without a key the partition that its position hashes to."""
    if record.key is not None or record.partition != ANY_PARTITION:
        return record
    partition = zlib.crc32(record.position) % partition_count
    return record._replace(partition=partition)
