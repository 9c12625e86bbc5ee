"""
Large batches of a sink that takes columns: what is plain at once, the rest as ever.

The rest goes in parts of bounded size, since it is made into values one by one; so a
batch may be as large as its columns find room in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import structlog

from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.jobs import by_column
from towpath.sinks.jobs.batch import BatchResult, BatchWriter, Desk
from towpath.sinks.jobs.by_column import Gathering, Left
from towpath.sinks.jobs.query import Rows
from towpath.sinks.ports import Columnar

# So many records are made into values at once.
PART_RECORDS: Final = 50_000

# So many are decoded in one go: enough for each step of it to be worth its call, and
# few enough to be found where the step before has left them.
GROUP_RECORDS: Final = 25_000

_log = structlog.get_logger("towpath.sinks.jobs")


class FromColumns:
    """Writes a sink's large batches column by column, as far as they are plain."""

    def __init__(self, writer: BatchWriter, sink: Columnar, desk: Desk) -> None:
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
        # What is left may be nothing: the sink is flushed all the same.
        begins = range(0, max(len(rest), 1), PART_RECORDS)
        written = [
            self._writer.write(rest.slice(begin, PART_RECORDS), batch_id)
            for begin in begins
        ]
        total = _total(written)
        return replace(
            total,
            records=len(rows.table),
            position=max(total.position, position),
            apply_ms=total.apply_ms + took_ms,
        )

    def _after_columns(self, rows: Rows) -> Left:
        """Write what is plain."""
        desk, sink = self._desk, self._sink
        if rows.most < by_column.LEAST_RECORDS or len(desk.parked):
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


def _total(written: Sequence[BatchResult]) -> BatchResult:
    """Add up the parts of a batch."""
    *before, last = written
    total = last
    for part in before:
        total = replace(
            total,
            rows=total.rows + part.rows,
            stale=total.stale + part.stale,
            dead_letters=total.dead_letters + part.dead_letters,
            skipped=total.skipped + part.skipped,
            asked=total.asked + part.asked,
            nulled=total.nulled + part.nulled,
            behind=total.behind + part.behind,
            tombstones=total.tombstones + part.tombstones,
            position=max(total.position, part.position),
            decode_ms=total.decode_ms + part.decode_ms,
            apply_ms=total.apply_ms + part.apply_ms,
            flush_ms=total.flush_ms + part.flush_ms,
        )
    return total
