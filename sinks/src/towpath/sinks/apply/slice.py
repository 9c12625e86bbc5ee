"""
Apply a slice of a batch to a target: the same function in the driver and in a task.

A slice is the whole batch in the driver, and one partition of a topic in a task of the
engine. Rows that are plain are written as columns; other records are decoded one by
one, folded and written.

However a history is split into slices, the result is the same. All records of a key are
in one partition of a topic, so one task folds them in order. The guard orders the
changes of different topics, and of repeated or abandoned tasks: a target keeps the
newest position of each key, and refuses older ones. Floors commute with changes: a
change below a floor is deleted by the floor, or refused after it.

Some records need state that only the driver has: parked keys, pending refetches, dead
letters, floors. They are *left*, together with the other records of their keys, and
the driver writes them after the slices (see ``RecordWriter``):

- the records of blocked keys, of unreadable records, and of changes that the target
  refuses;
- partial changes that cannot be merged here: without a row, above a row from another
  partition, without columns that a transform needs, or on a route that lacks rows;
- changes that cannot be transformed;
- floors;
- all records for a target that keeps the order of events: no event may overtake a
  refused one.

No Spark, no state beyond a slice. Hot path: a fixed number of passes over the columns
of a chunk, and one pass over the records that are not plain.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.sinks.apply.transformed import transform
from towpath.sinks.change import Record
from towpath.sinks.changes.columns import plain_columns
from towpath.sinks.changes.decode import RECORDS, RECORDS_AT_ONCE, decode, records_of
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import ParkedKey, shared_topic
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.fold import first_per_event, newest_per_key
from towpath.sinks.ports import Batch, Checkpoint, Columnar, KeepsEventOrder, Sink

# Smaller chunks are faster to write record by record.
LEAST_RECORDS: Final = 2_000
# Records parsed together: enough to make each step's call worthwhile, and few enough to
# stay in the processor's cache.
PARSED_AT_ONCE: Final = 25_000
# Within the range of Arrow's 32-bit offsets, with space for the text around each row.
PARSED_BYTES: Final = 1024 * 1024 * 1024

_log = structlog.get_logger("towpath.sinks")


def allow() -> None:
    """Allow every call to a sink."""


@dataclass(frozen=True, slots=True)
class SliceContext:
    """
    The parameters of a slice.

    Attributes:
        routes: The routes of the sink.
        sink: The open sink.
        blocked_keys: Keys that are parked or have a refetch pending.
        incomplete_routes: Routes that lack rows.
        batch_id: The batch's id.
        pipelined_records: The number of records per call to a sink whose target works
            while the next ones are decoded; ``None`` for as few calls as possible.
        check: Called before each call to the sink; raises if no call may begin now.
    """

    routes: Routes
    sink: Sink
    blocked_keys: frozenset[ParkedKey]
    incomplete_routes: frozenset[str]
    batch_id: int
    clock: Clock
    pipelined_records: int | None = None
    check: Callable[[], None] = allow


class SliceOutcome(NamedTuple):
    """
    The outcome of a slice; everything written is durable.

    Attributes:
        records: The number of records.
        left: The records that only the driver may write, as a table of ``RECORDS``.
        rows: Changes written and events appended.
        skipped: Records that a route skips, counted once for each such route.
        tombstones: Deletes among the changes.
        position: The highest position written; empty if there was none.
    """

    records: int
    left: pa.Table
    rows: int = 0
    stale: int = 0
    nulled: int = 0
    skipped: int = 0
    tombstones: int = 0
    position: str = ""
    decode_ms: int = 0
    apply_ms: int = 0
    flush_ms: int = 0


_COUNTS: Final = ("records", "rows", "stale", "nulled", "skipped", "tombstones")
_TIMES: Final = ("decode_ms", "apply_ms", "flush_ms")


def total(outcomes: Sequence[SliceOutcome]) -> SliceOutcome:
    """Add up the counts of slices written in parallel; keep the longest times."""
    counts = {name: sum(getattr(one, name) for one in outcomes) for name in _COUNTS}
    times = {
        name: max((getattr(one, name) for one in outcomes), default=0)
        for name in _TIMES
    }
    return SliceOutcome(
        left=_joined([one.left for one in outcomes]),
        position=max((one.position for one in outcomes), default=""),
        **counts,
        **times,
    )


def apply_slice(context: SliceContext, records: Iterable[pa.Table]) -> SliceOutcome:
    """
    Write a slice chunk by chunk, and flush the sink at its end.

    Args:
        context: The parameters of the slice.
        records: Tables of ``RECORDS``; the records of a partition are in offset order.

    Raises:
        BusyError: The target asks for a pause; a retry loses nothing.
        UnavailableError: The target does not answer, or the time is up; a retry loses
            nothing.
        HaltError: The sink refuses to continue.
    """
    if isinstance(context.sink, KeepsEventOrder):
        left = _joined([*records])
        return SliceOutcome(len(left), left)
    run = _SliceRun(context)
    for chunk in _chunks(_read(records, context.sink), run.chunk_records):
        run.add(chunk)
    return run.end()


def _read(records: Iterable[pa.Table], sink: Sink) -> Iterator[pa.Table]:
    """Yield the records; on a failure, flush the sink to reset its counts."""
    try:
        yield from records
    except TowpathError:
        with suppress(TowpathError):
            sink.flush()
        raise


class PlainRecords(NamedTuple):
    """
    The records of a chunk, decoded.

    Attributes:
        batch: The changes and events to write, folded.
        skipped: Records that a route skips, counted once for each such route.
        tombstones: Deletes among the changes.
        position: The highest position of the changes; empty if there are none.
        left: The indices of the records that are left.
        blocked_keys: The given keys, and the keys of the records that are left.
    """

    batch: Batch
    skipped: int
    tombstones: int
    position: str
    left: frozenset[int]
    blocked_keys: frozenset[ParkedKey]


def decode_plain(
    records: Sequence[Record],
    context: SliceContext,
    blocked_keys: frozenset[ParkedKey],
) -> PlainRecords:
    """
    Decode and fold records; leave those that only the driver may write.

    Args:
        records: The records.
        context: The parameters of the slice.
        blocked_keys: The keys that are blocked now.
    """
    left = _indices(records, blocked_keys)
    while True:
        # Each round leaves at least one record, so the loop ends.
        kept = [r for n, r in enumerate(records) if n not in left] if left else records
        decoded = decode(kept, context.routes)
        folded = newest_per_key(decoded.changes)
        if context.routes.has_transforms:
            folded = transform(folded, context.routes)
        doubtful = (
            *(refusal.change for refusal in folded.refused),
            *folded.after,
            *(
                change
                for change in folded.changes
                if change.unchanged and change.route in context.incomplete_routes
            ),
        )
        excluded = {change.origin for change in doubtful}
        excluded |= {record.origin for record in decoded.unreadable}
        floors = {floor.origin for floor in decoded.floors}
        if not (excluded or floors):
            break
        keys = {key for r in kept if r.origin in excluded and (key := key_of(r))}
        alone = {n for n, r in enumerate(records) if r.origin in excluded | floors}
        blocked_keys |= keys
        left |= alone | _indices(records, keys)
    return PlainRecords(
        Batch(context.batch_id, folded.changes, first_per_event(decoded.events)),
        skipped=decoded.skipped,
        tombstones=sum(change.row is None for change in folded.changes),
        position=max((change.position for change in decoded.changes), default=""),
        left=left,
        blocked_keys=blocked_keys,
    )


def key_of(record: Record) -> ParkedKey | None:
    """Return the key of a record, which is the same in all topics of its table."""
    if record.key is None:
        return None
    return ParkedKey(shared_topic(record.origin.topic), record.key)


def _indices(records: Sequence[Record], keys: Collection[ParkedKey]) -> frozenset[int]:
    """Return the indices of the records of some keys."""
    if not keys:
        return frozenset()
    return frozenset(n for n, record in enumerate(records) if key_of(record) in keys)


class _SliceRun:
    """
    The state of a slice that is being applied.

    Call order: ``add`` for each chunk, then ``end``.
    """

    def __init__(self, context: SliceContext) -> None:
        self._context = context
        self._sink = context.sink
        self._blocked = context.blocked_keys
        self._is_pipelined = context.pipelined_records is not None
        self._records_per_write = context.pipelined_records or RECORDS_AT_ONCE
        self._chunks: list[pa.Table] = []
        # Records to be decoded one by one, which are not written yet.
        self._rest: list[pa.Table] = []
        # Tables that the sink has accepted since its last flush, each with the indices
        # of the rows that it took as columns; ``None`` if it took the whole table.
        self._accepted: list[tuple[pa.Table, Sequence[pa.Array] | None]] = []
        self._left: list[pa.Table] = []
        self._has_columns = False
        self._records = self._skipped = self._tombstones = 0
        self._position = ""
        self._checkpoint = Checkpoint()
        self._is_flushed = False
        self._decode_s = self._apply_s = self._flush_s = 0.0

    @property
    def chunk_records(self) -> int:
        """The number of records that are parsed together."""
        return min(self._records_per_write, PARSED_AT_ONCE)

    def add(self, chunk: pa.Table) -> None:
        """Write the plain rows of a chunk, and other records once there are enough."""
        began_s = self._context.clock.monotonic_s()
        self._records += len(chunk)
        self._chunks.append(chunk)
        rest = self._write_columns(chunk)
        self._apply_s += self._context.clock.monotonic_s() - began_s
        if len(rest):
            self._rest.append(rest)
        if self._is_pipelined or sum(map(len, self._rest)) >= self._records_per_write:
            self._write_rest()

    def end(self) -> SliceOutcome:
        """Write the remaining records; flush the sink, even without a change."""
        self._write_rest()
        if self._accepted or not self._is_flushed:
            self._flush()
        return SliceOutcome(
            self._records,
            _joined(self._left),
            rows=self._checkpoint.applied,
            stale=self._checkpoint.stale,
            nulled=self._checkpoint.nulled,
            skipped=self._skipped,
            tombstones=self._tombstones,
            position=self._position,
            decode_ms=round(self._decode_s * 1000),
            apply_ms=round(self._apply_s * 1000),
            flush_ms=round(self._flush_s * 1000),
        )

    def _write_columns(self, chunk: pa.Table) -> pa.Table:
        """Write plain rows as columns; return the other records."""
        sink = self._sink
        # The last chunk of a large slice is written like the others: some targets
        # commit rows written as columns and other changes separately.
        is_large = len(chunk) >= LEAST_RECORDS or self._has_columns
        if not isinstance(sink, Columnar) or not is_large:
            return chunk
        taken: list[pa.Array] = []
        for columns in plain_columns(chunk, self._context.routes, self._excluded()):
            self._context.check()
            indices = sink.apply_columns(columns)
            if indices is not None:
                taken.append(indices)
                highest = pc.max(columns.positions).as_py()
                self._position = max(self._position, highest)
        if taken:
            self._has_columns = True
            self._accepted.append((chunk, taken))
        return _without_indices(chunk, taken)

    def _excluded(self) -> set[bytes]:
        """Return the keys whose records are decoded one by one."""
        keys = {parked.key for parked in self._blocked}
        for table in self._rest:
            keys.update(table.column("key").drop_null().to_pylist())
        return keys

    def _write_rest(self) -> None:
        """Write the records that are not plain, each key once."""
        if not self._rest:
            return
        clock = self._context.clock
        began_s = clock.monotonic_s()
        table = _joined(self._rest)
        self._rest.clear()
        plain = decode_plain(records_of(table), self._context, self._blocked)
        decoded_s = clock.monotonic_s()
        self._decode_s += decoded_s - began_s
        self._skipped += plain.skipped
        if plain.left:
            is_left = pa.array([n in plain.left for n in range(len(table))])
            self._left.append(table.filter(is_left))
            table = table.filter(pc.invert(is_left))
            self._leave(plain.blocked_keys - self._blocked)
        if not (plain.batch.changes or plain.batch.events):
            return
        self._accepted.append((table, None))
        self._context.check()
        try:
            self._sink.apply(plain.batch)
        except BatchRefusedError as error:
            self._leave_accepted(error)
            return
        finally:
            self._apply_s += clock.monotonic_s() - decoded_s
        self._tombstones += plain.tombstones
        self._position = max(self._position, plain.position)
        if not self._is_pipelined:
            # Flush now: the later changes of a refused change's key must also be left.
            self._flush()

    def _flush(self) -> None:
        """Make everything accepted durable; leave the keys that were refused."""
        self._context.check()
        began_s = self._context.clock.monotonic_s()
        try:
            checkpoint = self._sink.flush()
        except BatchRefusedError as error:
            self._leave_accepted(error)
            return
        finally:
            self._flush_s += self._context.clock.monotonic_s() - began_s
        before = self._checkpoint
        self._checkpoint = Checkpoint(
            applied=before.applied + checkpoint.applied,
            stale=before.stale + checkpoint.stale,
            nulled=before.nulled + checkpoint.nulled,
        )
        self._leave_refused(checkpoint)
        self._accepted.clear()
        self._is_flushed = True

    def _leave_refused(self, checkpoint: Checkpoint) -> None:
        """Leave all records of the keys whose changes were refused."""
        origins = {refusal.change.origin for refusal in checkpoint.refused}
        origins |= checkpoint.refused_events.keys()
        if not origins:
            return
        keys: set[ParkedKey] = set()
        offsets = pa.array([origin.offset for origin in origins], pa.int64())
        for table, _ in self._accepted:
            found = table.filter(pc.is_in(table.column("offset"), offsets))
            keys |= {
                key
                for record in records_of(found)
                if record.origin in origins and (key := key_of(record))
            }
        self._leave(keys)

    def _leave_accepted(self, error: BatchRefusedError) -> None:
        """Leave the records of a call that was refused although no change was named."""
        _log.warning(
            "batch refused as a slice: the driver writes its records",
            sink=self._context.routes.sink_name,
            answer=str(error),
        )
        keys = {
            key
            for table, taken in self._accepted
            for record in records_of(
                table if taken is None else table.take(pa.concat_arrays(taken))
            )
            if (key := key_of(record))
        }
        self._accepted.clear()
        self._leave(keys)

    def _leave(self, keys: Collection[ParkedKey]) -> None:
        """Leave all records of some keys, including those already written."""
        if not keys:
            return
        self._blocked |= frozenset(keys)
        names = pa.array([key.key for key in keys], pa.binary())
        known = {origin for table in self._left for origin in _origins(table)}
        for chunk in self._chunks:
            found = chunk.filter(pc.is_in(chunk.column("key"), names))
            topics = map(shared_topic, found.column("topic").to_pylist())
            record_keys = zip(topics, found.column("key").to_pylist(), strict=True)
            is_left = [
                ParkedKey(*key) in keys and origin not in known
                for key, origin in zip(record_keys, _origins(found), strict=True)
            ]
            self._left.append(found.filter(pa.array(is_left, pa.bool_())))


def _origins(records: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and offset of each record."""
    names = ("topic", "partition", "offset")
    return zip(*(records.column(name).to_pylist() for name in names), strict=True)


def _chunks(tables: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    """Join and cut tables into chunks of about ``most`` records and a bounded size."""
    group: list[pa.Table] = []
    for table in tables:
        for begin in range(0, len(table), most):
            piece = table.slice(begin, most)
            for part in _halved(piece) if piece.nbytes > PARSED_BYTES else (piece,):
                if group and sum(t.nbytes for t in (*group, part)) > PARSED_BYTES:
                    yield _joined(group)
                    group.clear()
                group.append(part)
                if sum(map(len, group)) >= most:
                    yield _joined(group)
                    group.clear()
    if group:
        yield _joined(group)


def _halved(table: pa.Table) -> Iterator[pa.Table]:
    """Halve a table until each part is small enough, or has only one record."""
    if len(table) <= 1 or table.nbytes <= PARSED_BYTES:
        yield table
        return
    half = len(table) // 2
    yield from _halved(table.slice(0, half))
    yield from _halved(table.slice(half))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else RECORDS.empty_table()


def _without_indices(records: pa.Table, taken: Sequence[pa.Array]) -> pa.Table:
    """Return the records except those at the taken indices."""
    if not taken:
        return records
    # The usual case, without a search.
    if sum(map(len, taken)) == len(records):
        return records.slice(0, 0)
    every = pa.array(range(len(records)), taken[0].type)
    return records.filter(pc.invert(pc.is_in(every, pa.concat_arrays(taken))))
