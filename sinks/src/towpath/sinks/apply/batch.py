"""
Write the records that slices leave to the driver, and store the dead letters. No Spark.

Records that cannot be read or applied are durable as dead letters before the batch
counts as done: after a crash in between, the batch is repeated, and the guard makes
that harmless. A partial change without a row becomes a dead letter only if its row
cannot be refetched.
"""

import threading
from collections.abc import Callable, Sequence
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
    request_row,
)
from towpath.sinks.apply.slice import allow
from towpath.sinks.apply.sweeps import SafePosition, Sweeps
from towpath.sinks.apply.task import AbandonedTasks
from towpath.sinks.apply.transformed import transform
from towpath.sinks.change import Floor, Origin, Record
from towpath.sinks.changes.decode import RECORDS_AT_ONCE, Decoded, decode, records_of
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetter, DeadLetterStore, ParkedKey
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.fold import first_per_event, newest_per_key
from towpath.sinks.ports import Batch, Erasing, KeepsEventOrder, Repairs, Sink
from towpath.sinks.state.refetches import Row


@dataclass(frozen=True, slots=True)
class BatchResult:
    """
    The counts of one batch.

    Attributes:
        skipped: Records that a route skips, counted once for each such route.
        left: Records that the slices left to the driver.
        refetches_requested: Rows requested from the source.
        nulled: Values set to null because the target cannot hold them.
        parked: Keys that are parked after the batch.
        held_back: Records that wait only because of an older record of their key.
        pending_refetches: Rows whose refetch is pending; ``None`` if unchanged.
        tombstones: Deletes among the changes.
        position: The highest position of the changes; empty if there were none.
    """

    records: int
    rows: int
    stale: int
    dead_letters: int
    skipped: int = 0
    left: int = field(default=0, compare=False)
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


# These counters add up over slices and batches.
COUNTERS: Final = (
    *("records", "rows", "stale", "dead_letters", "skipped", "refetches_requested"),
    *("nulled", "tombstones", "left"),
)
# These fields add up over the slices of a batch. The position is a maximum; the other
# fields are gauges.
_SUMMED: Final = (*COUNTERS, "held_back", "decode_ms", "apply_ms", "flush_ms")


def total(slices: Sequence[BatchResult]) -> BatchResult:
    """Add up a batch's slices, at least one; take the gauges from the last slice."""
    sums = {name: sum(getattr(one, name) for one in slices) for name in _SUMMED}
    return replace(slices[-1], position=max(one.position for one in slices), **sums)


_log = structlog.get_logger("towpath.sinks")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """
    The parts of one sink that its writer uses.

    Attributes:
        refusals: Consecutive refusals by the target; outlives the writer.
        abandoned: Abandoned tasks on executors, or an abandoned driver elsewhere;
            ``None`` if there can be neither.
        check: Called before each write; raises if another driver may run the sink.
    """

    dead_letters: DeadLetterStore
    parked: ParkedKeys
    sweeps: Sweeps
    repairs: Repairs
    refetches: PendingRefetches
    safe: SafePosition
    clock: Clock
    refusals: ConsecutiveRefusals = field(default_factory=ConsecutiveRefusals)
    abandoned: AbandonedTasks | None = None
    check: Callable[[], None] = allow

    def blocked_keys(self) -> frozenset[ParkedKey]:
        """Return the keys whose records only ``RecordWriter`` may write."""
        return self.parked.keys() | self.refetches.record_keys()


@dataclass(frozen=True, slots=True)
class AppliedRecords:
    """
    The outcome of applying records to the sink.

    Attributes:
        awaits_refetch: Whether the records depend on a pending refetch.
        tombstones: Deletes after folding: a delete and its tombstone record count once.
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


class RecordWriter:
    """Writes the records that slices leave to one sink, in batches; thread-safe."""

    def __init__(self, routes: Routes, sink: Sink, context: SinkContext) -> None:
        self.routes = routes
        self._sink = sink
        self._rule = KeyRule(routes, isinstance(sink, KeepsEventOrder))
        self._context = context
        self._delivery = Delivery(
            sink, context.clock, context.refusals, routes.sink_name
        )
        self._replay_id = 0
        # Dead letters stored since the last written batch, including those of a failed
        # attempt, which the next attempt finds in the topic.
        self._stored = 0
        # Grows with each floor that is applied, and with each erasure of keys: other
        # instances of the sink are unaware of both.
        self.floors_epoch = 0
        # Held by callers whose consecutive calls must see the same state.
        self.lock = threading.RLock()

    def write_rest(self, table: pa.Table, batch_id: int) -> BatchResult:
        """
        Write the records that slices left; all are durable when this returns.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        # Even an empty batch is one slice, because a slice flushes the sink.
        begins = range(0, max(len(table), 1), RECORDS_AT_ONCE)
        with self.lock:
            slices = [
                self._write_slice(
                    table.slice(begin, RECORDS_AT_ONCE),
                    batch_id,
                    is_last=begin == begins[-1],
                )
                for begin in begins
            ]
            return self._with_stored(total(slices))

    def write_records(self, records: Sequence[Record], batch_id: int) -> BatchResult:
        """
        Write records, as ``write_rest`` does.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        with self.lock:
            return self._with_stored(self._write(records, batch_id))

    def replay(self, records: Sequence[Record]) -> AppliedRecords:
        """
        Write the records of dead letters, even of parked keys; create no dead letters.

        Raises:
            UnavailableError: A system does not answer.
            HaltError: The sink refuses to continue.
        """
        with self.lock, self._context.refusals.uncounted():
            # No batch has a negative id: sinks may keep state by batch id.
            self._replay_id -= 1
            return self._apply(records, ParkedKeys(), self._replay_id)

    def request_overdue(self) -> None:
        """
        Request each due route as a whole; the caller holds ``lock``.

        Raises:
            UnavailableError: The requests are not known to be durable.
        """
        request_overdue(self._context.refetches, self._context.repairs)

    def request_row(self, row: Row, record_key: ParkedKey, position: str) -> bool:
        """
        Request a row that lacks the change at a position.

        Returns:
            Whether the row can be requested.

        Raises:
            UnavailableError: The request is not known to be durable.
        """
        context = self._context
        due = context.refetches.plan_discarded(row, record_key, position)
        return request_row(due, context.refetches, context.repairs)

    @property
    def can_erase(self) -> bool:
        """Whether the sink can delete single keys from its target."""
        return isinstance(self._sink, Erasing)

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Delete keys from the target, if the sink can.

        Raises:
            UnavailableError: The target does not answer, or is busy.
            HaltError: The target refuses the call.
        """
        if isinstance(self._sink, Erasing):
            with self.lock:
                self.floors_epoch += 1
                self._sink.erase(route, keys)

    def awaits_refetch(self, key: ParkedKey) -> bool:
        """Return whether a refetch of a record's key is pending."""
        return key in self._context.refetches.record_keys()

    def _with_stored(self, result: BatchResult) -> BatchResult:
        """Add the number of dead letters, including those of failed attempts."""
        count, self._stored = self._stored, 0
        return replace(result, dead_letters=count)

    def _write_slice(
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
        with self._context.refusals.attempt():
            written = self._apply(records, parked, batch_id, is_last=is_last)
            made = dead_letters_of(records, written.reasons, self._rule)
            stale = self._write_dead_letters(made, written)
        self._context.sweeps.mark_applied(written.floors)
        delivered, changes = written.delivered, written.held.changes
        return BatchResult(
            records=len(records),
            rows=delivered.applied,
            stale=delivered.stale + written.below + stale,
            dead_letters=0,
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
        """
        Apply records, unless another driver may run the sink.

        Tombstones are purged with the last slice of a batch only: a later slice may
        hold records below the safe position.
        """
        context = self._context
        context.check()
        began_s = context.clock.monotonic_s()
        decoded = decode(records, self.routes)
        floors = context.sweeps.record(decoded.floors)
        held = hold_back_parked(decoded, records, floors, parked, self._rule)
        folded = newest_per_key(held.changes, floors)
        if self.routes.has_transforms:
            folded = transform(folded, self.routes)
        events = first_per_event(held.events)
        decode_ms = round((context.clock.monotonic_s() - began_s) * 1000)
        safe = context.safe.take(context.parked.lowest()) if is_last else None
        batch = Batch(batch_id, folded.changes, events, self._lowering(floors), safe)
        delivered = self._delivery.deliver(batch, folded.after)
        changes = (*folded.changes, *folded.after)
        refused = (*folded.refused, *delivered.refused)
        candidates = held.refetch_candidates
        applied = AppliedBatch(records, changes, refused, floors, candidates)
        requested = request_refetches(applied, context.refetches, context.repairs)
        return AppliedRecords(
            decoded=decoded,
            held=held,
            floors=floors,
            delivered=delivered,
            reasons=reasons_of(decoded, requested.refused, held)
            | delivered.refused_events,
            below=folded.below,
            refetches_requested=requested.rows,
            awaits_refetch=requested.awaits_refetch,
            tombstones=sum(change.row is None for change in folded.changes),
            decode_ms=decode_ms,
        )

    def _lowering(self, floors: Sequence[Floor]) -> tuple[Floor, ...]:
        """
        Return the floors that delete rows below them; count them in ``floors_epoch``.

        Raises:
            TasksAbandonedError: An abandoned task may still write below a floor.
        """
        lowering = tuple(floor for floor in floors if not floor.is_end_only)
        abandoned = self._context.abandoned
        if lowering and abandoned is not None:
            abandoned.check_floor()
        self.floors_epoch += len(lowering)
        return lowering

    def _write_dead_letters(
        self, made: Sequence[DeadLetter], written: AppliedRecords
    ) -> int:
        """Store dead letters and release superseded keys; return ``_put``'s count."""
        if not (made or written.floors or written.held.superseding):
            return 0
        released = ReleasedKeys(written.held, written.floors, made, self._rule)
        parked = self._context.parked
        stale = self._put([x for x in made if released.has(x)])
        endings = released.resolutions(parked)
        if endings:
            self._context.dead_letters.resolve(endings)
            for ending in endings:
                parked.resolve(ending)
        # Stored after the resolutions: later dead letters park their keys again.
        return stale + self._put([x for x in made if not released.has(x)])

    def _put(self, made: Sequence[DeadLetter]) -> int:
        """Store dead letters; return the number of those that were resolved earlier."""
        if not made:
            return 0
        parked = self._context.parked
        fresh: list[DeadLetter] = []
        resolved: list[DeadLetter] = []
        for dead_letter in made:
            key = dead_letter.parked
            if key is not None and parked.is_resolved(key, dead_letter.position):
                resolved.append(dead_letter)
            elif not parked.has(dead_letter):
                fresh.append(dead_letter)
        if resolved:
            _log.info(
                "dead letters already resolved: their records were read again",
                sink=self.routes.sink_name,
                records=len(resolved),
                first=resolved[0].record.origin,
            )
        parked.check(fresh)
        self._stored += self._context.dead_letters.put(fresh) if fresh else 0
        for dead_letter in fresh:
            parked.park(dead_letter)
        return len(resolved)
