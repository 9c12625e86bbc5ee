"""
Where a key stands: murmur2, as Java's default partitioner and ``murmur2_random`` do it.

The relay names the partition of every record: ``kafka.partitioner`` does it quickly for
what is produced; this form is for what is looked up, and for other platforms.
"""

import zlib
from typing import Final

from towpath.relay.routing.record import ANY_PARTITION, Record

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash, unsigned."""
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


def placed(record: Record, partition_count: int) -> Record:
    """Give a record without a key the partition that its position names."""
    if record.key is not None or record.partition != ANY_PARTITION:
        return record
    partition = zlib.crc32(record.position) % partition_count
    return record._replace(partition=partition)
