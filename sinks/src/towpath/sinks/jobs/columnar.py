"""Large batches of a sink that takes columns: the plain at once, the rest as ever."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
import structlog

from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.jobs import by_column
from towpath.sinks.jobs.batch import BatchWriter, Desk
from towpath.sinks.jobs.batch_result import BatchResult
from towpath.sinks.jobs.by_column import Gathering, Left
from towpath.sinks.jobs.query import Rows
from towpath.sinks.ports import Columnar

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
