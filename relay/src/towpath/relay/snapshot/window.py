"""
A chunk between its watermarks, from which the stream evicts rows.

::

    ASKED --low seen--> OPEN --high seen, rows here--> READY --close--> judged
      └───────────────── rows may come at any moment ────────┘

The high watermark of one chunk may be the low one of the next: every query starts after
its low watermark is in the log and ends before its high one is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from towpath.relay.snapshot.facts import Chunk, Key, Row, WatermarkSeen, key_of
from towpath.relay.snapshot.touches import Left, Touches
from towpath.relay.wal.relation import Relation


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What becomes of a chunk.

    Attributes:
        relation: The shape of the rows.
        log_lsn: The place of the low watermark, and so of the rows.
        rows: To be emitted, in the order read.
        dropped: How many were not.
        incomplete: Keys whose row the stream does not carry whole: to be read again.
        last_key: The chunk's last key, dropped or not; None for a list of keys.
    """

    relation: Relation
    log_lsn: int
    rows: Sequence[Row]
    dropped: int
    incomplete: tuple[Key, ...]
    last_key: Key | None


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

    def close(self, touches: Touches) -> Verdict:
        """
        Judge every row; then forget the touches that matter to no later chunk.

        Raises:
            RuntimeError: The window is not ready.
        """
        low, chunk = self.low, self.chunk
        if low is None or chunk is None or self.high is None:
            message = f"chunk {self.chunk_id} is not between its watermarks"
            raise RuntimeError(message)
        kept: list[Row] = []
        incomplete: list[Key] = []
        found: list[Key] = []
        for row in chunk.rows:
            key = key_of(row, chunk.shape.relation.key)
            found.append(key)
            left = touches.judge(key, low.sequence, chunk.snapshot)
            if left is None:
                kept.append(row)
            elif left is not Left.FULL:
                incomplete.append(key)
        incomplete += self._incomplete_absent(found, chunk, low.sequence, touches)
        touches.forget(low.sequence, chunk.snapshot)
        return Verdict(
            relation=chunk.shape.relation,
            log_lsn=low.log_lsn,
            rows=kept,
            dropped=len(chunk.rows) - len(kept),
            incomplete=tuple(incomplete),
            last_key=None if self.keys else chunk.last_key,
        )

    def _incomplete_absent(
        self, found: Sequence[Key], chunk: Chunk, low: int, touches: Touches
    ) -> list[Key]:
        """Return the keys looked for in vain that may yet have a row."""
        absent = [key for key in self.keys if key not in frozenset(found)]
        if not chunk.is_last:
            return absent
        judged = ((key, touches.judge(key, low, chunk.snapshot)) for key in absent)
        return [key for key, left in judged if left not in {None, Left.FULL}]
