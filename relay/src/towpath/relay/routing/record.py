"""A record on its way to Kafka; made for every change, hence a plain named tuple."""

from typing import Final, NamedTuple

# Room that a record's framing, position and fixed headers take beside its key, its
# value and what a row brings along; the names of our headers add up to 80 bytes.
FIXED_BYTES: Final = 512

# By the key, as every other client of the topic would choose it.
ANY_PARTITION: Final = -1

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
