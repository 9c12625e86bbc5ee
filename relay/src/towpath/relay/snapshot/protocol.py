"""
The protocol of the snapshot driver: facts in, effects out.

The loop reports the stream's signals, watermarks, deliveries and ticks. It produces
the records of a ``LoopEffect`` and hands each ``WorkerEffect`` to
``SnapshotWorker.submit``; the worker reports the outcome as a ``WorkerFact``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    PartitionsOf,
    RowValues,
    ScanPlan,
    TableShape,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.messages import Relation

# Facts from the loop ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """
    A row inserted into the signal table by transaction ``xid`` (32 bits).

    ``position`` is the change's position as human-readable text. ``relay`` is the relay
    that the row names, if any.
    """

    signal_id: str
    type: str
    data: str | None
    xid: int
    position: str = ""
    relay: str | None = None


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """
    A watermark in the stream.

    ``token`` is its content. ``log_lsn`` is its own LSN, or the commit LSN of a
    transactional message, lineage offset included. ``sequence`` is the loop's counter:
    higher for a later change or watermark.
    """

    token: str
    log_lsn: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Kafka has acknowledged every row of an ``EmitRows``."""

    chunk_id: int


@dataclass(frozen=True, slots=True)
class RowsRefused:
    """Rows of a chunk are dead letters; ``keys`` are values of the table's own key."""

    chunk_id: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """The current time and the stream's lag, about every 20 ms while there is work."""

    now_s: float
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EmitAllowed:
    """
    The number of rows that may be deduplicated and emitted before the stream continues.

    A row is emitted the moment it is deduplicated, so the changes that the stream
    delivers between two turns are taken into account. Without ``partitions_of``, rows
    are emitted in the order in which they were read.
    """

    max_rows: int
    partitions_of: PartitionsOf | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedRead:
    """
    The stored tables of unfinished snapshots, oldest first.

    They are reported at the start, before the first message of the stream, so that no
    changed key is missed. ``tables`` includes the ended tables of these snapshots.
    ``asked_until`` is the position of the last change that led to a key request.
    ``failed_requests`` holds, per table oid, the position of the last change whose key
    request failed.
    """

    tables: tuple[StoredTable, ...]
    asked_until: str | None = None
    failed_requests: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class VisibilityRead:
    """The transactions that are now visible in the source."""

    snapshot: XidSnapshot


@dataclass(frozen=True, slots=True)
class TablesInspected:
    """
    The tables that a signal names: the shapes to read, and why others are refused.

    ``keys`` are the listed keys, as the server writes them.
    """

    signal_id: str
    shapes: Mapping[str, TableShape]
    refusals: Mapping[str, str]
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotTablesRead:
    """All stored tables of a snapshot; empty if there is no such snapshot."""

    signal_id: str
    tables: tuple[StoredTable, ...]


@dataclass(frozen=True, slots=True)
class SignalClaimed:
    """A signal belongs to this relay or, with a ``refusal``, to no relay."""

    signal_id: str
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class SignalStored:
    """
    The answer to a signal is durable: the signal's transaction may be confirmed.

    ``is_new`` is false for a signal that was answered before, has an earlier snapshot's
    id, or belongs to another relay; such a signal is not run.
    """

    signal_id: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class KeysStored:
    """A ``StoreKeys`` is durable: the transactions that led to it may be confirmed."""

    snapshot_id: str


@dataclass(frozen=True, slots=True)
class WatermarkWritten:
    """A ``WriteWatermark`` is in the log; the stream will deliver it."""

    request_id: int


@dataclass(frozen=True, slots=True)
class PlanRead:
    """The result of a ``ReadPlan``."""

    request_id: int
    plan: ScanPlan


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """The result of a ``ReadChunk``, whose high watermark is in the log."""

    chunk_id: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """
    A ``WriteWatermark``, ``ReadPlan`` or ``ReadChunk`` failed.

    Attributes:
        may_recover: Whether a retry may help; if not, the table's snapshot has failed.
        has_lost_view: Whether the exported snapshot no longer exists, or no longer
            shows the table; the rest is then read chunk by chunk.
        has_timed_out: Whether the statement took longer than the server allows.
    """

    request_id: int
    reason: str
    may_recover: bool
    has_lost_view: bool = False
    has_timed_out: bool = False


@dataclass(frozen=True, slots=True)
class ProgressSaved:
    """A ``SaveProgress`` is durable."""

    request_id: int


@dataclass(frozen=True, slots=True)
class LoadRead:
    """The number of other active sessions in the source."""

    active_sessions: int


LoopFact = SignalSeen | WatermarkSeen | Delivered | RowsRefused | Tick | EmitAllowed
WorkerFact = (
    UnfinishedRead
    | VisibilityRead
    | TablesInspected
    | SnapshotTablesRead
    | SignalClaimed
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

# Effects for the loop --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmitRows:
    """
    Produce rows as READ at ``Position(log_lsn, -1)``, immediately and in order.

    Attributes:
        chunk_id: Reported in ``Delivered`` once Kafka has acknowledged the chunk's last
            slice and all slices before it.
        rows: May be empty in the last slice.
        log_lsn: The log LSN of the chunk's low watermark.
        snapshot_id: The signal's id, for the header ``snapshot``.
        target: The one sink that receives them, through ``<topic>.backfill.<target>``;
            None if they go to the table's topic.
        absent: Requested keys that have no row: deletes at the same position.
        is_last: Whether this is the last slice of the chunk.
    """

    chunk_id: int
    relation: Relation
    rows: Sequence[RowValues]
    log_lsn: int
    snapshot_id: str
    target: str | None
    absent: tuple[Key, ...] = ()
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class EmitSweep:
    """
    Produce a sweep to every partition of the collection's topic.

    Sinks delete each row of the table whose position is below the floor: the source
    deleted the row in a gap that no record covers.

    Attributes:
        chunk_id: Reported in ``Delivered``, like a chunk's.
        log_lsn: The sweep's position: the log LSN of the newest start mark.
        floor: The log LSN of the first start mark; 0 deletes no row.
        target: The one sink that receives it; None if it goes to the table's topic.
    """

    chunk_id: int
    relation: Relation
    log_lsn: int
    floor: int
    snapshot_id: str
    target: str | None


@dataclass(frozen=True, slots=True)
class Notify:
    """
    Publish a notification in Debezium's format.

    ``notifications`` lists the values of ``type`` and ``aggregate_type``. The loop adds
    ``connector_name`` to the additional data, and the timestamp.
    """

    snapshot_id: str
    type: str
    additional_data: Mapping[str, str]
    aggregate_type: str = "Incremental Snapshot"


@dataclass(frozen=True, slots=True)
class ProbeVisibility:
    """Read the visible transactions: ``VisibilityRead``. The loop submits it too."""


@dataclass(frozen=True, slots=True)
class InspectTables:
    """
    Describe the collections from the catalog: ``TablesInspected``.

    Attributes:
        keys: Listed keys of the only collection, as the signal spells them.
        order_by: The columns of a surrogate key.
        expressions: The regular expressions that matched collections; one that is also
            the exact name of another table is refused.
    """

    signal_id: str
    collections: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    order_by: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadSnapshotTables:
    """Read all tables of a snapshot, ended or not: ``SnapshotTablesRead``."""

    signal_id: str
    snapshot_id: str


@dataclass(frozen=True, slots=True)
class ClaimSignal:
    """
    Look up a signal's relay: ``SignalClaimed`` or ``SignalStored``.

    ``SignalStored`` means that the signal belongs to another relay. ``address`` is the
    relay that the signal names; None if it names none.
    """

    signal_id: str
    address: str | None


@dataclass(frozen=True, slots=True)
class StoreSignal:
    """
    Answer a new signal and store its tables, in one transaction: ``SignalStored``.

    An earlier answer is kept. A signal without one is rejected if ``towpath.snapshot``
    has tables with its id. ``changed`` are tables that the signal stops, pauses or
    queues again, in their new state. ``is_ours`` is false if no relay owns the signal.
    """

    signal_id: str
    status: str
    detail: Mapping[str, Any]
    tables: tuple[StoredTable, ...] = ()
    changed: tuple[StoredTable, ...] = ()
    is_ours: bool = True


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """
    Store a batch of key requests, in one transaction: ``KeysStored``.

    ``size_bytes`` is the memory that the keys take until they are stored.
    """

    snapshot_id: str
    tables: tuple[StoredTable, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerSignal:
    """Write the state of a signal's run into the signal's row; no fact follows."""

    signal_id: str
    status: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """Store a table's progress: ``ProgressSaved``."""

    request_id: int
    table: StoredTable


@dataclass(frozen=True, slots=True)
class WriteWatermark:
    """Write ``token`` into the log: ``WatermarkWritten``, later ``WatermarkSeen``."""

    request_id: int
    token: str


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """
    Read a table's shape, maximum key and size: ``PlanRead`` or ``ReadFailed``.

    Attributes:
        table_oid: The table's oid; if it has changed, the snapshot fails.
        condition: The signal's filter, an SQL expression.
        keys_of: The snapshot whose stored keys are read instead of a range.
        order_by: The columns of a surrogate key; empty for the table's own key.
        parts: The number of ranges into which the table may be split.
        view: The exported snapshot to read from, created by the first request that
            names it; None if each chunk has its own snapshot.
        select: A SELECT that is read in place of the table.
    """

    request_id: int
    collection: str
    table_oid: int
    condition: str | None = None
    keys_of: str | None = None
    order_by: tuple[str, ...] = ()
    parts: int = 1
    view: str | None = None
    select: str | None = None


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """
    Read one chunk between two watermarks: ``ChunkRead`` or ``ReadFailed``.

    Attributes:
        shape: The table as planned: a different oid or key fails the snapshot.
        low_token: Written before the query; None if a low watermark already exists.
        high_token: Written after the query.
        after_key: No row at or below it is read; None to read from the beginning.
        maximum_key: No row above it is read; None only for a list of keys.
        keys: The keys to read in place of a range, if any.
        condition: The signal's filter, an SQL expression.
        view: The exported snapshot to read from, without watermarks; None if the chunk
            has its own snapshot.
        select: A SELECT that is read in place of the table.
    """

    chunk_id: int
    shape: TableShape
    low_token: str | None
    high_token: str
    after_key: Key | None
    maximum_key: Key | None
    keys: tuple[Key, ...]
    condition: str | None
    max_rows: int
    view: str | None = None
    select: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseSnapshot:
    """Release an exported snapshot for good; no fact follows."""

    view: str


@dataclass(frozen=True, slots=True)
class ProbeLoad:
    """Count the active sessions in the source: ``LoadRead``."""


LoopEffect = EmitRows | EmitSweep | Notify
WorkerEffect = (
    ProbeVisibility
    | InspectTables
    | ReadSnapshotTables
    | ClaimSignal
    | StoreSignal
    | StoreKeys
    | AnswerSignal
    | SaveProgress
    | WriteWatermark
    | ReadPlan
    | ReadChunk
    | ReleaseSnapshot
    | ProbeLoad
)
Effect = LoopEffect | WorkerEffect
