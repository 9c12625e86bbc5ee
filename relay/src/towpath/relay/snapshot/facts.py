"""
What the snapshot driver is told.

The loop tells what the stream brings (signals, watermarks, deliveries, ticks); the
worker tells what came of the effects that it was given. A *key* is the raw text bytes
of a row's key columns, in key order, the same from the stream and from a chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.relation import Relation

Key = tuple[bytes, ...]
Row = tuple[bytes | None, ...]


def key_of(row: Row, indexes: Sequence[int]) -> Key:
    """Return a row's key; key columns are never null."""
    return tuple(row[index] or b"" for index in indexes)


@dataclass(frozen=True, slots=True)
class TableShape:
    """
    A table as the catalog tells it.

    Attributes:
        relation: Its columns, in the order in which chunks bring them, and its key.
        key_types: The types of the key's columns, as SQL spells them, in key order.
        partitioned: It is the root of partitions, which are read with it.
    """

    relation: Relation
    key_types: tuple[str, ...]
    partitioned: bool = False

    def has_same_key(self, other: "TableShape") -> bool:
        """Tell whether both are the same table with the same key."""
        return (self.relation.oid, self.relation.key_names, self.key_types) == (
            other.relation.oid,
            other.relation.key_names,
            other.key_types,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What is to be read of a table.

    Attributes:
        shape: The table when the plan was made.
        maximum_key: No chunk goes beyond it; None: there is no range to read.
        estimated_rows: What the server's statistics say, for the percentage.
        keys: Just these are asked for, and not yet delivered.
    """

    shape: TableShape
    maximum_key: Key | None
    estimated_rows: int
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    Rows that one query read, and what that query could see.

    Attributes:
        shape: The table at the moment of the query.
        rows: In key order.
        snapshot: Which transactions the query saw.
        is_last: The range, or the list of keys, holds no more rows.
    """

    shape: TableShape
    rows: Sequence[Row]
    snapshot: XidSnapshot
    is_last: bool

    @property
    def last_key(self) -> Key | None:
        """The key of the last row; None: there is no row."""
        return key_of(self.rows[-1], self.shape.relation.key) if self.rows else None


class StoredTable(NamedTuple):
    """
    One row of ``towpath.snapshot``: a table in a snapshot, as far as it is stored.

    ``pending_keys`` are still to be read, or read again; None: as they are stored.
    ``last_key`` and everything below it has been acknowledged by Kafka. ``asked_keys``
    says how many keys were listed; None: the whole table is read. ``asked_until`` is
    the place of the last change that made the relay itself ask; None: a signal asked.
    """

    snapshot_id: str
    collection: str
    ordinal: int
    state: str
    table_oid: int
    condition: str | None = None
    target: str | None = None
    max_rows_per_second: int | None = None
    last_key: Key | None = None
    maximum_key: Key | None = None
    pending_keys: tuple[Key, ...] | None = ()
    rows: int = 0
    dropped: int = 0
    chunks: int = 0
    estimated_rows: int = 0
    error: str | None = None
    asked_keys: int | None = None
    asked_until: str | None = None

    @property
    def percent(self) -> float | None:
        """How much is done, by the server's statistics; None: they say nothing."""
        if self.state == "completed":
            return 100.0
        if not self.estimated_rows:
            return None
        done = 100.0 * (self.rows + self.dropped) / self.estimated_rows
        return round(min(99.9, done), 1)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.state in {"completed", "failed", "stopped"}


# From the loop ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """A row was inserted into the signal table by transaction ``xid`` (32 bits)."""

    signal_id: str
    type: str
    data: str | None
    xid: int


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """
    The stream brought a watermark.

    Attributes:
        token: The message's content, as text.
        log_lsn: Its place in the log, lineage offset included: the message's own LSN,
            or its transaction's commit LSN when the message is transactional.
        sequence: The loop's counter: a change or a watermark later in the stream has
            a higher one.
    """

    token: str
    log_lsn: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Kafka has acknowledged every row of an ``EmitRows``."""

    chunk_id: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; told every few hundredths of a second."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """
    So many rows may be judged and emitted now, before the stream goes on.

    A row is emitted in the moment in which it is judged: what the stream brings of its
    key between two turns is heeded.
    """

    max_rows: int


# From the worker -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resumed:
    """
    What is stored of snapshots that have not ended, oldest first.

    Told at start, before the first message of the stream: keys that change while
    nobody listens would be lost.

    Attributes:
        tables: Those that have not ended, and the others of their snapshots.
        asked_until: The place of the last change for which the relay itself asked.
    """

    tables: tuple[StoredTable, ...]
    asked_until: str | None = None


@dataclass(frozen=True, slots=True)
class VisibilityRead:
    """A snapshot was taken: which transactions the server shows by now."""

    snapshot: XidSnapshot


@dataclass(frozen=True, slots=True)
class TablesInspected:
    """
    The tables that a signal names: those to read, and why not the others.

    ``keys`` are those that it lists, as the server writes them.
    """

    signal_id: str
    shapes: Mapping[str, TableShape]
    refusals: Mapping[str, str]
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalStored:
    """
    A signal's answer is durable: its transaction may be confirmed.

    ``is_new`` is false for a signal that was answered before: it is not run again.
    """

    signal_id: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class KeysStored:
    """A ``StoreKeys`` is durable: the transactions that led to it may be confirmed."""

    snapshot_id: str


@dataclass(frozen=True, slots=True)
class WatermarkWritten:
    """A ``WriteWatermark`` is in the log; the stream will bring it."""

    request_id: int


@dataclass(frozen=True, slots=True)
class PlanRead:
    """A ``ReadPlan`` is answered."""

    request_id: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A ``ReadChunk`` is answered, and its high watermark is in the log."""

    chunk_id: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """
    A ``WriteWatermark``, ``ReadPlan`` or ``ReadChunk`` could not be done.

    ``may_recover``: trying again may help. If not, the table's snapshot has failed.
    """

    request_id: int
    reason: str
    may_recover: bool


@dataclass(frozen=True, slots=True)
class ProgressSaved:
    """A ``SaveProgress`` is durable."""

    request_id: int


LoopFact = SignalSeen | WatermarkSeen | Delivered | Tick | Turn
WorkerFact = (
    Resumed
    | VisibilityRead
    | TablesInspected
    | SignalStored
    | KeysStored
    | WatermarkWritten
    | PlanRead
    | ChunkRead
    | ReadFailed
    | ProgressSaved
)
Fact = LoopFact | WorkerFact
