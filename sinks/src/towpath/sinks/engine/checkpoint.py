"""
The engine's checkpoint: the offsets of the batches, and their commits.

The offset log has one file per batch: a version line, a line of metadata and one line
of JSON per source, ``{"<topic>": {"<partition>": <next offset>}}``. The engine writes
it before the batch runs, so the batch can read it. The offsets also count transaction
markers, which are not records. The offsets at which the first batch begins are in a
file that ends with such a line of JSON.

A batch counts once its number is among the commits. A checkpoint without commits can
be dropped without losing information.

``PartitionCounts`` notices partitions that were added to a topic. The engine reads an
added partition from its first record, but keys move to it: a later change of a key may
be read before an earlier one in another partition, and a partial change then lacks
columns of the earlier one. Keys have moved once an added partition has records, so the
topic counts as grown from then on; rows that a snapshot reads later have positions
above all such changes.
"""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import orjson

from towpath.sinks.errors import RecordsGoneError
from towpath.sinks.state.files import JsonFile
from towpath.sinks.state.progress import Offsets, Span

# Kafka's source interprets this offset as "the earliest available".
EARLIEST: Final = -2

_VERSION: Final = b"v1"


class CheckpointUnreadableError(ValueError):
    """A file of the checkpoint does not have the engine's format."""


def read_offsets(checkpoint: Path, batch_id: int) -> Offsets:
    """Return, per topic and partition, the offset that follows a batch."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_bytes().splitlines()
    offsets: Offsets = orjson.loads(lines[-1])
    return offsets


def span(checkpoint: Path, batch_id: int) -> Span:
    """
    Return the offsets between which a batch reads each partition.

    A partition that is new with this batch begins with its first record.

    Raises:
        RecordsGoneError: A partition was deleted, or now ends below the offset where
            the batch begins.
    """
    ends = read_offsets(checkpoint, batch_id)
    begins = read_offsets(checkpoint, batch_id - 1) if batch_id else _first(checkpoint)
    for topic, partitions in begins.items():
        for partition, begin in partitions.items():
            if begin > ends.get(topic, {}).get(partition, -1):
                message = f"partition {partition} of {topic} now ends before {begin}"
                raise RecordsGoneError(message)
    return {
        (topic, int(partition)): (begins.get(topic, {}).get(partition, 0), end)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    }


def starting_offsets(stored: Offsets, existing: Mapping[str, Mapping[str, int]]) -> str:
    """
    Return the first offsets of a query without a checkpoint, in the source's format.

    Args:
        stored: The stored offsets: those of the sink's declaration, or of a recovery.
        existing: The current topics and partitions; a partition without a stored offset
            begins at its earliest record.
    """
    if not stored:
        return "earliest"
    explicit = {
        topic: {p: stored.get(topic, {}).get(p, EARLIEST) for p in partitions}
        for topic, partitions in existing.items()
    }
    return orjson.dumps(explicit).decode()


def committed_offsets(checkpoint: Path) -> Offsets | None:
    """
    Return the offsets after the newest committed batch.

    Returns:
        ``{}`` if no batch was committed, ``None`` if there is no checkpoint.

    Raises:
        CheckpointUnreadableError: The engine could not read the checkpoint either.
    """
    planned_offsets, committed = _batches(checkpoint / "offsets"), _commits(checkpoint)
    if not planned_offsets and not committed:
        return None
    if not committed:
        return {}
    _check_format(checkpoint / "metadata", b"")
    _check_format(checkpoint / "commits" / str(committed[-1]), _VERSION)
    offsets = _checked_offsets(checkpoint, committed[-1])
    if planned_offsets[-1] > committed[-1]:
        _checked_offsets(checkpoint, planned_offsets[-1])
    return offsets


def planned_offsets(checkpoint: Path) -> Offsets:
    """Return the offsets after the newest uncommitted batch; ``{}`` without one."""
    batches, committed = _batches(checkpoint / "offsets"), _commits(checkpoint)
    if not batches or (committed and batches[-1] <= committed[-1]):
        return {}
    return read_offsets(checkpoint, batches[-1])


def newest_readable(checkpoint: Path) -> Offsets | None:
    """Return the offsets after the newest committed batch that can still be read."""
    for batch_id in reversed(_commits(checkpoint)):
        try:
            return _checked_offsets(checkpoint, batch_id)
        except CheckpointUnreadableError:
            continue
    return None


def drop_checkpoint(checkpoint: Path) -> None:
    """Rename a checkpoint, and delete the one that was renamed earlier."""
    if not checkpoint.exists():
        return
    dropped = checkpoint.with_name(f"{checkpoint.name}.dropped")
    shutil.rmtree(dropped, ignore_errors=True)
    checkpoint.rename(dropped)


def _first(checkpoint: Path) -> Offsets:
    """Return the offsets at which the first batch begins."""
    lines = (checkpoint / "sources" / "0" / "0").read_bytes().splitlines()
    offsets: Offsets = orjson.loads(lines[-1])
    return offsets


def _commits(checkpoint: Path) -> list[int]:
    return _batches(checkpoint / "commits")


def _batches(folder: Path) -> list[int]:
    """Return the numbers of the batches that have a file in a folder."""
    return sorted(int(p.name) for p in folder.glob("*") if p.name.isdecimal())


def _checked_offsets(checkpoint: Path, batch_id: int) -> Offsets:
    path = checkpoint / "offsets" / str(batch_id)
    _check_format(path, _VERSION)
    offsets = read_offsets(checkpoint, batch_id)
    if not isinstance(offsets, dict) or not all(
        isinstance(partitions, dict) for partitions in offsets.values()
    ):
        message = f"{path} holds no offsets"
        raise CheckpointUnreadableError(message)
    return offsets


def _check_format(path: Path, version: bytes) -> None:
    """Check that a file begins with its version, followed by lines of JSON."""
    try:
        lines = path.read_bytes().splitlines()
        if version and (not lines or lines.pop(0).strip() != version):
            message = f"{path} does not begin with its version"
            raise CheckpointUnreadableError(message)
        for line in lines:
            orjson.loads(line)
    except (OSError, orjson.JSONDecodeError) as error:
        message = f"{path}: {error}"
        raise CheckpointUnreadableError(message) from error
    if not lines:
        message = f"{path} is empty"
        raise CheckpointUnreadableError(message)


PARTITION_COUNTS_FILE: Final = "partition_counts.json"


class PartitionCounts:
    """The partition counts of one sink's topics, in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonFile[int](folder / PARTITION_COUNTS_FILE)

    def grown(self, ends: Offsets) -> list[str]:
        """Return the topics with records in added partitions."""
        noted = self._file.read()
        return sorted(
            topic
            for topic, partitions in ends.items()
            if any(_added(partitions, noted.get(topic)))
        )

    def note(self, ends: Offsets, recreated: Collection[str] = ()) -> None:
        """
        Store the partition counts.

        If none of the partitions that were added to a topic has a record, the topic's
        earlier count is kept.

        Args:
            ends: The next offset of each partition.
            recreated: Recreated topics, whose previous counts are void.
        """
        noted = self._file.read()
        counts = {topic: n for topic, n in noted.items() if topic not in recreated}
        for topic, partitions in ends.items():
            added = _added(partitions, counts.get(topic))
            if not added or any(added):
                counts[topic] = len(partitions)
        self._file.keep(counts)


def _added(partitions: Mapping[str, int], count: int | None) -> list[int]:
    """Return the end offsets of the partitions added to a topic."""
    return [
        end
        for partition, end in partitions.items()
        if count is not None and int(partition) >= count
    ]
