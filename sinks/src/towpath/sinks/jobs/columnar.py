"""
Large batches of a sink that takes columns: what is plain at once, the rest as ever.

The rest goes in parts of bounded size, since it is made into values one by one; so a
batch may be as large as its columns find room in memory.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import structlog

from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.jobs.batch import BatchResult, BatchWriter, Desk
from towpath.sinks.jobs.by_column import Left, after_columns
from towpath.sinks.jobs.query import Rows
from towpath.sinks.ports import Columnar

# So many records are made into values at once.
PART_RECORDS: Final = 50_000

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
            return self._write(rows.table, batch_id)

    def _write(self, records: pa.Table, batch_id: int) -> BatchResult:
        began_s = self._desk.clock.monotonic_s()
        rest, position = self._after_columns(records)
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
            records=len(records),
            position=max(total.position, position),
            apply_ms=total.apply_ms + took_ms,
        )

    def _after_columns(self, records: pa.Table) -> Left:
        """Write what is plain."""
        desk = self._desk
        if len(desk.parked):
            return Left(records)
        # What settles a row that is owed must be seen to.
        owed = frozenset(row.key for row in desk.owed.record_keys())
        take = self._sink.take_columns
        try:
            return after_columns(records, self._writer.routes, owed, take)
        except BatchRefusedError as error:
            _log.warning("a batch is written record by record", answer=str(error))
            return Left(records)


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
