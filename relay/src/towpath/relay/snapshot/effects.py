"""
Effects: the operations that the snapshot driver requests.

``LoopEffect``: the loop produces records. ``WorkerEffect``: the loop hands it to
``SnapshotWorker.submit`` as it is; the answer comes back as a fact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from towpath.relay.snapshot.shape import Key, RowValues, TableShape
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.wal.messages import Relation

# For the loop ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmitRows:
    """
    Produce rows as READ at ``Position(log_lsn, -1)``, at once and in order.

    Attributes:
        chunk_id: To be told in ``Delivered`` once the last part of the chunk was told
            and Kafka has acknowledged all of it.
        relation: The shape that the rows have.
        rows: May be empty, to tell of the last part.
        absent: Keys that were asked for and have no row: deletes at the same place.
        is_last: No more of this chunk will come.
        log_lsn: The chunk's low watermark.
        snapshot_id: The signal's id, for the header ``snapshot``.
        target: The one sink that gets them, through ``<topic>.backfill.<target>``;
            None: they go to the table's topic.
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
    Produce a sweep into every partition of the collection's topic.

    Sinks delete each row of the table that stands below the floor: it was deleted in a
    gap that no record tells of. ``Delivered`` is told as of a chunk.

    Attributes:
        chunk_id: To be told in ``Delivered``.
        relation: The table.
        log_lsn: Where the sweep stands: the low watermark of the last chunk.
        floor: The log LSN of the snapshot's first mark.
        snapshot_id: The signal's id.
        target: The one sink that gets it; None: it goes to the table's topic.
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
    Publish a notification in Debezium's shape.

    ``type`` and ``aggregate_type`` are those of ``notifications``. The loop adds
    ``connector_name`` to the additional data, and the timestamp.
    """

    snapshot_id: str
    type: str
    additional_data: Mapping[str, str]
    aggregate_type: str = "Incremental Snapshot"


# For the worker --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeVisibility:
    """Take a snapshot: ``VisibilityRead``. The loop may ask for one by itself."""


@dataclass(frozen=True, slots=True)
class InspectTables:
    """
    Look the collections up in the catalog: ``TablesInspected``.

    ``keys`` are a signal's own words for keys of its only collection; ``order_by``
    names the columns of the key that it has chosen. One of ``expressions``, by which
    collections were found, that is the exact name of another table is refused.
    """

    signal_id: str
    collections: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    order_by: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """Read all tables of a snapshot, which may have ended: ``EndedRead``."""

    signal_id: str
    snapshot_id: str


@dataclass(frozen=True, slots=True)
class ClaimSignal:
    """
    Look up whose a signal is: ``SignalClaimed``; ``SignalStored`` if another relay's.

    ``address`` is the relay that it names; None: it names none.
    """

    signal_id: str
    address: str | None


@dataclass(frozen=True, slots=True)
class StoreSignal:
    """
    Answer a new signal and store its tables, in one transaction: ``SignalStored``.

    A signal that has an answer already, or tables in ``towpath.snapshot``, is left as
    it is. ``changed`` are tables that are stopped, paused or queued again with it, in
    their new state. ``is_ours`` is false for a signal that belongs to no relay.
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
    Store what the relay itself asks for, in one transaction: ``KeysStored``.

    ``size_bytes`` is what the keys take in memory until then.
    """

    snapshot_id: str
    tables: tuple[StoredTable, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerSignal:
    """Write how a signal's run goes into its row; nothing is told back."""

    signal_id: str
    status: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """Store how far a table is: ``ProgressSaved``."""

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
    Read shape, maximum key and size of a table: ``PlanRead`` or ``ReadFailed``.

    Attributes:
        request_id: To be told in the answer.
        collection: The table, or the aggregate view.
        table_oid: Another one fails the snapshot.
        condition: The signal's filter, an SQL expression.
        keys_of: The snapshot whose stored keys are to be read instead of a range.
        order_by: The columns of a chosen key to read by; none: its own.
        parts: Into how many ranges the table may be cut.
        frozen_by: The name of the one view of the database to be read in, made when it
            is asked for first; none: each chunk has its own.
        select: A SELECT that is read in place of the table.
    """

    request_id: int
    collection: str
    table_oid: int
    condition: str | None = None
    keys_of: str | None = None
    order_by: tuple[str, ...] = ()
    parts: int = 1
    frozen_by: str | None = None
    select: str | None = None


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """
    Read one chunk between two watermarks: ``ChunkRead`` or ``ReadFailed``.

    Attributes:
        chunk_id: To be told in the answer.
        shape: The table as planned: another oid or key fails the snapshot.
        low_token: To be written before the query; None: there is a low watermark.
        high_token: To be written after the query.
        after_key: Rows at or below it were read before; None: from the beginning.
        maximum_key: No row above it; only a list of keys goes without.
        keys: Read just these, if there are any, in place of a range.
        condition: The signal's filter, an SQL expression.
        max_rows: At most this many rows.
        frozen_by: Read in the view of this name, and write no watermarks.
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
    frozen_by: str | None = None
    select: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseSnapshot:
    """Let go of a view, for good: nothing is read in it any more, nothing told back."""

    view: str


@dataclass(frozen=True, slots=True)
class ProbeLoad:
    """Ask how busy the source is: ``LoadRead``."""


LoopEffect = EmitRows | EmitSweep | Notify
WorkerEffect = (
    ProbeVisibility
    | InspectTables
    | ReadEnded
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
