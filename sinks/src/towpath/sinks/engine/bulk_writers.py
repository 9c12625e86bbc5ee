"""
Bulk writers: large batches as columns, or sent slice by slice while the target works.

``ColumnWriter`` gives a sink the plain records of a batch as columns, and gives the
batch writer the others. Both pass the same guard, so their order does not matter; plain
rows come first, because a partial change may depend on one of them. All records of a
key take the same path.

``PipelinedWriter`` sends a batch slice by slice: while the target works on one slice,
the next is decoded, and one flush waits for all responses. Only plain slices are sent
(see ``plain``): a batch with anything else is written again as a whole.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from towpath.schemas.failure import TowpathError
from towpath.sinks.apply.batch import BatchResult, BatchWriter, SinkContext, records_of
from towpath.sinks.apply.plain import ROWS_LOST, PlainSlice, decode_plain
from towpath.sinks.changes.columns import Columns, EncodedColumns, plain_columns
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.query import BatchRows
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.kafka.fetch import RECORDS
from towpath.sinks.ports import Batch, Checkpoint, Columnar, Pipelined, Sink

# Smaller batches cost less record by record.
LEAST_RECORDS: Final = 2_000


class RemainingRecords(NamedTuple):
    """
    The records of a batch that the sink did not take as columns.

    Attributes:
        records: The records to be written one by one.
        position: The highest position of the taken records; empty if none was.
    """

    records: pa.Table
    position: str = ""


def after_columns(
    records: pa.Table,
    routes: Routes,
    excluded_keys: Collection[bytes],
    take: Callable[[Columns], pa.Array | None],
) -> RemainingRecords:
    """
    Give a sink the plain records of a batch; return the others.

    Args:
        records: The batch, or a slice of it.
        routes: The routes of the sink.
        excluded_keys: Keys whose records are written one by one.
        take: Takes those plain records of a route that it can; returns their indices.

    Raises:
        BatchRefusedError: The target refuses a row without naming it.
    """
    if len(records) < LEAST_RECORDS:
        return RemainingRecords(records)
    taken: list[pa.Array] = []
    highest = ""
    for columns in plain_columns(records, routes, excluded_keys):
        indices = take(columns)
        if indices is not None:
            taken.append(indices)
            highest = max(highest, pc.max(columns.positions).as_py())
    if not taken:
        return RemainingRecords(records)
    return RemainingRecords(_rest(records, taken), highest)


class _EncodedSlice(NamedTuple):
    """The encoded rows of a slice and one route, and their highest position."""

    route: str
    rows: pa.Table
    indices: pa.Array
    highest: str


class ColumnCollector:
    """
    Collects the plain records of a batch, slice by slice.

    Call order: ``add`` for each slice, then ``rows``, then ``remaining``.
    """

    def __init__(
        self,
        routes: Routes,
        excluded_keys: Collection[bytes],
        encode_columns: Callable[[Columns], EncodedColumns | None],
    ) -> None:
        """
        Store the parameters.

        Args:
            routes: The routes of the sink.
            excluded_keys: Keys whose records are written one by one.
            encode_columns: Encodes those plain records of a route that the sink can
                take.
        """
        self._routes = routes
        self._excluded_keys = excluded_keys
        self._encode_columns = encode_columns
        self._slices: list[tuple[pa.Table, list[_EncodedSlice]]] = []
        self._schemas: dict[str, pa.Schema] = {}

    def add(self, slice_: pa.Table) -> None:
        """
        Encode the plain records of a slice.

        Raises:
            UnavailableError: The sink's target cannot be reached.
        """
        encoded = []
        for columns in plain_columns(slice_, self._routes, self._excluded_keys):
            found = self._encode_columns(columns)
            if found is None or not len(found.rows):
                continue
            schema = self._schemas.setdefault(columns.route, found.rows.schema)
            # Their table has changed since the previous slice.
            if schema == found.rows.schema:
                highest = pc.max(columns.positions).as_py()
                encoded.append(
                    _EncodedSlice(columns.route, found.rows, found.indices, highest)
                )
        self._slices.append((slice_, encoded))

    def rows(self) -> dict[str, pa.Table]:
        """Return the rows of each route, without keys that have a remaining record."""
        self._drop_remaining_keys()
        found: dict[str, list[pa.Table]] = defaultdict(list)
        for _, encoded in self._slices:
            for one in encoded:
                found[one.route].append(one.rows)
        return {route: pa.concat_tables(rows) for route, rows in found.items()}

    def remaining(self) -> RemainingRecords:
        """Return the records to be written one by one."""
        rests = self._rests()
        taken = [one.highest for _, encoded in self._slices for one in encoded]
        records = pa.concat_tables(rests) if rests else RECORDS.empty_table()
        return RemainingRecords(records, max(taken, default=""))

    def _rests(self) -> list[pa.Table]:
        """Return the records of each slice that were not encoded."""
        return [
            _rest(slice_, [one.indices for one in encoded])
            for slice_, encoded in self._slices
        ]

    def _drop_remaining_keys(self) -> None:
        """Drop rows whose key has a record that was not encoded."""
        rests = self._rests()
        keys = pa.chunked_array(
            [chunk for rest in rests for chunk in rest.column("key").chunks],
            pa.binary(),
        )
        if not len(keys):
            return
        dropped = keys.unique()
        for slice_, encoded in self._slices:
            own = slice_.column("key")
            encoded[:] = [_without(one, own, dropped) for one in encoded]


def _rest(records: pa.Table, taken: list[pa.Array]) -> pa.Table:
    """Return the records at none of the taken indices."""
    if not taken:
        return records
    # The usual case, without a search.
    if sum(map(len, taken)) == len(records):
        return records.slice(0, 0)
    every = pa.array(range(len(records)), taken[0].type)
    return records.filter(pc.invert(pc.is_in(every, pa.concat_arrays(taken))))


def _without(
    one: _EncodedSlice, keys: pa.ChunkedArray, dropped: pa.Array
) -> _EncodedSlice:
    stays = pc.invert(pc.is_in(keys.take(one.indices), dropped)).combine_chunks()
    if pc.all(stays).as_py():
        return one
    return one._replace(rows=one.rows.filter(stays), indices=one.indices.filter(stays))


# Records decoded at once: enough to make each step's call worthwhile, and few enough to
# stay in the processor's cache.
DECODE_RECORDS: Final = 25_000

_log = structlog.get_logger("towpath.sinks")


class ColumnWriter:
    """Writes a sink's large batches as columns, as far as they are plain."""

    def __init__(
        self, writer: BatchWriter, sink: Columnar, context: SinkContext
    ) -> None:
        self._writer = writer
        self._sink = sink
        self._context = context

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; all of it is durable when this returns.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        with self._writer.lock:
            return self._write(rows, batch_id)

    def _write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        began_s = self._context.clock.monotonic_s()
        rest, position = self._after_columns(rows)
        took_ms = round((self._context.clock.monotonic_s() - began_s) * 1000)
        result = self._writer.write(rest, batch_id)
        return replace(
            result,
            records=len(rows.table),
            position=max(result.position, position),
            apply_ms=result.apply_ms + took_ms,
        )

    def _after_columns(self, rows: BatchRows) -> RemainingRecords:
        """Write the plain records; return the others."""
        context, sink = self._context, self._sink
        if rows.most < LEAST_RECORDS or len(context.parked):
            return RemainingRecords(rows.table)
        # Rows that complete a refetch are written one by one.
        refetches = frozenset(row.key for row in context.refetches.record_keys())
        collector = ColumnCollector(self._writer.routes, refetches, sink.encode_columns)
        for slice_ in _grouped(rows.slices()):
            collector.add(slice_)
        try:
            for route, encoded in collector.rows().items():
                sink.write_rows(route, encoded)
        except BatchRefusedError as error:
            answer = str(error)
            _log.warning("batch refused as columns: writing records", answer=answer)
            return RemainingRecords(rows.table)
        return collector.remaining()


def _grouped(slices: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate slices to the size that is decoded at once."""
    group: list[pa.Table] = []
    for slice_ in slices:
        group.append(slice_)
        if sum(map(len, group)) >= DECODE_RECORDS:
            yield pa.concat_tables(group)
            group.clear()
    if group:
        yield pa.concat_tables(group)


# A smaller batch is one slice, and gains nothing.
PIPELINED_FROM_RECORDS: Final = 8_000


class PipelinedSink(Sink, Pipelined, Protocol):
    """A sink that does not wait for its target."""


@dataclass(slots=True)
class _PipelinedResult:
    """The counts of a batch that was sent slice by slice."""

    records: int = 0
    skipped: int = 0
    tombstones: int = 0
    position: str = ""
    fallback_reason: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    send_ms: int = 0
    flush_ms: int = 0

    def add(self, part: PlainSlice, position: str) -> None:
        """Add a slice, and the highest position of its columns."""
        self.skipped += part.skipped
        self.tombstones += part.tombstones
        self.position = max(self.position, part.position, position)
        self.fallback_reason = part.fallback_reason


class PipelinedWriter:
    """Writes a sink's large batches slice by slice, as far as they are plain."""

    def __init__(
        self, name: str, writer: BatchWriter, sink: PipelinedSink, context: SinkContext
    ) -> None:
        self._name = name
        self._writer = writer
        self._sink = sink
        self._context = context

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; all of it is durable when this returns.

        Raises:
            UnavailableError: A system does not answer; write the batch again.
            HaltError: The sink refuses to continue.
        """
        if rows.most < PIPELINED_FROM_RECORDS:
            return self._writer.write(rows.table, batch_id)
        with self._writer.lock:
            before = self._context.refetches.incomplete_routes()
            sent = self._send(rows, batch_id, before)
            reason = _fallback_reason(sent)
            if self._context.refetches.incomplete_routes() - before:
                reason = ROWS_LOST
            if reason:
                _log.info(
                    "batch not plain: writing it as a whole",
                    sink=self._name,
                    why=reason,
                )
                return self._writer.write(rows.table, batch_id)
            return self._result(sent)

    def _send(
        self, rows: BatchRows, batch_id: int, incomplete_routes: Collection[str]
    ) -> _PipelinedResult:
        context = self._context
        began_s = context.clock.monotonic_s()
        blocked_keys = context.blocked_keys()
        excluded_keys = frozenset(parked.key for parked in blocked_keys)
        routes, sink = self._writer.routes, self._sink
        sent = _PipelinedResult()
        for slice_ in self._read(rows):
            sent.records += len(slice_)
            rest, position = after_columns(
                slice_, routes, excluded_keys, sink.send_columns
            )
            part = decode_plain(
                records_of(rest), routes, blocked_keys, incomplete_routes
            )
            sent.add(part, position)
            if part.fallback_reason:
                break
            if part.changes:
                sink.send(Batch(batch_id, part.changes))
        sent_s = context.clock.monotonic_s()
        if not sent.fallback_reason:
            # After the other slices: the batch may hold records below the position.
            safe = context.safe.take(context.parked.lowest())
            sink.send(Batch(batch_id, safe=safe))
        sent.checkpoint = sink.flush()
        sent.send_ms = round((sent_s - began_s) * 1000)
        sent.flush_ms = round((context.clock.monotonic_s() - sent_s) * 1000)
        return sent

    def _read(self, rows: BatchRows) -> Iterator[pa.Table]:
        """Yield the slices; a failure resets the counts of the slices sent before."""
        try:
            yield from rows.slices()
        except TowpathError:
            self._sink.flush()
            raise

    def _result(self, sent: _PipelinedResult) -> BatchResult:
        return BatchResult(
            records=sent.records,
            rows=sent.checkpoint.applied,
            stale=sent.checkpoint.stale,
            dead_letters=0,
            skipped=sent.skipped,
            parked=len(self._context.parked),
            pending_refetches=len(self._context.refetches),
            tombstones=sent.tombstones,
            position=sent.position,
            # Decoding and writing overlap.
            apply_ms=sent.send_ms,
            flush_ms=sent.flush_ms,
        )


def _fallback_reason(sent: _PipelinedResult) -> str:
    """Return why the batch has to be written as a whole; empty if it is done."""
    if sent.fallback_reason:
        return sent.fallback_reason
    return "the target refuses a change" if sent.checkpoint.refused else ""
