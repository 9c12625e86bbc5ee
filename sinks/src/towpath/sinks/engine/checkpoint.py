"""
What the engine has written down: the offsets up to which a batch reads.

The engine's offset log holds one file per batch: a version line, a line of metadata and
one line of JSON per source, ``{"<topic>": {"<partition>": <next offset>}}``. It is
written before the batch runs, so the batch itself can read it. Unlike the records of
the batch it also counts what is no record: the marks of transactions. Where the first
batch begins stands in a file of its own, of the same form.

A batch counts once its number stands among the commits. A checkpoint without a commit
says nothing that the query would not find out again.

How many partitions a sink's topics have had, so that added ones are noticed.

Nothing of an added partition is left out: the engine reads it from its first record.
But keys move to it, and the later change of a key may then be read before an earlier
one, which still waits in another partition; a change that leaves columns out misses
those of the earlier one for good. Keys have moved once an added partition has records,
so it counts from then on: what is read of a row later stands above all of that.
"""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import orjson

from towpath.sinks.errors import RecordsGoneError
from towpath.sinks.state.files import JsonFile
from towpath.sinks.state.progress import Offsets, Span

# Kafka's source reads this offset as "the earliest there is".
EARLIEST: Final = -2

_VERSION: Final = b"v1"


class CheckpointUnreadableError(ValueError):
    """A file of the checkpoint is not as the engine writes it."""


def read_offsets(checkpoint: Path, batch_id: int) -> Offsets:
    """Return, per topic and partition, the offset that follows a batch."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_bytes().splitlines()
    offsets: Offsets = orjson.loads(lines[-1])
    return offsets


def span(checkpoint: Path, batch_id: int) -> Span:
    """
    Return what a batch reads, of all partitions that the engine knows.

    A partition that came up since the batch before begins with its first record.

    Raises:
        RecordsGoneError: What was read before is not there any more, or ends earlier.
    """
    ends = read_offsets(checkpoint, batch_id)
    begins = read_offsets(checkpoint, batch_id - 1) if batch_id else _first(checkpoint)
    for topic, partitions in begins.items():
        for partition, begin in partitions.items():
            if begin > ends.get(topic, {}).get(partition, -1):
                message = f"partition {partition} of {topic} ended at {begin} before"
                raise RecordsGoneError(message)
    return {
        (topic, int(partition)): (begins.get(topic, {}).get(partition, 0), end)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    }


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


def committed_offsets(checkpoint: Path) -> Offsets | None:
    """
    Return where a query goes on: the offsets after the newest committed batch.

    Returns:
        Nothing at all (``{}``) if no batch was committed, ``None`` if there is no
        checkpoint.

    Raises:
        CheckpointUnreadableError: The engine could not read it either.
    """
    planned_offsets, committed = _batches(checkpoint / "offsets"), _commits(checkpoint)
    if not planned_offsets and not committed:
        return None
    if not committed:
        return {}
    _check_form(checkpoint / "metadata", b"")
    _check_form(checkpoint / "commits" / str(committed[-1]), _VERSION)
    offsets = _checked_offsets(checkpoint, committed[-1])
    if planned_offsets[-1] > committed[-1]:
        _checked_offsets(checkpoint, planned_offsets[-1])
    return offsets


def planned_offsets(checkpoint: Path) -> Offsets:
    """Return where the newest batch is to end, if it is not committed yet."""
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
    """Move a checkpoint out of the way; the one that was moved before goes."""
    if not checkpoint.exists():
        return
    dropped = checkpoint.with_name(f"{checkpoint.name}.dropped")
    shutil.rmtree(dropped, ignore_errors=True)
    checkpoint.rename(dropped)


def _first(checkpoint: Path) -> Offsets:
    """Return where the first batch begins, as the engine has settled it."""
    lines = (checkpoint / "sources" / "0" / "0").read_bytes().splitlines()
    offsets: Offsets = orjson.loads(lines[-1])
    return offsets


def _commits(checkpoint: Path) -> list[int]:
    return _batches(checkpoint / "commits")


def _batches(folder: Path) -> list[int]:
    """Return the numbers of the batches that a folder has a file of."""
    return sorted(int(p.name) for p in folder.glob("*") if p.name.isdecimal())


def _checked_offsets(checkpoint: Path, batch_id: int) -> Offsets:
    path = checkpoint / "offsets" / str(batch_id)
    _check_form(path, _VERSION)
    offsets = read_offsets(checkpoint, batch_id)
    if not isinstance(offsets, dict) or not all(
        isinstance(partitions, dict) for partitions in offsets.values()
    ):
        message = f"{path} holds no offsets"
        raise CheckpointUnreadableError(message)
    return offsets


def _check_form(path: Path, version: bytes) -> None:
    """See that a file begins with its version and that each line after it is JSON."""
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
