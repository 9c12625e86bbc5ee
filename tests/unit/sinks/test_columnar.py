"""Large batches of a sink that takes columns: both paths together lose nothing."""

import random

import orjson
import pyarrow as pa
import pytest

from support.dead_letters import Letters, RecordedRepairs, context_of
from support.kafka_rows import TOPIC, history, row, table
from support.parked_shop import ROUTES
from towpath.sinks.apply import batch
from towpath.sinks.apply.batch import BatchWriter
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.changes.columns import EncodedColumns, read_rows
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.engine import bulk_writers
from towpath.sinks.engine.bulk_writers import ColumnWriter
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.ports import Batch, Columnar
from towpath.sinks.targets.memory import MemorySink


class ColumnSink(MemorySink):
    """Takes whole rows as columns, newest last; ``refuses`` is the error it raises."""

    def __init__(self, *, refuses=False):
        super().__init__()
        self.taken = 0
        self.refuses = refuses

    def encode_columns(self, columns):
        is_whole = read_rows(columns, pa.struct([])).is_whole
        rows = {"position": columns.positions, "value": columns.values}
        return EncodedColumns(
            pa.table(rows).filter(is_whole), columns.indices.filter(is_whole)
        )

    def write_rows(self, route, rows):
        if self.refuses:
            message = "one of them"
            raise BatchRefusedError(message)
        for told in rows.to_pylist():
            row = orjson.loads(told["value"])["after"]
            change = Change(
                *(route, (row["order_id"],), ("order_id",), told["position"], row),
                *(ALL_PRESENT, False, Origin(TOPIC, 0, 0)),
            )
            self.apply(Batch(0, (change,)))
        self.taken += len(rows)


class BatchInMemory:
    """A batch in memory, three records at a time."""

    def __init__(self, *rows):
        self.table = table(*rows)
        self.most = len(rows)

    def slices(self):
        for begin in range(0, self.most, 3):
            yield self.table.slice(begin, 3)


def unreadable(offset):
    """Make a record that cannot be read."""
    return (TOPIC, 0, offset, b"{}", b"{", [])


BATCH = (
    *(row(n, "c", order=n, note="a", body="b") for n in range(1, 9)),
    row(9, "u", order=3, note="c", unchanged=["body"]),
    row(10, "d", order=4),
    (TOPIC, 0, 11, b'{"order_id":4}', None, row(10, "d", order=4)[-1]),
    unreadable(12),
    row(13, "c", order=4, note="again"),
)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Make batches of a few records large ones, in slices of two."""
    monkeypatch.setattr(bulk_writers, "LEAST_RECORDS", 5)
    monkeypatch.setattr(batch, "BATCH_SLICE_RECORDS", 2)
    monkeypatch.setattr(bulk_writers, "DECODE_RECORDS", 5)


def written(sink, *rows, letters=None, parked=None):
    """Write one batch; return its counts."""
    context = context_of(letters or Letters(), parked=parked)
    writer = BatchWriter(ROUTES, sink, context)
    return ColumnWriter(writer, sink, context).write(BatchInMemory(*rows), 0)


def expected():
    """Write it on the record path."""
    sink = MemorySink()
    BatchWriter(ROUTES, sink, context_of(Letters())).write(
        BatchInMemory(*BATCH).table, 0
    )
    return sink.rows


def test_plain_rows_are_taken_as_columns_and_the_rest_as_records():
    """
    The end is the same, and every record is counted once.
    """
    sink, letters = ColumnSink(), Letters()
    told = written(sink, *BATCH, letters=letters)
    assert isinstance(sink, Columnar)

    # Orders 3 and 4 have more than whole rows: their records go the record path.
    assert (6, expected()) == (sink.taken, sink.rows)
    assert (13, 1, 1, row(13, "c", order=4)[-1][0][1].decode()) == (
        told.records,
        told.dead_letters,
        len(letters.reasons()),
        told.position,
    )
    # In slices of two nothing is folded, so each change counts.
    assert (12, 0) == (told.rows, told.stale)


def test_a_batch_of_plain_rows_is_flushed_and_counted():
    """
    Only the flush is left for the record path.
    """
    sink = ColumnSink()
    told = written(sink, *BATCH[:8])

    assert (8, 8, 8) == (sink.taken, told.rows, told.records)


def test_a_small_batch_is_written_record_by_record():
    """
    Columns pay off only for many records.
    """
    sink = ColumnSink()
    told = written(sink, *BATCH[:4])

    assert (0, 4) == (sink.taken, told.rows)


def test_no_columns_are_taken_while_a_key_is_parked():
    """
    The record path holds back changes of a parked key.
    """
    letters, parked = Letters(), ParkedKeys()
    unread = (TOPIC, 0, 1, b'{"order_id":1}', b"{", row(1, "c", order=1)[-1])
    written(ColumnSink(), unread, letters=letters, parked=parked)
    sink = ColumnSink()
    told = written(sink, *BATCH, letters=letters, parked=parked)

    assert (1, 0) == (told.parked, sink.taken)


def test_a_whole_row_after_an_unreadable_record_is_not_taken(monkeypatch):
    """
    It is parked; the other keys are taken.
    """
    monkeypatch.setattr(batch, "BATCH_SLICE_RECORDS", 9)
    sink, letters = ColumnSink(), Letters()
    rows = (*BATCH[:8], row(9, "z", order=3), row(10, "u", order=3, note="c"))
    told = written(sink, *rows, letters=letters)

    assert (7, 1, 1, "a", [9, 10]) == (
        sink.taken,
        told.parked,
        told.held_back,
        sink.rows["orders"]["3"].row["note"],
        [offset for offset, _ in letters.reasons()],
    )


def test_a_refused_batch_is_retried_record_by_record():
    """
    The record path finds the refused change.
    """
    sink = ColumnSink(refuses=True)
    told = written(sink, *BATCH)

    assert (13, expected()) == (told.records, sink.rows)


@pytest.mark.timeout(30)
def test_any_history_in_columns_ends_as_in_records():
    """
    A partial change is folded with the whole row before it, also above a delete.
    """
    chance = random.Random(5)  # noqa: S311 - a repeatable test
    for _ in range(300):
        rows = history(chance, poison=0)
        taking, whole = ColumnSink(), MemorySink()
        desks = [context_of(Letters()) for _ in range(2)]
        BatchWriter(ROUTES, whole, desks[0]).write(table(*rows), 0)
        writer = BatchWriter(ROUTES, taking, desks[1])
        ColumnWriter(writer, taking, desks[1]).write(BatchInMemory(*rows), 0)
        letters = [len(context.dead_letters.reasons()) for context in desks]

        assert (whole.rows, [0, 0]) == (taking.rows, letters)


def test_a_row_with_a_pending_refetch_is_written_as_a_record():
    """
    The refetch is settled, and the rest of the batch is taken as columns.
    """
    sink, context = ColumnSink(), context_of(Letters(), repairs=RecordedRepairs())
    writer = BatchWriter(ROUTES, sink, context)
    writer.write(BatchInMemory(row(1, "u", order=1, unchanged=["note"])).table, 0)
    refetches = len(context.refetches)
    rows = [row(2, "c", order=order, note="a") for order in range(1, 9)]
    ColumnWriter(writer, sink, context).write(BatchInMemory(*rows), 1)

    assert (1, 0, 7, 8) == (
        refetches,
        len(context.refetches),
        sink.taken,
        len(sink.rows["orders"]),
    )
