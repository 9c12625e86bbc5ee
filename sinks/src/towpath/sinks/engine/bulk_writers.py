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
from towpath.sinks.apply.plain import ROWS_LOST, Plain, plain_of
from towpath.sinks.changes.columns import Columns, LaidRows, plain_columns
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.query import Rows
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.kafka.fetch import RECORDS
from towpath.sinks.ports import Batch, Checkpoint, Columnar, Pipelined, Sink

# Below, records cost less one by one than what is saved is worth.
LEAST_RECORDS: Final = 2_000


class Left(NamedTuple):
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
    apart: Collection[bytes],
    take: Callable[[Columns], pa.Array | None],
) -> Left:
    """
    Give a sink what is plain of a batch.

    Args:
        records: The batch, or a part of it.
        routes: What its records say.
        apart: Keys whose records are left, whatever they say.
        take: Takes what it can of a route's plain records; tells where they stand.

    Raises:
        BatchRefusedError: The target refuses a row and does not say which.
    """
    if len(records) < LEAST_RECORDS:
        return Left(records)
    taken: list[pa.Array] = []
    highest = ""
    for columns in plain_columns(records, routes, apart):
        places = take(columns)
        if places is not None:
            taken.append(places)
            highest = max(highest, pc.max(columns.positions).as_py())
    if not taken:
        return Left(records)
    return Left(_rest(records, taken), highest)


class _Laid(NamedTuple):
    """The rows that were laid out of a portion, for one route, and their positions."""

    route: str
    rows: pa.Table
    places: pa.Array
    highest: str


class Gathering:
    """
    Collects what is plain of a batch, portion by portion.

    Call order: ``add`` for each portion, then ``rows``, then ``left``.
    """

    def __init__(
        self,
        routes: Routes,
        apart: Collection[bytes],
        lay_out: Callable[[Columns], LaidRows | None],
    ) -> None:
        """
        Begin with nothing.

        Args:
            routes: What the records say.
            apart: Keys whose records are left, whatever they say.
            lay_out: Lays out what a sink can take of a route's plain records.
        """
        self._routes = routes
        self._apart = apart
        self._lay_out = lay_out
        self._portions: list[tuple[pa.Table, list[_Laid]]] = []
        self._schemas: dict[str, pa.Schema] = {}

    def add(self, portion: pa.Table) -> None:
        """
        Lay out the plain records of a portion.

        Raises:
            UnavailableError: The sink's target cannot be reached.
        """
        laid = []
        for columns in plain_columns(portion, self._routes, self._apart):
            found = self._lay_out(columns)
            if found is None or not len(found.rows):
                continue
            schema = self._schemas.setdefault(columns.route, found.rows.schema)
            # Their table has changed since the portion before.
            if schema == found.rows.schema:
                highest = pc.max(columns.positions).as_py()
                laid.append(_Laid(columns.route, found.rows, found.places, highest))
        self._portions.append((portion, laid))

    def rows(self) -> dict[str, pa.Table]:
        """Return the rows of each route; none of a key that is left elsewhere."""
        self._settle()
        found: dict[str, list[pa.Table]] = defaultdict(list)
        for _, laid in self._portions:
            for one in laid:
                found[one.route].append(one.rows)
        return {route: pa.concat_tables(rows) for route, rows in found.items()}

    def left(self) -> Left:
        """Return what is to be written record by record."""
        rests = self._rests()
        taken = [one.highest for _, laid in self._portions for one in laid]
        records = pa.concat_tables(rests) if rests else RECORDS.empty_table()
        return Left(records, max(taken, default=""))

    def _rests(self) -> list[pa.Table]:
        """Return the records of each portion of which nothing was laid out."""
        return [
            _rest(portion, [one.places for one in laid])
            for portion, laid in self._portions
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
        for portion, laid in self._portions:
            own = portion.column("key")
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


def _without(laid: _Laid, keys: pa.ChunkedArray, strange: pa.Array) -> _Laid:
    stays = pc.invert(pc.is_in(keys.take(laid.places), strange)).combine_chunks()
    if pc.all(stays).as_py():
        return laid
    return laid._replace(rows=laid.rows.filter(stays), places=laid.places.filter(stays))


# So many are decoded in one go: enough for each step of it to be worth its call, and
# few enough to be found where the step before has left them.
GROUP_RECORDS: Final = 25_000

_log = structlog.get_logger("towpath.sinks")


class FromColumns:
    """Writes a sink's large batches column by column, as far as they are plain."""

    def __init__(self, writer: BatchWriter, sink: Columnar, desk: SinkContext) -> None:
        self._writer = writer
        self._sink = sink
        self._desk = desk

    def write(self, rows: Rows, batch_id: int) -> BatchResult:
        """
        Write one batch; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        with self._writer.alone:
            return self._write(rows, batch_id)

    def _write(self, rows: Rows, batch_id: int) -> BatchResult:
        began_s = self._desk.clock.monotonic_s()
        rest, position = self._after_columns(rows)
        took_ms = round((self._desk.clock.monotonic_s() - began_s) * 1000)
        result = self._writer.write(rest, batch_id)
        return replace(
            result,
            records=len(rows.table),
            position=max(result.position, position),
            apply_ms=result.apply_ms + took_ms,
        )

    def _after_columns(self, rows: Rows) -> Left:
        """Write what is plain."""
        desk, sink = self._desk, self._sink
        if rows.most < LEAST_RECORDS or len(desk.parked):
            return Left(rows.table)
        # What settles a row that is owed must be seen to.
        owed = frozenset(row.key for row in desk.owed.record_keys())
        gathering = Gathering(self._writer.routes, owed, sink.lay_out)
        for portion in _grouped(rows.portions()):
            gathering.add(portion)
        try:
            for route, laid in gathering.rows().items():
                sink.take_rows(route, laid)
        except BatchRefusedError as error:
            _log.warning("a batch is written record by record", answer=str(error))
            return Left(rows.table)
        return gathering.left()


def _grouped(portions: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put portions together, as many as are decoded in one go."""
    group: list[pa.Table] = []
    for portion in portions:
        group.append(portion)
        if sum(map(len, group)) >= GROUP_RECORDS:
            yield pa.concat_tables(group)
            group.clear()
    if group:
        yield pa.concat_tables(group)


# A smaller batch is one portion, and has nothing to gain.
PIPELINED_FROM_RECORDS: Final = 8_000


class PipelinedSink(Sink, Pipelined, Protocol):
    """A sink that does not wait."""


@dataclass(slots=True)
class _Sent:
    """What was sent of a batch, and what became of it; of the changes only counts."""

    records: int = 0
    skipped: int = 0
    tombstones: int = 0
    position: str = ""
    left: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    send_ms: int = 0
    flush_ms: int = 0

    def add(self, part: Plain, position: str) -> None:
        """Count a portion: what was read of it, and how far its columns reach."""
        self.skipped += part.skipped
        self.tombstones += part.tombstones
        self.position = max(self.position, part.position, position)
        self.left = part.left


class InPortions:
    """Writes a sink's large batches portion by portion, as far as they are plain."""

    def __init__(
        self, name: str, writer: BatchWriter, sink: PipelinedSink, desk: SinkContext
    ) -> None:
        self._name = name
        self._writer = writer
        self._sink = sink
        self._desk = desk

    def write(self, rows: Rows, batch_id: int) -> BatchResult:
        """
        Write one batch; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        if rows.most < PIPELINED_FROM_RECORDS:
            return self._writer.write(rows.table, batch_id)
        with self._writer.alone:
            before = self._desk.owed.lacking()
            sent = self._send(rows, batch_id, before)
            left = _left(sent)
            if self._desk.owed.lacking() - before:
                left = ROWS_LOST
            if left:
                _log.info(
                    "a batch is written whole after all", sink=self._name, why=left
                )
                return self._writer.write(rows.table, batch_id)
            return self._result(sent)

    def _send(self, rows: Rows, batch_id: int, lacking: Collection[str]) -> _Sent:
        desk = self._desk
        began_s = desk.clock.monotonic_s()
        waited_for = desk.waited_for()
        apart = frozenset(parked.key for parked in waited_for)
        routes, sink = self._writer.routes, self._sink
        sent = _Sent()
        for portion in self._read(rows):
            sent.records += len(portion)
            rest, position = after_columns(portion, routes, apart, sink.send_columns)
            part = plain_of(records_of(rest), routes, waited_for, lacking)
            sent.add(part, position)
            if part.left:
                break
            if part.changes:
                sink.send(Batch(batch_id, part.changes))
        sent_s = desk.clock.monotonic_s()
        if not sent.left:
            # Only now: the batch may hold what lies below.
            safe = desk.safe.take(desk.parked.lowest())
            sink.send(Batch(batch_id, safe=safe))
        sent.checkpoint = sink.flush()
        sent.send_ms = round((sent_s - began_s) * 1000)
        sent.flush_ms = round((desk.clock.monotonic_s() - sent_s) * 1000)
        return sent

    def _read(self, rows: Rows) -> Iterator[pa.Table]:
        """Give the portions; what was sent before one that fails counts nowhere."""
        try:
            yield from rows.portions()
        except TowpathError:
            self._sink.flush()
            raise

    def _result(self, sent: _Sent) -> BatchResult:
        return BatchResult(
            records=sent.records,
            rows=sent.checkpoint.applied,
            stale=sent.checkpoint.stale,
            dead_letters=0,
            skipped=sent.skipped,
            parked=len(self._desk.parked),
            owed=len(self._desk.owed),
            tombstones=sent.tombstones,
            position=sent.position,
            # Decoding and writing go on at the same time.
            apply_ms=sent.send_ms,
            flush_ms=sent.flush_ms,
        )


def _left(sent: _Sent) -> str:
    """Say why the batch is to be written in the ordinary way; empty if it is done."""
    if sent.left:
        return sent.left
    return "the target refuses a change" if sent.checkpoint.refused else ""
