"""
Facts: the inputs of the snapshot driver.

The loop tells what the stream brings (signals, watermarks, deliveries, ticks); the
worker tells what came of the effects that it was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    ScanPlan,
    TableShape,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot

# From the loop ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """
    A row was inserted into the signal table by transaction ``xid`` (32 bits).

    ``position`` is the change's, as text: for people. ``relay`` is the one that its row
    names.
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
class RowsRefused:
    """Rows of a chunk went to the dead letters; ``keys`` are the table's own."""

    chunk_id: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """
    Time passes; told every few hundredths of a second.

    ``lag_s``: how far the stream is behind the source's clock.
    """

    now_s: float
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EmitAllowed:
    """
    So many rows may be judged and emitted now, before the stream goes on.

    A row is emitted in the moment in which it is judged: what the stream brings of its
    key between two turns is heeded.
    """

    max_rows: int


# From the worker -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnfinishedRead:
    """
    The stored tables of unfinished snapshots, oldest first.

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
class EndedRead:
    """All stored tables of a snapshot; none: there is no such snapshot."""

    signal_id: str
    tables: tuple[StoredTable, ...]


@dataclass(frozen=True, slots=True)
class SignalClaimed:
    """A signal is this relay's, or, with a ``refusal``, nobody's."""

    signal_id: str
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class SignalStored:
    """
    A signal's answer is durable: its transaction may be confirmed.

    ``is_new`` is false for a signal that was answered before, or is another relay's: it
    is not run.
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
    plan: ScanPlan


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
    more; what is left is read chunk by chunk. ``has_timed_out``: it took longer than
    the server allows.
    """

    request_id: int
    reason: str
    may_recover: bool
    has_thawed: bool = False
    has_timed_out: bool = False


@dataclass(frozen=True, slots=True)
class ProgressSaved:
    """A ``SaveProgress`` is durable."""

    request_id: int


@dataclass(frozen=True, slots=True)
class LoadRead:
    """How many sessions of others are at work in the source."""

    active_sessions: int


LoopFact = SignalSeen | WatermarkSeen | Delivered | RowsRefused | Tick | EmitAllowed
WorkerFact = (
    UnfinishedRead
    | VisibilityRead
    | TablesInspected
    | EndedRead
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
