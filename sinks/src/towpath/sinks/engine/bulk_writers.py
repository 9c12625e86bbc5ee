"""
The plain records of a batch, given to a sink as columns; what it leaves goes on.

Both ways go through the same guard, so their order does not matter; plain rows go
first, because a partial change may rest upon one of them. All records of a key go the
same way.

Large batches of a sink that takes columns: the plain at once, the rest as ever.

Large batches of a sink that does not wait: sent portion by portion.

While the target works on one portion, the next is decoded; the answers are waited for
once, by the flush. Only what is plain is written so (see ``plain``): a batch that holds
anything else is written again as a whole, in the ordinary way.
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

# Below, records cost less one by one than what is saved is worth.
LEAST_RECORDS: Final = 2_000


class RemainingRecords(NamedTuple):
    """
    What a sink has left of a batch that it was given as columns.

    Attributes:
        records: What is to be written record by record.
        position: The highest position of what was taken; empty if nothing was.
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
    Give a sink what is plain of a batch.

    Args:
        records: The batch, or a part of it.
        routes: What its records say.
        excluded_keys: Keys whose records are written record by record.
        take: Takes what it can of a route's plain records; tells where they stand.

    Raises:
        BatchRefusedError: The target refuses a row and does not say which.
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
    """The rows that were laid out of a portion, for one route, and their positions."""

    route: str
    rows: pa.Table
    indices: pa.Array
    highest: str


class ColumnCollector:
    """
    Collects what is plain of a batch, portion by portion.

    Call order: ``add`` for each portion, then ``rows``, then ``left``.
    """

    def __init__(
        self,
        routes: Routes,
        excluded_keys: Collection[bytes],
        encode_columns: Callable[[Columns], EncodedColumns | None],
    ) -> None:
        """
        Begin with nothing.

        Args:
            routes: What the records say.
            excluded_keys: Keys whose records are written record by record.
            encode_columns: Encodes those plain records that the sink can take.
        """
        self._routes = routes
        self._excluded_keys = excluded_keys
        self._lay_out = encode_columns
        self._slices: list[tuple[pa.Table, list[_EncodedSlice]]] = []
        self._schemas: dict[str, pa.Schema] = {}

    def add(self, slice_: pa.Table) -> None:
        """
        Lay out the plain records of a portion.

        Raises:
            UnavailableError: The sink's target cannot be reached.
        """
        laid = []
        for columns in plain_columns(slice_, self._routes, self._excluded_keys):
            found = self._lay_out(columns)
            if found is None or not len(found.rows):
                continue
            schema = self._schemas.setdefault(columns.route, found.rows.schema)
            # Their table has changed since the portion before.
            if schema == found.rows.schema:
                highest = pc.max(columns.positions).as_py()
                laid.append(
                    _EncodedSlice(columns.route, found.rows, found.indices, highest)
                )
        self._slices.append((slice_, laid))

    def rows(self) -> dict[str, pa.Table]:
        """Return the rows of each route; none of a key that is left elsewhere."""
        self._settle()
        found: dict[str, list[pa.Table]] = defaultdict(list)
        for _, laid in self._slices:
            for one in laid:
                found[one.route].append(one.rows)
        return {route: pa.concat_tables(rows) for route, rows in found.items()}

    def left(self) -> RemainingRecords:
        """Return what is to be written record by record."""
        rests = self._rests()
        taken = [one.highest for _, laid in self._slices for one in laid]
        records = pa.concat_tables(rests) if rests else RECORDS.empty_table()
        return RemainingRecords(records, max(taken, default=""))

    def _rests(self) -> list[pa.Table]:
        """Return the records of each portion of which nothing was laid out."""
        return [
            _rest(slice_, [one.indices for one in laid])
            for slice_, laid in self._slices
        ]

    def _settle(self) -> None:
        """Let go of rows whose key has a record that was not laid out."""
        rests = self._rests()
        keys = pa.chunked_array(
            [chunk for rest in rests for chunk in rest.column("key").chunks],
            pa.binary(),
        )
        if not len(keys):
            return
        strange = keys.unique()
        for slice_, laid in self._slices:
            own = slice_.column("key")
            laid[:] = [_without(one, own, strange) for one in laid]


def _rest(records: pa.Table, taken: list[pa.Array]) -> pa.Table:
    """Return what stands at none of the places that were taken."""
    if not taken:
        return records
    # As a rule; then nothing is looked for.
    if sum(map(len, taken)) == len(records):
        return records.slice(0, 0)
    every = pa.array(range(len(records)), taken[0].type)
    return records.filter(pc.invert(pc.is_in(every, pa.concat_arrays(taken))))


def _without(
    laid: _EncodedSlice, keys: pa.ChunkedArray, strange: pa.Array
) -> _EncodedSlice:
    stays = pc.invert(pc.is_in(keys.take(laid.indices), strange)).combine_chunks()
    if pc.all(stays).as_py():
        return laid
    return laid._replace(
        rows=laid.rows.filter(stays), indices=laid.indices.filter(stays)
    )


# So many are decoded in one go: enough for each step of it to be worth its call, and
# few enough to be found where the step before has left them.
DECODE_RECORDS: Final = 25_000

_log = structlog.get_logger("towpath.sinks")


class ColumnWriter:
    """Writes a sink's large batches column by column, as far as they are plain."""

    def __init__(
        self, writer: BatchWriter, sink: Columnar, context: SinkContext
    ) -> None:
        self._writer = writer
        self._sink = sink
        self._context = context

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
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
        """Write what is plain."""
        context, sink = self._context, self._sink
        if rows.most < LEAST_RECORDS or len(context.parked):
            return RemainingRecords(rows.table)
        # What settles a row that is owed must be seen to.
        refetches = frozenset(row.key for row in context.refetches.record_keys())
        gathering = ColumnCollector(self._writer.routes, refetches, sink.encode_columns)
        for slice_ in _grouped(rows.slices()):
            gathering.add(slice_)
        try:
            for route, laid in gathering.rows().items():
                sink.write_rows(route, laid)
        except BatchRefusedError as error:
            _log.warning("a batch is written record by record", answer=str(error))
            return RemainingRecords(rows.table)
        return gathering.left()


def _grouped(slices: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put portions together, as many as are decoded in one go."""
    group: list[pa.Table] = []
    for slice_ in slices:
        group.append(slice_)
        if sum(map(len, group)) >= DECODE_RECORDS:
            yield pa.concat_tables(group)
            group.clear()
    if group:
        yield pa.concat_tables(group)


# A smaller batch is one portion, and has nothing to gain.
PIPELINED_FROM_RECORDS: Final = 8_000


class PipelinedSink(Sink, Pipelined, Protocol):
    """A sink that does not wait."""


@dataclass(slots=True)
class _PipelinedResult:
    """What was sent of a batch, and what became of it; of the changes only counts."""

    records: int = 0
    skipped: int = 0
    tombstones: int = 0
    position: str = ""
    fallback_reason: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    send_ms: int = 0
    flush_ms: int = 0

    def add(self, part: PlainSlice, position: str) -> None:
        """Count a portion: what was read of it, and how far its columns reach."""
        self.skipped += part.skipped
        self.tombstones += part.tombstones
        self.position = max(self.position, part.position, position)
        self.fallback_reason = part.fallback_reason


class PipelinedWriter:
    """Writes a sink's large batches portion by portion, as far as they are plain."""

    def __init__(
        self, name: str, writer: BatchWriter, sink: PipelinedSink, context: SinkContext
    ) -> None:
        self._name = name
        self._writer = writer
        self._sink = sink
        self._context = context

    def write(self, rows: BatchRows, batch_id: int) -> BatchResult:
        """
        Write one batch; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        if rows.most < PIPELINED_FROM_RECORDS:
            return self._writer.write(rows.table, batch_id)
        with self._writer.lock:
            before = self._context.refetches.incomplete_routes()
            sent = self._send(rows, batch_id, before)
            left = _fallback_reason(sent)
            if self._context.refetches.incomplete_routes() - before:
                left = ROWS_LOST
            if left:
                _log.info(
                    "a batch is written whole after all", sink=self._name, why=left
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
            # Only now: the batch may hold what lies below.
            safe = context.safe.take(context.parked.lowest())
            sink.send(Batch(batch_id, safe=safe))
        sent.checkpoint = sink.flush()
        sent.send_ms = round((sent_s - began_s) * 1000)
        sent.flush_ms = round((context.clock.monotonic_s() - sent_s) * 1000)
        return sent

    def _read(self, rows: BatchRows) -> Iterator[pa.Table]:
        """Give the portions; what was sent before one that fails counts nowhere."""
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
            # Decoding and writing go on at the same time.
            apply_ms=sent.send_ms,
            flush_ms=sent.flush_ms,
        )


def _fallback_reason(sent: _PipelinedResult) -> str:
    """Say why the batch is to be written in the ordinary way; empty if it is done."""
    if sent.fallback_reason:
        return sent.fallback_reason
    return "the target refuses a change" if sent.checkpoint.refused else ""
