"""A batch that is applied in slices has the same result as one applied whole."""

import random

import orjson
import pyarrow as pa
import pytest

from support.dead_letters import FixedPositions, Letters, RecordedRepairs, context_of
from support.kafka_rows import TOPIC, batch_of, history, row, rows_of, table
from support.parked_shop import change
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply import batch
from towpath.sinks.apply import slice as slices
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.change import Change, Origin
from towpath.sinks.changes.columns import read_rows
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetter, ParkedKey
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.errors import BrokerUnavailableError, TargetUnavailableError
from towpath.sinks.ports import Batch
from towpath.sinks.targets.memory import MemorySink

SINK = SinkSettings.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [{"topic": TOPIC, "name": "orders"}],
    }
)


ROW = pa.struct([("order_id", pa.int64()), ("v", pa.int64()), ("note", pa.string())])


def change_of(route, row, key, position):
    """Make the change of a whole row."""
    values = {name: value for name, value in row.items() if value is not None}
    key = orjson.loads(key)
    return Change(
        *(route, tuple(key.values()), tuple(key), position, values, frozenset(), False),
        Origin(TOPIC, 0, 0),
    )


class RecordingSink(MemorySink):
    """A sink that works while the next changes are decoded, and records its calls."""

    def __init__(self):
        super().__init__()
        self.notes = []
        self.columns = 0
        self.sizes = []
        self.fails_at = -1

    def apply_columns(self, columns):
        """Take whole rows, as columns."""
        read = read_rows(columns, ROW)
        rows = read.rows.filter(read.is_whole).to_pylist()
        keys = columns.keys.filter(read.is_whole).to_pylist()
        positions = columns.positions.filter(read.is_whole).to_pylist()
        changes = {}
        for each, key, position in zip(rows, keys, positions, strict=True):
            change = change_of(columns.route, each, key, position)
            before = changes.get(change.key)
            if before is None or before.position <= position:
                changes[change.key] = change
        self.columns += len(rows)
        self.sizes.append((len(rows), columns.values.nbytes))
        super().apply(Batch(0, tuple(changes.values())))
        return columns.indices.filter(read.is_whole)

    def apply(self, batch):
        if len(self.notes) == self.fails_at:
            message = "no answer"
            raise TargetUnavailableError(message)
        self.notes.append(("apply", len(batch.changes), batch.safe))
        super().apply(batch)

    def flush(self):
        self.notes.append(("flush",))
        return super().flush()


class Bench:
    """One sink that is written slice by slice."""

    def __init__(self, heads=None):
        self.sink = RecordingSink()
        self.letters = Letters()
        self.repairs = RecordedRepairs()
        self.context = context_of(self.letters, repairs=self.repairs, heads=heads)
        self.writer = RecordWriter(Routes(SINK), self.sink, self.context)
        self.writing = self.in_chunks(2)

    def in_chunks(self, records):
        """Make a writer of batches that passes this many records to each call."""
        return SinkWriter(*(self.writer, self.sink, self.context), None, records)

    def write(self, *rows, slice_=2):
        """Write a batch."""
        return self.writing.write(rows_of(rows, slice_=slice_), 1)


@pytest.fixture
def bench():
    """Return a bench."""
    return Bench()


def new(offset):
    """Make the first row of a new order."""
    return row(offset, "c", order=offset)


def test_slices_are_sent_in_order_and_flushed_once():
    """
    The safe position is sent after the batch, which may have records from below it.
    """
    bench = Bench(heads=FixedPositions("safe"))
    result = bench.write(*map(new, range(1, 6)))

    assert [
        ("apply", 2, None),
        ("apply", 2, None),
        ("apply", 1, None),
        ("flush",),
        ("apply", 0, "safe"),
        ("flush",),
    ] == bench.sink.notes
    assert (5, 5, 0, f"{40:016x}.0000000000") == (
        result.records,
        result.rows,
        result.dead_letters,
        result.position,
    )


def test_a_small_batch_is_one_call(bench):
    """
    If no record is left to the driver, the target is called and flushed once.
    """
    bench.in_chunks(None).write(rows_of(list(map(new, range(1, 4))), slice_=2), 1)

    assert [("apply", 3, None), ("flush",)] == bench.sink.notes


def test_events_in_order_are_written_in_one_call(bench):
    """
    No event may overtake one that the target refuses.
    """
    bench.sink.keeps_event_order = True
    bench.write(*map(new, range(1, 6)))

    assert [("apply", 5, None), ("flush",)] == bench.sink.notes


@pytest.mark.parametrize(
    ("strange", "changes", "letters"),
    [
        (row(3, "z", order=2), 1, 1),
        (row(3, "u", order=9, unchanged=["note"], status="paid"), 1, 0),
        (row(3, "t"), 0, 0),
    ],
)
def test_only_the_records_of_an_affected_key_are_written_after_the_slices(
    bench, strange, changes, letters
):
    """
    The key has an unreadable record, an incomplete partial change, or a truncate.
    """
    result = bench.write(new(1), new(2), strange, new(4), new(5))
    applied = [note[1] for note in bench.sink.notes if note[0] == "apply"]

    assert (5, letters, changes) == (result.records, result.dead_letters, applied[-1])


def test_the_row_of_a_partial_change_that_needs_a_refetch_is_requested(bench):
    """
    A partial change requests its row, and a later whole row ends the refetch.
    """
    partial = row(9, "u", order=1, status="paid", unchanged=["note"])
    bench.write(*map(new, range(1, 5)))
    bench.context.refetches.routes.add("orders")
    bench.write(partial, new(2), new(3), new(4))
    bench.context.refetches.routes.clear()
    refetches = len(bench.context.refetches)
    bench.write(row(10, "c", order=1), new(2), new(3), new(4))

    assert ([("orders", (1,))], 1, 0) == (
        *(bench.repairs.keys, refetches),
        len(bench.context.refetches),
    )


def test_a_loss_found_by_the_flush_repeats_the_batch(bench):
    """
    The batch's partial changes may have been merged with incomplete rows.
    """
    bench.write(*map(new, range(1, 5)))
    flush = bench.sink.flush

    def find():
        bench.context.refetches.routes.add("orders")
        return flush()

    bench.sink.flush = find
    partial = row(9, "u", order=1, status="paid", unchanged=["note"])
    bench.write(partial, new(2), new(3), new(4))

    assert [("orders", (1,))] == bench.repairs.keys


def test_a_parked_key_is_in_no_slice(bench):
    """
    None of its changes is written.
    """
    bench.write(row(1, "z"), new(2), new(3), new(4))
    result = bench.write(row(5, "u"), new(6), new(8), new(9))

    assert [ParkedKey(TOPIC, b'{"order_id":7}')] == list(bench.context.parked.keys())
    assert (1, False) == (result.held_back, "7" in bench.sink.rows["orders"])


def test_a_target_lost_between_slices_repeats_the_batch(bench):
    """
    The guard absorbs earlier slices, which are counted with the second attempt.
    """
    rows = [row(offset, "u", order=7, v=offset) for offset in range(1, 7)]
    bench.sink.fails_at = 2
    with pytest.raises(TargetUnavailableError):
        bench.write(*rows)
    bench.sink.fails_at = -1
    bench.write(*rows)

    assert {"order_id": 7, "v": 6} == bench.sink.rows["orders"]["7"].row


def test_slices_purge_no_tombstone_above_a_dead_letter():
    """
    A dead letter can be replayed, so the safe position after a batch is not above it.
    """
    bench = Bench(FixedPositions("f" * 16))
    bench.context.parked.restore(
        [DeadLetter(change(1, note="bad"), "bad", "orders", True)]
    )
    lowest = bench.context.parked.lowest()
    bench.write(new(2), new(3), new(4), new(5))

    assert ("apply", 0, lowest) == bench.sink.notes[-2]
    assert lowest is not None


# The parked keys may depend on the split: a READ row of an earlier slice does not
# supersede an older dead letter.
@pytest.mark.parametrize(("slice_records", "unreadable"), [(3, 0.0), (1_000, 0.01)])
@pytest.mark.parametrize("min_records", [2, 2_000])
def test_any_history_gives_the_same_rows_in_slices_as_in_one_batch(
    monkeypatch, min_records, slice_records, unreadable
):
    """
    Histories contain deletes, partial changes, READ rows and unreadable records.
    """
    monkeypatch.setattr(slices, "LEAST_RECORDS", min_records)
    monkeypatch.setattr(batch, "RECORDS_AT_ONCE", slice_records)
    rng = random.Random(11)  # noqa: S311 - a repeatable test
    columns = 0
    for _ in range(50):
        whole, in_slices = Bench(), Bench()
        rows = history(rng, unreadable)
        whole.writer.write_rest(table(*rows), 1)
        in_slices.write(*rows, slice_=rng.choice((2, 9)))
        columns += in_slices.sink.columns

        assert _stored(whole) == _stored(in_slices)
    assert (columns > 0) == (min_records == 2)


def test_a_failed_read_counts_nothing(bench):
    """
    Changes sent before the failure are sent again, and are counted then.
    """
    rows = list(map(new, range(1, 6)))

    def fail():
        yield table(*rows[:2])
        message = "no broker"
        raise BrokerUnavailableError(message)

    with pytest.raises(BrokerUnavailableError):
        bench.writing.write(batch_of(fail, len(rows)), 1)
    result = bench.write(*rows)

    assert (5, 0) == (result.rows, result.stale)


@pytest.mark.parametrize(("order", "left"), [(1, 0), (9, 7)])
def test_an_accepted_slice_resets_the_count_of_refusals(bench, order, left):
    """
    A batch of which nothing was written does not reset the count.
    """
    bench.context.refusals.before = 7
    partial = row(9, "u", order=order, unchanged=["note"])
    rows = map(new, range(1, 5)) if order == 1 else [partial] * 4
    bench.write(*rows)

    assert left == bench.context.refusals.before


def test_whole_rows_are_sent_as_columns(bench, monkeypatch):
    """
    Columns are included in the counts and in the position, like other changes.
    """
    monkeypatch.setattr(slices, "LEAST_RECORDS", 2)
    bench.writing = bench.in_chunks(3)
    deleted = row(4, "d", order=1)
    result = bench.write(*map(new, (1, 2, 3)), deleted, new(5), new(6), slice_=3)

    assert 5 == bench.sink.columns
    assert (6, 6, 1, f"{48:016x}.0000000000") == (
        *(result.records, result.rows, result.tombstones),
        result.position,
    )


@pytest.mark.parametrize("slice_", [1, 3, 8])
def test_large_rows_are_parsed_in_chunks_of_bounded_bytes(bench, monkeypatch, slice_):
    """
    Arrow's offsets have 32 bits. A record above the bound is a chunk of its own.
    """
    monkeypatch.setattr(slices, "LEAST_RECORDS", 1)
    monkeypatch.setattr(slices, "PARSED_BYTES", 5_000)
    sizes = [1000, 1000, 9000, 1000, 1000, 1000, 1000, 1000]
    rows = [
        row(n, "c", order=n, note="x" * size) for n, size in enumerate(sizes, start=1)
    ]
    bench.writing = bench.in_chunks(None)
    result = bench.write(*rows, slice_=slice_)

    assert (8, 8) == (result.rows, bench.sink.columns)
    assert all(size < 5_000 or count == 1 for count, size in bench.sink.sizes)


def test_columns_after_a_flush_are_flushed_too(bench, monkeypatch):
    """
    Records are flushed call by call, so a slice's last flush may precede its columns.
    """
    monkeypatch.setattr(slices, "LEAST_RECORDS", 2)
    monkeypatch.setattr(slices, "RECORDS_AT_ONCE", 2)
    deleted = [row(n, "d", order=n) for n in (1, 2)]
    writing = bench.in_chunks(None)
    result = writing.write(rows_of([*deleted, new(3), new(4)], slice_=2), 1)

    assert (4, 2) == (result.rows, bench.sink.columns)
    assert [("flush",), ("flush",)] == [n for n in bench.sink.notes if n == ("flush",)]


def test_a_parked_key_is_not_written_as_columns(bench, monkeypatch):
    """
    Its records are recognized, so the batch is written on the record path.
    """
    monkeypatch.setattr(slices, "LEAST_RECORDS", 2)
    bench.write(row(1, "z"), new(2), new(3), new(4))
    result = bench.write(row(5, "u"), new(6), new(8), new(9))

    assert (1, False) == (result.held_back, "7" in bench.sink.rows["orders"])


def _stored(bench):
    rows = {
        key: (stored.position, stored.row)
        for key, stored in bench.sink.rows.get("orders", {}).items()
    }
    return rows, bench.context.parked.keys()
