"""
What the engine has written down: the offsets up to which a batch reads.

The engine's offset log holds one file per batch: a version line, a line of metadata and
one line of JSON per source, ``{"<topic>": {"<partition>": <next offset>}}``. It is
written before the batch runs, so the batch itself can read it. Unlike the records of
the batch it also counts what is no record: the marks of transactions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from towpath.sinks.progress import Offsets

# Kafka's source reads this offset as "the earliest there is".
EARLIEST: Final = -2


def read_offsets(checkpoint: Path, batch_id: int) -> Offsets:
    """Return, per topic and partition, the offset that follows a batch."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_bytes().splitlines()
    offsets: Offsets = orjson.loads(lines[-1])
    return offsets


def starting_offsets(stored: Offsets, existing: Mapping[str, Mapping[str, int]]) -> str:
    """
    Return where a query starts that has no checkpoint yet, as the source takes it.

    Args:
        stored: Where the sink is to begin, listed when it was declared.
        existing: The topics and partitions of now; what was not there when the sink
            was declared begins at its earliest record, and what is gone is left out.
    """
    if not stored:
        return "earliest"
    explicit = {
        topic: {p: stored.get(topic, {}).get(p, EARLIEST) for p in partitions}
        for topic, partitions in existing.items()
    }
    return orjson.dumps(explicit).decode()
