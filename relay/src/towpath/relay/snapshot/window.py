"""
A chunk between its watermarks, from which the stream evicts rows.

::

    ASKED --low seen--> OPEN --high seen, rows here--> READY --judge, part by part-->
      └───────────────── rows may come at any moment ────────┘

The high watermark of one chunk may be the low one of the next: every query starts after
its low watermark is in the log and ends before its high one is. Whatever the stream
brings between two parts evicts from the rest, as it did before the high watermark.

A chunk on its way to Kafka: what was judged, and what was delivered of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from towpath.relay.snapshot.changed_keys import ChangedKeys, TouchOutcome
from towpath.relay.snapshot.facts import WatermarkSeen
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    RowValues,
    key_of,
)
from towpath.relay.wal.messages import Relation

# What is judged at once, so that long rows do not hold live changes up: a millisecond
# of them. A single row may be longer.
PART_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class WindowVerdict:
    """
    The rows of a slice that pass, and the rows that the stream evicted.

    Attributes:
        relation: The shape of the rows.
        log_lsn: The place of the low watermark, and so of the rows.
        rows: To be emitted, in the order read.
        judged: How much of the room for rows it took: all of it if they are long.
        dropped: How many of them are not emitted.
        incomplete: Keys whose row the stream does not carry whole: to be read again.
        absent: Keys looked for that have no row, which nothing contradicts.
        last_key: The part's last key, dropped or not; None for a list of keys.
        is_last: Nothing is left of the chunk.
    """

    relation: Relation
    log_lsn: int
    rows: list[RowValues] = field(default_factory=list)
    judged: int = 0
    dropped: int = 0
    incomplete: list[Key] = field(default_factory=list)
    absent: list[Key] = field(default_factory=list)
    last_key: Key | None = None
    is_last: bool = False


_Judge = Callable[[Key], TouchOutcome | None]


class Window:
    """One chunk on its way from the question to the verdict."""

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
        self._judged = 0
        self._found: set[Key] = set()

    def see(self, mark: WatermarkSeen) -> None:
        """Take in a watermark, of this window or of another."""
        if mark.token == self.low_token:
            self.low = mark
        elif mark.token == self.high_token:
            self.high = mark

    @property
    def is_ready(self) -> bool:
        """Whether the stream has passed the window and the rows are here."""
        return None not in (self.low, self.high, self.chunk)

    @property
    def unjudged_keys(self) -> tuple[Key, ...]:
        """The keys looked for of which nothing was said yet."""
        return tuple(key for key in self.keys if key not in self._found)

    def judge(self, notes: ChangedKeys, max_rows: int) -> WindowVerdict:
        """
        Judge the next rows: so many, or as many as ``PART_BYTES`` hold.

        Raises:
            RuntimeError: The window is not ready.
        """
        low, chunk = self.low, self.chunk
        if low is None or chunk is None or self.high is None:
            message = f"chunk {self.chunk_id} is not between its watermarks"
            raise RuntimeError(message)
        part = _bounded(chunk.rows[self._judged : self._judged + max_rows], chunk)
        self._judged += len(part)
        verdict = WindowVerdict(chunk.shape.relation, low.log_lsn)

        def judge(key: Key) -> TouchOutcome | None:
            left = notes.judge(key, low.sequence, chunk.snapshot)
            if left is not None and left is not TouchOutcome.FULL:
                verdict.incomplete.append(key)
            return left

        if self.keys:
            self._judge_found(part, judge, verdict)
        else:
            _judge_rows(part, notes, judge, verdict)
            verdict.last_key = key_of(part[-1], chunk.shape.order_key) if part else None
        is_cut = len(part) < max_rows and self._judged < len(chunk.rows)
        verdict.judged = max_rows if is_cut else len(part)
        verdict.dropped = len(part) - len(verdict.rows)
        if self._judged == len(chunk.rows):
            verdict.is_last = True
            self._judge_missing(judge, verdict)
        return verdict

    def _judge_found(
        self, rows: Sequence[RowValues], judge: _Judge, verdict: WindowVerdict
    ) -> None:
        """Judge rows of keys that were looked for."""
        for row in rows:
            key = key_of(row, verdict.relation.key)
            self._found.add(key)
            if judge(key) is None:
                verdict.rows.append(row)

    def _judge_missing(self, judge: _Judge, verdict: WindowVerdict) -> None:
        """Judge the keys looked for that no row was found for."""
        missing = self.unjudged_keys
        if self.chunk is None or not self.chunk.is_last:
            verdict.incomplete.extend(missing)
            return
        absent = [key for key in missing if judge(key) is None]
        # A row whose key equals one that is asked for, but is spelt in another way
        # (1.0 and 1.00), was found: none of the missing keys is known to be absent.
        is_respelt = not self._found.issubset(self.keys)
        if is_respelt:
            verdict.dropped += len(absent)
        else:
            verdict.absent.extend(absent)


def _bounded(rows: Sequence[RowValues], chunk: Chunk) -> Sequence[RowValues]:
    """Return the first rows that together are not too long, and at least one."""
    if len(rows) * chunk.widest_bytes <= PART_BYTES:
        return rows
    size_bytes = 0
    for count, row in enumerate(rows, 1):
        size_bytes += sum(map(len, filter(None, row)))
        if size_bytes >= PART_BYTES:
            return rows[:count]
    return rows


def _judge_rows(
    rows: Sequence[RowValues], notes: ChangedKeys, judge: _Judge, verdict: WindowVerdict
) -> None:
    """Judge rows of a range, of which hardly any was touched. Hot path."""
    indexes = verdict.relation.key
    columns = [map(itemgetter(index), rows) for index in indexes]
    # Rows of a table without a key share the empty one.
    touched = notes.touched(zip(*columns, strict=True) if columns else ((),))
    if not touched:
        verdict.rows = list(rows)
        return
    for row in rows:
        key = key_of(row, indexes)
        if key not in touched or judge(key) is None:
            verdict.rows.append(row)


@dataclass(slots=True)
class ChunkDelivery:
    """
    One chunk between its first judged row and Kafka's acknowledgement.

    Attributes:
        keys: The listed keys that it reads, if it reads no range.
        undelivered: The keys of its rows that are dead letters.
        has_emitted: Whether any row of it went out.
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

    def add(self, verdict: WindowVerdict) -> None:
        """Take in a part."""
        self.last_key = verdict.last_key or self.last_key
        self.row_count += len(verdict.rows) + len(verdict.absent)
        self.dropped += verdict.dropped

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Take in that rows are dead letters, if the chunk is this one."""
        if chunk_id == self.chunk_id:
            self.undelivered += keys
