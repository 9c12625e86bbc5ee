"""
What the snapshot driver is told.

The loop tells what the stream brings (signals, watermarks, deliveries, ticks); the
worker tells what came of the effects that it was given. A *key* is the raw text bytes
of a row's key columns, in key order, the same from the stream and from a chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.relation import Relation

Key = tuple[bytes, ...]
Row = tuple[bytes | None, ...]

INCREMENTAL: Final = "incremental"
BLOCKING: Final = "blocking"
INITIAL: Final = "initial"


def key_of(row: Row, indexes: Sequence[int]) -> Key:
    """Return a row's key; key columns are never null."""
    return tuple(row[index] or b"" for index in indexes)


class View(NamedTuple):
    """
    An aggregate view: a row per aggregate, read in place of outbox rows that are gone.

    Attributes:
        aggregate_type: Whose aggregates they are.
        name: The view, as ``schema.name``.
    """

    aggregate_type: str
    name: str


class KeyRange(NamedTuple):
    """
    A part of a table that one reader reads, in key order.

    Attributes:
        after_key: Rows at or below it are acknowledged, or another range's; None: from
            the table's beginning.
        last_key: No row above it.
        is_done: All of it is acknowledged.
    """

    after_key: Key | None
    last_key: Key
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """
    A table as the catalog tells it.

    Attributes:
        relation: Its columns, in the order in which chunks bring them, and its key.
        key_types: The types of the key's columns, as SQL spells them, in key order.
        partitioned: It is the root of partitions, which are read with it.
        order: The places of the columns by which it is read in order, a unique key too;
            none: by its key.
        order_types: The types of those columns, as SQL spells them.
        row_filter: The publication's filter, an SQL expression.
        view: Where rows come from when the collection is no table.
    """

    relation: Relation
    key_types: tuple[str, ...]
    partitioned: bool = False
    order: tuple[int, ...] = ()
    order_types: tuple[str, ...] = ()
    row_filter: str | None = None
    view: View | None = None

    @property
    def order_key(self) -> tuple[int, ...]:
        """The places of the columns by which it is read in order."""
        return self.order or self.relation.key

    def has_same_key(self, other: "TableShape") -> bool:
        """Tell whether both are the same table with the same key."""
        return self.identity == other.identity

    @property
    def identity(self) -> tuple[object, ...]:
        """What must not change while it is read: the table and its keys."""
        relation = self.relation
        order = tuple(relation.columns[place].name for place in self.order)
        types = (self.key_types, self.order_types)
        return relation.oid, relation.key_names, order, types


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What is to be read of a table.

    Attributes:
        shape: The table when the plan was made.
        maximum_key: No chunk goes beyond it; None: there is no range to read.
        estimated_rows: What the server's statistics say, for the percentage.
        keys: Just these are asked for, and not yet delivered.
        boundaries: Keys, in order, that cut what lies below the maximum key into parts
            of about the same size; as many as were asked for, or fewer.
    """

    shape: TableShape
    maximum_key: Key | None
    estimated_rows: int
    keys: tuple[Key, ...] = ()
    boundaries: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    Rows that one query read, and what that query could see.

    Attributes:
        shape: The table at the moment of the query.
        rows: In key order.
        snapshot: Which transactions the query saw.
        is_last: The range, or the list of keys, holds no more rows.
        size_bytes: What the rows take as COPY text.
        elapsed_s: How long the server took for them.
    """

    shape: TableShape
    rows: Sequence[Row]
    snapshot: XidSnapshot
    is_last: bool
    size_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def last_key(self) -> Key | None:
        """Where the last row stands in the order; None: there is no row."""
        return key_of(self.rows[-1], self.shape.order_key) if self.rows else None


class StoredTable(NamedTuple):
    """
    One row of ``towpath.snapshot``: a table in a snapshot, as far as it is stored.

    ``pending_keys`` are still to be read, or read again; None: as they are stored.
    ``last_key`` and everything below it has been acknowledged by Kafka. ``asked_keys``
    says how many keys were listed; None: the whole table is read. ``asked_until`` is
    the place of the last change that made the relay itself ask; None: a signal asked.
    ``kind`` is ``incremental``, ``blocking`` or ``initial``; the ``condition`` of the
    first is a filter, that of the others a SELECT. ``order_by`` names the columns of a
    chosen key. ``ranges`` are what several readers have each done. ``floor`` is the log
    LSN of the first mark: with ``sweeps``, whatever stands below it in the end is gone.
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
    kind: str = INCREMENTAL
    order_by: tuple[str, ...] = ()
    ranges: tuple[KeyRange, ...] = ()
    floor: int | None = None
    sweeps: bool = False

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
    """
    Time passes; told every few hundredths of a second.

    ``lag_s``: how far the stream is behind the source's clock.
    """

    now_s: float
    lag_s: float = 0.0


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
    ``has_thawed``: the one view of the database is gone, or does not hold the table any
    more; what is left is read chunk by chunk.
    """

    request_id: int
    reason: str
    may_recover: bool
    has_thawed: bool = False


@dataclass(frozen=True, slots=True)
class ProgressSaved:
    """A ``SaveProgress`` is durable."""

    request_id: int


@dataclass(frozen=True, slots=True)
class LoadRead:
    """How many sessions of others are at work in the source."""

    active_sessions: int


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
    | LoadRead
)
Fact = LoopFact | WorkerFact
