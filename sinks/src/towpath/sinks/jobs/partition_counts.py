"""
How many partitions a sink's topics have had, so that added ones are noticed.

Nothing of an added partition is left out: the engine reads it from its first record.
But keys move to it, and the later change of a key may then be read before an earlier
one, which still waits in another partition; a change that leaves columns out misses
those of the earlier one for good. Keys have moved once an added partition has records,
so it counts from then on: what is read of a row later stands above all of that.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from towpath.sinks.kept import KeptFile
from towpath.sinks.progress import Offsets

PARTITION_COUNTS_FILE: Final = "partition_counts.json"


class PartitionCounts:
    """The partition counts of one sink's topics, in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self._file = KeptFile[int](folder / PARTITION_COUNTS_FILE)

    def grown(self, ends: Offsets) -> list[str]:
        """Return the topics that have records in partitions which they did not have."""
        noted = self._file.read()
        return sorted(
            topic
            for topic, partitions in ends.items()
            if any(_added(partitions, noted.get(topic)))
        )

    def note(self, ends: Offsets, remade: Collection[str] = ()) -> None:
        """
        Note the partitions that there are, but for added ones without a record.

        Args:
            ends: The next offset of each.
            remade: Topics that were made anew: what they had counts no more.
        """
        noted = self._file.read()
        counts = {topic: n for topic, n in noted.items() if topic not in remade}
        for topic, partitions in ends.items():
            added = _added(partitions, counts.get(topic))
            if not added or any(added):
                counts[topic] = len(partitions)
        self._file.keep(counts)


def _added(partitions: Mapping[str, int], count: int | None) -> list[int]:
    """Return the ends of the partitions that a topic did not have."""
    return [
        end
        for partition, end in partitions.items()
        if count is not None and int(partition) >= count
    ]
