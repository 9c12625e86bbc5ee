"""
One micro-batch: decode, fold, write, set aside. Free of Spark; rows come as Arrow.

What cannot be read or applied is durable among the dead letters before the batch counts
as done: a crash in between repeats the batch, and the guards absorb the repetition. A
partial change that finds no row is not set aside: its row is asked for (``asking``).

What became of a batch, and of its parts.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import structlog

from towpath.schemas.clock import Clock
from towpath.sinks.apply.bisect import ConsecutiveRefusals, Delivery, DeliveryResult
from towpath.sinks.apply.hold_back import (
    HeldBack,
    KeyRule,
    ReleasedKeys,
    dead_letters_of,
    hold_back_parked,
    reasons_of,
)
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.refetch_requests import (
    AppliedBatch,
    request_overdue,
    request_refetches,
)
from towpath.sinks.apply.sweeps import SafePosition, Sweeps
from towpath.sinks.change import Floor, Origin, Record
from towpath.sinks.changes.decode import Decoded, decode
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetter, DeadLetterStore, ParkedKey
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.fold import first_per_event, newest_per_key
from towpath.sinks.ports import Batch, Erasing, KeepsEventOrder, Repairs, Sink
from towpath.sinks.state.refetches import Row


@dataclass(frozen=True, slots=True)
class BatchResult:
    """
    What became of a batch's records.

    Attributes:
        skipped: Records that say nothing.
        asked: Rows that were asked for.
        nulled: Values that were made null because the target has no room for them.
        parked: Keys that are parked by now.
        owed: Rows that are owed by now; ``None``: as many as before.
        behind: Records that wait only because an older one of their key does.
        tombstones: Deletes among the changes.
        position: The highest of the changes' positions; empty if there was none.
    """

    records: int
    rows: int
    stale: int
    dead_letters: int
    skipped: int = 0
    refetches_requested: int = 0
    nulled: int = 0
    parked: int = 0
    held_back: int = 0
    pending_refetches: int | None = field(default=None, compare=False)
    tombstones: int = field(default=0, compare=False)
    position: str = field(default="", compare=False)
    decode_ms: int = field(default=0, compare=False)
    apply_ms: int = field(default=0, compare=False)
    flush_ms: int = field(default=0, compare=False)


def total(parts: Sequence[BatchResult]) -> BatchResult:
    """Add up the parts of a batch, at least one; what is by now is so by the last."""
    *before, added = parts
    for part in before:
        added = replace(
            added,
            records=added.records + part.records,
            rows=added.rows + part.rows,
            stale=added.stale + part.stale,
            dead_letters=added.dead_letters + part.dead_letters,
            skipped=added.skipped + part.skipped,
            refetches_requested=added.refetches_requested + part.refetches_requested,
            nulled=added.nulled + part.nulled,
            held_back=added.held_back + part.held_back,
            tombstones=added.tombstones + part.tombstones,
            position=max(added.position, part.position),
            decode_ms=added.decode_ms + part.decode_ms,
            apply_ms=added.apply_ms + part.apply_ms,
            flush_ms=added.flush_ms + part.flush_ms,
        )
    return added


# So many records are made into values at once; what is more is columns, as a rule. A
# cache's batch is whole, so that what one part says durably is not said again because
# another one fails.
BATCH_SLICE_RECORDS: Final = 125_000

_log = structlog.get_logger("towpath.sinks")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """
    What a writer has at hand beside its sink, all of it for this sink only.

    Attributes:
        in_a_row: What the target has refused; outlives the writer.
    """

    dead_letters: DeadLetterStore
    parked: ParkedKeys
    sweeps: Sweeps
    repairs: Repairs
    refetches: PendingRefetches
    safe: SafePosition
    clock: Clock
    refusals: ConsecutiveRefusals = field(default_factory=ConsecutiveRefusals)

    def blocked_keys(self) -> frozenset[ParkedKey]:
        """Return the keys of which nothing may be written in pieces."""
        return self.parked.keys() | self.refetches.record_keys()


@dataclass(frozen=True, slots=True)
class AppliedRecords:
    """
    What became of records that were given to the sink.

    Attributes:
        is_open: Whether rows are owed that they rest upon.
    """

    decoded: Decoded
    held: HeldBack
    floors: Sequence[Floor]
    delivered: DeliveryResult
    reasons: dict[Origin, str]
    below: int
    refetches_requested: int
    awaits_refetch: bool
    tombstones: int
    decode_ms: int


class BatchWriter:
    """Writes micro-batches into one sink; one at a time, whoever calls."""

    def __init__(self, routes: Routes, sink: Sink, context: SinkContext) -> None:
        self.routes = routes
        self._sink = sink
        self._rule = KeyRule(routes, isinstance(sink, KeepsEventOrder))
        self._context = context
        self._delivery = Delivery(sink, context.clock, context.refusals)
        self._replay_id = 0
        # Held by whoever must find nothing changed between two calls.
        self.lock = threading.RLock()

    def write(self, table: pa.Table, batch_id: int) -> BatchResult:
        """
        Write one batch, part by part; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        # Of nothing, too: the sink is flushed all the same.
        begins = range(0, max(len(table), 1), BATCH_SLICE_RECORDS)
        with self.lock:
            parts = [
                self._write_part(
                    table.slice(begin, BATCH_SLICE_RECORDS),
                    batch_id,
                    is_last=begin == begins[-1],
                )
                for begin in begins
            ]
        return total(parts)

    def write_records(self, records: Sequence[Record], batch_id: int) -> BatchResult:
        """
        Write one batch of records, as ``write`` does.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        with self.lock:
            return self._write(records, batch_id)

    def replay(self, records: Sequence[Record]) -> AppliedRecords:
        """
        Write records that were set aside, whatever is parked; set nothing aside.

        Raises:
            UnavailableError: Some part does not answer.
            HaltError: The sink refuses to go on.
        """
        with self.lock:
            # An id of its own: what a sink keeps of a batch is not of another replay.
            self._replay_id -= 1
            return self._apply(records, ParkedKeys(), self._replay_id)

    def request_overdue(self) -> None:
        """
        Ask for what was put off until now; whoever calls holds ``alone``.

        Raises:
            UnavailableError: It is not known to be asked for.
        """
        request_overdue(self._context.refetches, self._context.repairs)

    def note_refetch(self, row: Row, record_key: ParkedKey, position: str) -> None:
        """Take note that a row was asked for which lacks a change at a position."""
        self._context.refetches.add(row, record_key, position)

    @property
    def can_erase(self) -> bool:
        """Tell whether the sink can take single keys out of its target."""
        return isinstance(self._sink, Erasing)

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Take keys out of the target, if the sink can.

        Raises:
            UnavailableError: The target does not answer.
        """
        if isinstance(self._sink, Erasing):
            with self.lock:
                self._sink.erase(route, keys)

    def awaits_refetch(self, key: ParkedKey) -> bool:
        """Tell whether the row of a record's key is owed."""
        return key in self._context.refetches.record_keys()

    def _write_part(
        self, table: pa.Table, batch_id: int, *, is_last: bool
    ) -> BatchResult:
        began_s = self._context.clock.monotonic_s()
        records = records_of(table)
        read_ms = round((self._context.clock.monotonic_s() - began_s) * 1000)
        result = self._write(records, batch_id, is_last=is_last)
        return replace(result, decode_ms=read_ms + result.decode_ms)

    def _write(
        self, records: Sequence[Record], batch_id: int, *, is_last: bool = True
    ) -> BatchResult:
        parked = self._context.parked
        written = self._apply(records, parked, batch_id, is_last=is_last)
        made = dead_letters_of(records, written.reasons, self._rule)
        count, stale = self._settle(made, written)
        self._context.sweeps.carried_out(written.floors)
        delivered, changes = written.delivered, written.held.changes
        return BatchResult(
            records=len(records),
            rows=delivered.applied,
            stale=delivered.stale + written.below + stale,
            dead_letters=count,
            skipped=written.decoded.skipped,
            refetches_requested=written.refetches_requested,
            nulled=delivered.nulled,
            parked=len(parked),
            pending_refetches=len(self._context.refetches),
            held_back=len(written.held.held_back),
            tombstones=written.tombstones,
            position=max((change.position for change in changes), default=""),
            decode_ms=written.decode_ms,
            apply_ms=delivered.apply_ms,
            flush_ms=delivered.flush_ms,
        )

    def _apply(
        self,
        records: Sequence[Record],
        parked: ParkedKeys,
        batch_id: int,
        *,
        is_last: bool = True,
    ) -> AppliedRecords:
        context = self._context
        began_s = context.clock.monotonic_s()
        decoded = decode(records, self.routes)
        floors = context.sweeps.counting(decoded.floors)
        held = hold_back_parked(decoded, records, floors, parked, self._rule)
        folded = newest_per_key(held.changes, floors)
        events = first_per_event(held.events)
        decode_ms = round((context.clock.monotonic_s() - began_s) * 1000)
        # The parts before the last one leave it: a later one may hold what lies below.
        safe = context.safe.take(context.parked.lowest()) if is_last else None
        lowering = tuple(floor for floor in floors if not floor.is_end_only)
        batch = Batch(batch_id, folded.changes, events, lowering, safe)
        delivered = self._delivery.deliver(batch, folded.after)
        changes = (*folded.changes, *folded.after)
        refused = (*folded.refused, *delivered.refused)
        applied = AppliedBatch(records, changes, refused, floors, held.mending)
        requested = request_refetches(applied, context.refetches, context.repairs)
        reasons = reasons_of(decoded, requested.refused, held)
        return AppliedRecords(
            decoded=decoded,
            held=held,
            floors=floors,
            delivered=delivered,
            reasons=reasons | delivered.refused_events,
            below=folded.below,
            refetches_requested=requested.rows,
            awaits_refetch=requested.awaits_refetch,
            # Folded: a delete and the empty record behind it are one.
            tombstones=sum(change.row is None for change in folded.changes),
            decode_ms=decode_ms,
        )

    def _settle(
        self, made: Sequence[DeadLetter], written: AppliedRecords
    ) -> tuple[int, int]:
        """Set letters aside, and end what is over; return as ``_set_aside`` does."""
        if not (made or written.floors or written.held.superseding):
            return 0, 0
        over = ReleasedKeys(written.held, written.floors, made, self._rule)
        parked = self._context.parked
        count, stale = self._set_aside([x for x in made if over.has(x)])
        endings = over.endings(parked)
        if endings:
            self._context.dead_letters.resolve(endings)
            for ending in endings:
                parked.end(ending)
        # Only now: what is above parks its key anew.
        above = self._set_aside([x for x in made if not over.has(x)])
        return count + above[0], stale + above[1]

    def _set_aside(self, made: Sequence[DeadLetter]) -> tuple[int, int]:
        """Put letters away durably; return how many, and how many are over already."""
        if not made:
            return 0, 0
        parked = self._context.parked
        fresh: list[DeadLetter] = []
        over: list[DeadLetter] = []
        for dead_letter in made:
            key = dead_letter.parked
            if key is not None and parked.is_over(key, dead_letter.position):
                over.append(dead_letter)
            elif not parked.has(dead_letter):
                fresh.append(dead_letter)
        if over:
            _log.info(
                "what was set aside once, and is over, came again",
                records=len(over),
                first=over[0].record.origin,
            )
        parked.check(fresh)
        count = self._context.dead_letters.put(fresh) if fresh else 0
        for dead_letter in fresh:
            parked.park(dead_letter)
        return count, len(over)


def records_of(table: pa.Table) -> list[Record]:
    """Turn Kafka's columns into records; a repeated header's last value counts."""
    table = table.combine_chunks()
    if not len(table):
        return []
    headers = _headers(table.column("headers"))
    columns = (
        table.column(name).to_pylist()
        for name in ("topic", "partition", "offset", "key", "value")
    )
    return [
        Record(Origin(topic, partition, offset), key, value, given)
        for topic, partition, offset, key, value, given in zip(
            *columns, headers, strict=True
        )
    ]


def _headers(column: pa.ChunkedArray) -> list[dict[str, bytes]]:
    """Read all headers in three passes over flat columns, not row by row."""
    array = pa.concat_arrays(column.chunks)
    flat = array.flatten()
    names = flat.field("key").to_pylist()
    values = flat.field("value").to_pylist()
    rows = []
    end = 0
    for length in pa.compute.list_value_length(array).to_pylist():
        begin, end = end, end + (length or 0)
        rows.append(
            {
                name: value
                for name, value in zip(names[begin:end], values[begin:end], strict=True)
                if value is not None
            }
        )
    return rows
