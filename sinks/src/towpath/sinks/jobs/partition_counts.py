"""
How many partitions a sink's topics have had, so that added ones are noticed.

Nothing of an added partition is left out: the engine reads it from its first record.
But keys move to it, and the later change of a key may then be read before an earlier
one, which still waits in another partition; a change that leaves columns out misses
those of the earlier one for good. Keys have moved once an added partition has records,
so it counts from then on: what is read of a row later stands above all of that.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import orjson

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.ports import Cluster
from towpath.sinks.progress import Offsets, replace_file

PARTITION_COUNTS_FILE: Final = "partition_counts.json"

# A look is one small request.
LOOK_EVERY_S: Final = 10.0


class PartitionCounts:
    """The partition counts of one sink's topics, in a file of its folder."""

    def __init__(self, folder: Path, cluster: Cluster, clock: Clock) -> None:
        self._path = folder / PARTITION_COUNTS_FILE
        self._cluster = cluster
        self._clock = clock
        self._next = Deadline(clock, LOOK_EVERY_S)

    def grown(self, ends: Offsets) -> list[str]:
        """Return the topics that have records in partitions which they did not have."""
        noted = self._noted()
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
        noted = self._noted()
        counts = {topic: n for topic, n in noted.items() if topic not in remade}
        for topic, partitions in ends.items():
            added = _added(partitions, counts.get(topic))
            if not added or any(added):
                counts[topic] = len(partitions)
        if counts != noted:
            replace_file(self._path, orjson.dumps(counts))

    def look(self, names: Callable[[], Iterable[str]]) -> list[str]:
        """
        Look, if that is due, whether topics have grown, and note new ones.

        Raises:
            UnavailableError: The broker does not answer.
        """
        if not self._next.passed():
            return []
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        ends = self._cluster.end_offsets(names())
        grown = self.grown(ends)
        if not grown:
            self.note(ends)
        return grown

    def _noted(self) -> dict[str, int]:
        try:
            noted: dict[str, int] = orjson.loads(self._path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return noted


def _added(partitions: Mapping[str, int], count: int | None) -> list[int]:
    """Return the ends of the partitions that a topic did not have."""
    return [
        end
        for partition, end in partitions.items()
        if count is not None and int(partition) >= count
    ]
