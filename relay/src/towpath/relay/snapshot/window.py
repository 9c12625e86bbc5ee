"""
A chunk between its watermarks, from which the stream evicts rows.

::

    REQUESTED --low seen--> OPEN --high seen, rows read--> READY --slices--> DONE
        └─────────────── rows may arrive at any moment ──────┘

One chunk's high watermark may be the next chunk's low watermark: every query starts
after its low watermark is in the log, and ends before its high watermark is. Changes
that the stream delivers between two slices evict rows of the remaining slices, like
changes before the high watermark.

While the stream carries changes, a slice of a range has rows of one partition, because
Kafka's client sends the records of each partition in a separate request: a slice is
then one request. Within a partition, rows keep the order in which they were read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from towpath.relay.snapshot.changed_keys import ChangedKeys, ChangeOutcome
from towpath.relay.snapshot.protocol import WatermarkSeen
from towpath.relay.snapshot.shape import Chunk, Key, RowValues, key_of
from towpath.relay.wal.messages import Relation

# The size at which a slice ends: a slice of this size delays live changes by about a
# millisecond. The last row may take the slice over this size.
SLICE_BYTES: Final = 256 * 1024

# At most this many blocks, of ``max_rows`` rows each, are grouped to fill one slice:
# with many partitions, a whole chunk would otherwise be grouped, which would delay live
# changes. A waiting row that lies more than twice this many blocks behind the newest
# grouped row is taken first, so that a chunk that must be read again need not be read
# from its beginning.
MAX_BLOCKS: Final = 8


@dataclass(slots=True)
class DeduplicatedRows:
    """
    The rows of a slice that no change in the stream evicts.

    Attributes:
        relation: The shape of the rows.
        log_lsn: The LSN of the low watermark, which is the rows' position.
        rows: The rows to emit.
        used_rows: The part of ``max_rows`` that is used up: all of it if the slice is
            short because its rows are long or its partition has no more rows.
        dropped: The number of evicted rows, and of missing keys that may be another
            spelling of a found one.
        incomplete: Keys whose rows the stream does not carry in full; they are read
            again.
        absent: Requested keys that have neither a row nor a change.
        last_key: The key up to which all rows of the chunk were emitted or evicted;
            None if the first row remains, or for a list of keys.
        is_last: Whether this is the last slice of the chunk.
    """

    relation: Relation
    log_lsn: int
    rows: list[RowValues] = field(default_factory=list)
    used_rows: int = 0
    dropped: int = 0
    incomplete: list[Key] = field(default_factory=list)
    absent: list[Key] = field(default_factory=list)
    last_key: Key | None = None
    is_last: bool = False


_OutcomeOf = Callable[[Key], ChangeOutcome | None]

# Returns the partition of each row's record, given the rows' relation; empty if the
# partitions are unknown.
RowPartitionsOf = Callable[[Relation, Sequence[RowValues]], Sequence[int]]


class RemainingRows:
    """
    The rows of a chunk that are in no slice yet.

    Blocks of rows are grouped by partition, as many as it takes to fill a slice.

    Attributes:
        is_short: Whether the last slice has few rows because they are long, or because
            their partition had no more.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.is_short = False
        self._chunk = chunk
        # Rows before this index were taken, or wait in a group.
        self._next_index = 0
        # By partition, the indexes of rows that wait; no group is empty.
        self._groups: dict[int, list[int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether all rows were taken."""
        return self._next_index == len(self._chunk.rows) and not self._groups

    @property
    def last_key(self) -> Key | None:
        """The order key up to which all rows were taken; None if the first waits."""
        first_index = self._next_index
        if self._groups:
            first_index = min(indexes[0] for indexes in self._groups.values())
        if not first_index:
            return None
        return key_of(self._chunk.rows[first_index - 1], self._chunk.shape.order_key)

    def take(
        self, max_rows: int, partitions_of: RowPartitionsOf | None
    ) -> Sequence[RowValues]:
        """
        Take rows of one partition, or the next rows if partitions are not known.

        At most ``max_rows`` are taken, and no more after they reach ``SLICE_BYTES``.
        """
        rows = self._chunk.rows
        for _ in range(MAX_BLOCKS):
            if self._has_full_group(max_rows):
                break
            if not self._group_block(max_rows, partitions_of):
                break
        if not self._groups:
            start = self._next_index
            taken = self._bounded(rows[start : start + max_rows])
            self._next_index += len(taken)
            return taken
        partition = self._next_partition(max_rows)
        indexes = self._groups.pop(partition)
        taken = self._bounded([rows[index] for index in indexes[:max_rows]])
        self.is_short = len(taken) < max_rows
        if len(taken) < len(indexes):
            self._groups[partition] = indexes[len(taken) :]
        return taken

    def _group_block(
        self, max_rows: int, partitions_of: RowPartitionsOf | None
    ) -> bool:
        """Group the next rows; return False if there are none, or no partitions."""
        start = self._next_index
        if partitions_of is None or start == len(self._chunk.rows):
            return False
        block = self._chunk.rows[start : start + max_rows]
        partitions = partitions_of(self._chunk.shape.relation, block)
        if not partitions:
            return False
        for index, partition in enumerate(partitions, start):
            self._groups.setdefault(partition, []).append(index)
        self._next_index += len(block)
        return True

    def _has_full_group(self, max_rows: int) -> bool:
        return any(len(indexes) >= max_rows for indexes in self._groups.values())

    def _next_partition(self, max_rows: int) -> int:
        """Return the largest group's partition, or that of a row that waited long."""
        groups = self._groups
        first = min(groups, key=lambda partition: groups[partition][0])
        if self._next_index - groups[first][0] > 2 * MAX_BLOCKS * max_rows:
            return first
        return max(groups, key=lambda partition: len(groups[partition]))

    def _bounded(self, rows: Sequence[RowValues]) -> Sequence[RowValues]:
        """Return the rows up to the one that brings them to ``SLICE_BYTES``."""
        self.is_short = False
        if len(rows) * self._chunk.widest_bytes <= SLICE_BYTES:
            return rows
        size_bytes = 0
        for count, row in enumerate(rows, 1):
            size_bytes += sum(map(len, filter(None, row)))
            if size_bytes >= SLICE_BYTES:
                self.is_short = count < len(rows)
                return rows[:count]
        return rows


class Window:
    """One chunk from its request to its last deduplicated row."""

    def __init__(
        self,
        chunk_id: int,
        low_token: str,
        high_token: str,
        keys: tuple[Key, ...] = (),
    ) -> None:
        self.chunk_id = chunk_id
        self.keys = keys
        self.high_token = high_token
        self.low: WatermarkSeen | None = None
        self.high: WatermarkSeen | None = None
        self.chunk: Chunk | None = None
        self.low_token = low_token
        self._remaining: RemainingRows | None = None
        self._found: set[Key] = set()

    def observe(self, mark: WatermarkSeen) -> None:
        """Process a watermark of this window or of another one."""
        if mark.token == self.low_token:
            self.low = mark
        elif mark.token == self.high_token:
            self.high = mark

    @property
    def is_ready(self) -> bool:
        """Whether the stream has passed the window and the rows have arrived."""
        return None not in (self.low, self.high, self.chunk)

    @property
    def remaining_keys(self) -> tuple[Key, ...]:
        """The requested keys for which no row has been found so far."""
        return tuple(key for key in self.keys if key not in self._found)

    def deduplicate(
        self,
        changed_keys: ChangedKeys,
        max_rows: int,
        partitions_of: RowPartitionsOf | None = None,
    ) -> DeduplicatedRows:
        """
        Return the next slice: at most ``max_rows`` rows, fewer if they are long.

        Raises:
            RuntimeError: The window is not ready.
        """
        low, chunk = self.low, self.chunk
        if low is None or chunk is None or self.high is None:
            message = (
                f"chunk {self.chunk_id} is not ready: its watermarks or its rows have "
                "not arrived"
            )
            raise RuntimeError(message)
        remaining = self._remaining = self._remaining or RemainingRows(chunk)
        rows = remaining.take(max_rows, None if self.keys else partitions_of)
        result = DeduplicatedRows(chunk.shape.relation, low.log_lsn)

        def outcome_of(key: Key) -> ChangeOutcome | None:
            outcome = changed_keys.outcome(key, low.sequence, chunk.snapshot)
            if outcome is not None and outcome is not ChangeOutcome.FULL:
                result.incomplete.append(key)
            return outcome

        if self.keys:
            self._deduplicate_listed(rows, outcome_of, result)
        else:
            _deduplicate_range(rows, changed_keys, outcome_of, result)
            result.last_key = remaining.last_key
        result.used_rows = max_rows if remaining.is_short else len(rows)
        result.dropped = len(rows) - len(result.rows)
        if remaining.is_empty:
            result.is_last = True
            self._deduplicate_missing(outcome_of, result)
        return result

    def _deduplicate_listed(
        self,
        rows: Sequence[RowValues],
        outcome_of: _OutcomeOf,
        result: DeduplicatedRows,
    ) -> None:
        """Keep the rows of listed keys that no change evicts."""
        for row in rows:
            key = key_of(row, result.relation.key)
            self._found.add(key)
            if outcome_of(key) is None:
                result.rows.append(row)

    def _deduplicate_missing(
        self, outcome_of: _OutcomeOf, result: DeduplicatedRows
    ) -> None:
        """Sort listed keys without a row into absent and incomplete ones."""
        missing = self.remaining_keys
        if self.chunk is None or not self.chunk.is_last:
            result.incomplete.extend(missing)
            return
        absent = [key for key in missing if outcome_of(key) is None]
        # A found row may have a listed key in another spelling (1.0 and 1.00): then
        # none of the missing keys is known to be absent.
        is_respelled = not self._found.issubset(self.keys)
        if is_respelled:
            result.dropped += len(absent)
        else:
            result.absent.extend(absent)


def _deduplicate_range(
    rows: Sequence[RowValues],
    changed_keys: ChangedKeys,
    outcome_of: _OutcomeOf,
    result: DeduplicatedRows,
) -> None:
    """Keep the rows of a range that no change evicts. Hot path."""
    indexes = result.relation.key
    columns = [map(itemgetter(index), rows) for index in indexes]
    # Rows of a table without a key share the empty key.
    keys = zip(*columns, strict=True) if columns else ((),)
    changed = changed_keys.changed_among(keys)
    if not changed:
        result.rows = list(rows)
        return
    for row in rows:
        key = key_of(row, indexes)
        if key not in changed or outcome_of(key) is None:
            result.rows.append(row)


@dataclass(slots=True)
class ChunkDelivery:
    """
    One chunk between its first deduplicated row and Kafka's acknowledgement.

    Attributes:
        keys: The listed keys that it reads, if it reads no range.
        undelivered: The keys of its rows that are dead letters.
        has_emitted: Whether any of its rows was emitted.
    """

    chunk_id: int
    relation: Relation
    log_lsn: int
    last_key: Key | None = None
    row_count: int = 0
    dropped: int = 0
    keys: tuple[Key, ...] = ()
    undelivered: tuple[Key, ...] = ()
    has_emitted: bool = False
    is_acknowledged: bool = False

    def add(self, result: DeduplicatedRows) -> None:
        """Count a slice."""
        self.last_key = result.last_key or self.last_key
        self.row_count += len(result.rows) + len(result.absent)
        self.dropped += result.dropped

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Record rows that are dead letters, if they belong to this chunk."""
        if chunk_id == self.chunk_id:
            self.undelivered += keys
