"""A chunk on its way to Kafka: what was judged, and what was delivered of it."""

from dataclasses import dataclass

from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.window import Verdict
from towpath.relay.wal.relation import Relation


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

    def add(self, verdict: Verdict) -> None:
        """Take in a part."""
        self.last_key = verdict.last_key or self.last_key
        self.row_count += len(verdict.rows) + len(verdict.absent)
        self.dropped += verdict.dropped

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Take in that rows are dead letters, if the chunk is this one."""
        if chunk_id == self.chunk_id:
            self.undelivered += keys
