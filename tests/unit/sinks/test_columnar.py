"""Large batches of a sink that takes columns: both paths together lose nothing."""

import random

import orjson
import pyarrow as pa
import pytest

from support.dead_letters import Letters, RecordedRepairs, context_of
from support.kafka_rows import TOPIC, history, row, table
from support.parked_shop import ROUTES
from towpath.sinks.apply import batch
from towpath.sinks.apply import slice as slices
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.changes.columns import read_rows
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.ports import Batch, Columnar
from towpath.sinks.targets.memory import MemorySink


class ColumnSink(MemorySink):
    """Takes whole rows as columns, and writes them in ``flush``, unless ``refuses``."""

    def __init__(self, *, refuses=False):
        super().__init__()
        self.taken = 0
        self.refuses = refuses
        self.accepted = []

    def apply_columns(self, columns):
        is_whole = read_rows(columns, pa.struct([])).is_whole
        rows = {"position": columns.positions, "value": columns.values}
        taken = pa.table(rows).filter(is_whole).to_pylist()
        self.accepted += [(columns.route, one) for one in taken]
        return columns.indices.filter(is_whole)

    def apply(self, batch):
        self.write_accepted()
        super().apply(batch)

    def flush(self):
        self.write_accepted()
        return super().flush()

    def write_accepted(self):
        accepted, self.accepted = self.accepted, []
        if self.refuses and accepted:
            message = "one of them"
            raise BatchRefusedError(message)
        for route, each in accepted:
            row = orjson.loads(each["value"])["after"]
            change = Change(
                *(route, (row["order_id"],), ("order_id",), each["position"], row),
                *(ALL_PRESENT, False, Origin(TOPIC, 0, 0)),
            )
            super().apply(Batch(0, (change,)))
        self.taken += len(accepted)


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
    """Treat batches of a few records as large, and write slices of two."""
    monkeypatch.setattr(slices, "LEAST_RECORDS", 5)
    monkeypatch.setattr(slices, "PARSED_AT_ONCE", 5)
    monkeypatch.setattr(batch, "RECORDS_AT_ONCE", 2)


def written(sink, *rows, letters=None, parked=None):
    """Write one batch; return its counts."""
    context = context_of(letters or Letters(), parked=parked)
    writer = RecordWriter(ROUTES, sink, context)
    return SinkWriter(writer, sink, context).write(BatchInMemory(*rows), 0)


def expected():
    """Return the rows that the record path writes for the batch."""
    sink = MemorySink()
    RecordWriter(ROUTES, sink, context_of(Letters())).write_rest(
        BatchInMemory(*BATCH).table, 0
    )
    return sink.rows


def test_plain_rows_are_taken_as_columns_and_the_rest_as_records():
    """
    The result is the same, and every record is counted once.
    """
    sink, letters = ColumnSink(), Letters()
    outcome = written(sink, *BATCH, letters=letters)
    assert isinstance(sink, Columnar)

    # Orders 3 and 4 have later changes: the guard orders the writes of both paths.
    assert (8, expected()) == (sink.taken, sink.rows)
    assert (13, 1, 1, row(13, "c", order=4)[-1][0][1].decode()) == (
        outcome.records,
        outcome.dead_letters,
        len(letters.reasons()),
        outcome.position,
    )
    # The delete, its tombstone and the last row of order 4 are folded into one change.
    assert (10, 0) == (outcome.rows, outcome.stale)


def test_a_batch_of_plain_rows_is_flushed_and_counted():
    """
    Only the flush is left for the record path.
    """
    sink = ColumnSink()
    outcome = written(sink, *BATCH[:8])

    assert (8, 8, 8) == (sink.taken, outcome.rows, outcome.records)


def test_a_small_batch_is_written_record_by_record():
    """
    Columns pay off only for many records.
    """
    sink = ColumnSink()
    outcome = written(sink, *BATCH[:4])

    assert (0, 4) == (sink.taken, outcome.rows)


def test_a_parked_key_is_not_taken():
    """
    The record path holds back its changes; the other keys are taken.
    """
    letters, parked = Letters(), ParkedKeys()
    unreadable_record = (TOPIC, 0, 1, b'{"order_id":1}', b"{", row(1, "c", order=1)[-1])
    written(ColumnSink(), unreadable_record, letters=letters, parked=parked)
    sink = ColumnSink()
    outcome = written(sink, *BATCH, letters=letters, parked=parked)

    assert (1, True, "1" in sink.rows["orders"]) == (
        outcome.parked,
        sink.taken > 0,
        False,
    )


def test_a_whole_row_after_an_unreadable_record_is_not_taken(monkeypatch):
    """
    That row is parked; all rows before it are taken.
    """
    monkeypatch.setattr(batch, "RECORDS_AT_ONCE", 9)
    sink, letters = ColumnSink(), Letters()
    rows = (*BATCH[:8], row(9, "z", order=3), row(10, "u", order=3, note="c"))
    outcome = written(sink, *rows, letters=letters)

    assert (8, 1, 1, "a", [9, 10]) == (
        sink.taken,
        outcome.parked,
        outcome.held_back,
        sink.rows["orders"]["3"].row["note"],
        [offset for offset, _ in letters.reasons()],
    )


def test_a_refused_batch_is_retried_record_by_record():
    """
    The record path finds the refused change.
    """
    sink = ColumnSink(refuses=True)
    outcome = written(sink, *BATCH)

    assert (13, expected()) == (outcome.records, sink.rows)


@pytest.mark.timeout(30)
def test_any_history_gives_the_same_rows_as_columns_and_as_records():
    """
    A partial change is folded with the whole row before it, even after a delete.
    """
    rng = random.Random(5)  # noqa: S311 - a repeatable test
    for _ in range(300):
        rows = history(rng, unreadable=0)
        taking, whole = ColumnSink(), MemorySink()
        contexts = [context_of(Letters()) for _ in range(2)]
        RecordWriter(ROUTES, whole, contexts[0]).write_rest(table(*rows), 0)
        writer = RecordWriter(ROUTES, taking, contexts[1])
        SinkWriter(writer, taking, contexts[1]).write(BatchInMemory(*rows), 0)
        letters = [len(context.dead_letters.reasons()) for context in contexts]

        assert (whole.rows, [0, 0]) == (taking.rows, letters)


def test_a_row_with_a_pending_refetch_is_written_as_a_record():
    """
    The refetch completes, and the rest of the batch is taken as columns.
    """
    sink, context = ColumnSink(), context_of(Letters(), repairs=RecordedRepairs())
    writer = RecordWriter(ROUTES, sink, context)
    writer.write_rest(BatchInMemory(row(1, "u", order=1, unchanged=["note"])).table, 0)
    refetches = len(context.refetches)
    rows = [row(2, "c", order=order, note="a") for order in range(1, 9)]
    SinkWriter(writer, sink, context).write(BatchInMemory(*rows), 1)

    assert (1, 0, 7, 8) == (
        refetches,
        len(context.refetches),
        sink.taken,
        len(sink.rows["orders"]),
    )
