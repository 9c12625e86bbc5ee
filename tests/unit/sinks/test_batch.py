"""
One micro-batch: its records, its dead letters, and the order in which they are stored.
"""

from dataclasses import replace

import pyarrow as pa
import pytest

from support.dead_letters import FixedPositions, Letters, RecordedRepairs, context_of
from support.kafka_rows import TOPIC, row, table
from support.parked_shop import FILL, ROUTES, Shop, change
from towpath.sinks.apply import batch as batches
from towpath.sinks.apply.batch import BatchResult, RecordWriter
from towpath.sinks.apply.bisect import ConsecutiveRefusals
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.decode import records_of
from towpath.sinks.errors import (
    BatchRefusedError,
    BrokerUnavailableError,
    EveryChangeRefusedError,
    TargetUnavailableError,
)
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.targets.memory import MemorySink


def test_kafkas_columns_become_records():
    """
    Each record gets its own headers, however many there are, across several chunks.
    """
    some = table(
        (TOPIC, 1, 5, b"k", None, []),
        (TOPIC, 2, 6, None, b"v", [("a", b"1"), ("b", b"2"), ("c", None)]),
    )
    more = table((TOPIC, 0, 7, b"k", b"v", [("a", b"1"), ("a", b"2")]))

    expected = [
        Record(Origin(TOPIC, 1, 5), b"k", None, {}),
        Record(Origin(TOPIC, 2, 6), None, b"v", {"a": b"1", "b": b"2"}),
        Record(Origin(TOPIC, 0, 7), b"k", b"v", {"a": b"2"}),
    ]

    assert expected == records_of(pa.concat_tables([some, more]))


def test_an_empty_batch_has_no_records():
    """
    The engine may hand over an empty batch.
    """
    assert records_of(table()) == []


def test_a_batch_is_folded_written_and_counted():
    """
    The counts cover every record of the batch.
    """
    sink, letters = MemorySink(), Letters()
    writer = RecordWriter(ROUTES, sink, context_of(letters))
    result = writer.write_rest(
        table(row(1, "c", note="a"), row(2, "u", note="b"), row(3, "c", order=8)), 0
    )

    assert (BatchResult(records=3, rows=2, stale=0, dead_letters=0), {"7", "8"}) == (
        result,
        sink.rows["orders"].keys(),
    )


class PurgeRecorder(MemorySink):
    """Records each call's size, and the position below which the sink may purge."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def apply(self, batch):
        self.batches.append((len(batch.changes), batch.safe))
        super().apply(batch)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [(0, "safe")]),
        (2, [(2, "safe")]),
        (5, [(2, None), (2, None), (1, "safe")]),
    ],
)
def test_a_large_batch_is_written_in_slices(monkeypatch, count, expected):
    """
    Only the last slice has the safe position, because later slices may have older rows.
    """
    monkeypatch.setattr(batches, "RECORDS_AT_ONCE", 2)
    sink, letters = PurgeRecorder(), Letters()
    context = context_of(letters, heads=FixedPositions("safe"))
    rows = [row(n, "c", order=n) for n in range(count)]
    result = RecordWriter(ROUTES, sink, context).write_rest(table(*rows), 0)

    assert (expected, BatchResult(count, count, 0, 0)) == (sink.batches, result)


class DyingSink(MemorySink):
    """Fails at one of its flushes, before or after writing."""

    def __init__(self, flush, *, is_done):
        super().__init__()
        self._flush, self._is_done = flush, is_done

    def flush(self):
        self._flush -= 1
        if self._flush != -1:
            return super().flush()
        if self._is_done:
            super().flush()
        message = "the sink is gone"
        raise BrokerUnavailableError(message)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("flush", range(5))
def test_a_batch_interrupted_between_two_slices_gives_the_same_rows(
    monkeypatch, flush, is_done
):
    """
    A retry duplicates no rows, parked keys or dead letters of finished slices.
    """
    unreadable = (*row(3, "c", order=1)[:4], b"{", row(3, "c")[5])
    found = [
        *(row(1, "c", order=1, note="a"), row(2, "c", order=2, note="a"), unreadable),
        *(row(4, "u", order=1, note="b"), row(5, "d", order=2)),
        *(row(6, "c", order=3, note="a"), row(7, "u", order=3, unchanged=["note"])),
        *(row(8, "c", order=2, note="c"), row(9, "d", order=4), row(10, "c", order=5)),
    ]
    whole, letters = MemorySink(), Letters()
    RecordWriter(ROUTES, whole, context_of(letters)).write_rest(table(*found), 0)
    monkeypatch.setattr(batches, "RECORDS_AT_ONCE", 2)
    sink, letters_again = DyingSink(flush, is_done=is_done), Letters()
    writer = RecordWriter(ROUTES, sink, context_of(letters_again))
    with pytest.raises(BrokerUnavailableError):
        writer.write_rest(table(*found), 0)
    writer.write_rest(table(*found), 0)

    assert (whole.rows, letters.reasons(), ["1", "2", "3", "4", "5"]) == (
        sink.rows,
        letters_again.reasons(),
        sorted(sink.rows["orders"]),
    )


def test_an_unreadable_record_is_a_dead_letter_and_the_rest_is_written():
    """
    An unreadable record does not hold back other keys.
    """
    sink, letters = MemorySink(), Letters()
    unreadable = (TOPIC, 0, 2, b"{}", b"{", [])
    result = RecordWriter(ROUTES, sink, context_of(letters)).write_rest(
        table(row(1, "c"), unreadable), 0
    )

    assert (1, 1, [(2, "the value is not JSON")]) == (
        result.rows,
        result.dead_letters,
        letters.reasons(),
    )


def test_all_records_of_a_refused_change_are_dead_letters():
    """
    Two partial changes that were folded into one become two dead letters.
    """
    sink, letters = MemorySink(), Letters()
    batch = table(
        row(1, "u", order=9, a=1, unchanged=["b"]),
        row(2, "c", order=8),
        row(3, "u", order=9, a=2, unchanged=["b"]),
    )
    result = RecordWriter(ROUTES, sink, context_of(letters)).write_rest(batch, 0)

    assert (1, [(1, ABSENT_ROW), (3, ABSENT_ROW)]) == (result.rows, letters.reasons())


def test_a_partial_change_after_a_delete_keeps_the_delete():
    """
    The delete is applied, and only the later change is a dead letter.
    """
    sink, letters = MemorySink(), Letters()
    batch = table(row(1, "c", a=1, b=1), row(2, "d"), row(3, "u", a=2, unchanged=["b"]))
    RecordWriter(ROUTES, sink, context_of(letters)).write_rest(batch, 0)

    assert (None, [(3, ABSENT_ROW)]) == (
        sink.rows["orders"]["7"].row,
        letters.reasons(),
    )


def test_a_batch_fails_if_its_dead_letters_are_not_durable():
    """
    No record is lost silently: the batch is retried.
    """
    writer = RecordWriter(ROUTES, MemorySink(), context_of(Letters(fail=True)))

    with pytest.raises(BrokerUnavailableError):
        writer.write_rest(table(row(1, "u", a=1, unchanged=["b"])), 0)


def test_a_floor_in_a_batch_deletes_older_rows():
    """
    Older rows of this batch and of earlier ones are deleted; newer rows are kept.
    """
    sink = MemorySink()
    writer = RecordWriter(ROUTES, sink, context_of(Letters()))
    writer.write_rest(table(row(1, "c", order=7), row(2, "c", order=8)), 0)
    truncation = (TOPIC, 1, 4, None, b'{"op": "t"}', [("position", b"%016x.-" % 32)])
    result = writer.write_rest(table(row(5, "c", order=9), truncation, row(3, "c")), 1)

    assert (1, 1, 0, {"9"}) == (
        result.rows,
        result.stale,
        result.dead_letters,
        sink.rows["orders"].keys(),
    )


class PickySink(MemorySink):
    """Refuses a whole call that contains one of the given orders."""

    def __init__(self, *unreadable):
        super().__init__()
        self.unreadable = set(unreadable)
        self.calls = 0
        self.down_for = None

    def apply(self, batch):
        """Refuse without naming the order; fail if the target is down for one."""
        self.calls += 1
        if self.down_for in {change.key[0] for change in batch.changes}:
            message = "the target does not answer"
            raise TargetUnavailableError(message)
        if self.unreadable & {change.key[0] for change in batch.changes}:
            message = "no such field"
            raise BatchRefusedError(message)
        super().apply(batch)


def test_the_refused_rows_of_a_batch_are_found_by_bisection():
    """
    Two of two hundred rows are refused, each on its own; the rest is written.
    """
    sink, letters = PickySink(31, 170), Letters()
    batch = table(*(row(n, "c", order=n) for n in range(200)))
    result = RecordWriter(ROUTES, sink, context_of(letters)).write_rest(batch, 0)

    assert (198, 2, [(31, "no such field"), (170, "no such field")], True) == (
        result.rows,
        result.dead_letters,
        letters.reasons(),
        sink.calls < 40,
    )


def test_a_floor_in_a_refused_batch_still_applies():
    """
    The bisection that finds the refused change does not lose the floor.
    """
    sink = PickySink(9)
    writer = RecordWriter(ROUTES, sink, context_of(Letters()))
    writer.write_rest(table(row(1, "c", order=7)), 0)
    truncation = (TOPIC, 1, 4, None, b'{"op": "t"}', [("position", b"%016x.-" % 32)])
    writer.write_rest(table(truncation, row(5, "c", order=9), row(6, "c", order=8)), 1)

    assert {"8"} == sink.rows["orders"].keys()


def test_a_target_that_refuses_everything_counts_as_broken():
    """
    No record becomes a dead letter: the topic must not drain into the dead letters.
    """
    letters = Letters()
    writer = RecordWriter(ROUTES, PickySink(*range(200)), context_of(letters))
    with pytest.raises(EveryChangeRefusedError, match="no such field"):
        writer.write_rest(table(*(row(n, "c", order=n) for n in range(200))), 0)

    assert [] == letters.reasons()


def test_small_refused_batches_do_not_drain_the_topic():
    """
    Batches that are refused as a whole are counted together, even after a restart.

    An accepted call resets the count.
    """
    sink, letters, refusals = PickySink(*range(200)), Letters(), ConsecutiveRefusals()
    batches = [
        table(*(row(n, "c", order=n) for n in (m, m + 1))) for m in range(0, 60, 2)
    ]

    def write_all(batches):
        """Write with a new writer; return the number of written batches."""
        context = replace(context_of(letters), refusals=refusals)
        writer = RecordWriter(ROUTES, sink, context)
        for number, batch in enumerate(batches):
            try:
                writer.write_rest(batch, number)
            except EveryChangeRefusedError:
                return number
        return len(batches)

    refused = [write_all(batches), write_all(batches[25:]), write_all(batches[25:])]
    sink.unreadable = {51}
    accepted = write_all(batches[25:])

    assert ([25, 0, 0], 5, 51) == (refused, accepted, len(letters.reasons()))


def test_a_retried_batch_counts_as_refused_only_once():
    """
    A long outage of the broker does not make one bad row look like a broken target.
    """
    sink, letters = PickySink(7), Letters(fail=True)
    writer = RecordWriter(ROUTES, sink, context_of(letters))
    batch = table(row(1, "c", order=7))
    for _ in range(60):
        with pytest.raises(BrokerUnavailableError):
            writer.write_rest(batch, 0)
    letters.fail = False

    assert 1 == writer.write_rest(batch, 0).dead_letters


def test_stored_dead_letters_of_a_failed_batch_count_as_refusals(monkeypatch):
    """
    The next attempt skips their records, so the batch would otherwise drain bit by bit.
    """
    monkeypatch.setattr(batches, "RECORDS_AT_ONCE", 1)
    letters = Letters()
    writer = RecordWriter(ROUTES, PickySink(*range(60)), context_of(letters))
    batch = table(*(row(n, "c", order=n) for n in range(60)))
    for _ in range(2):
        with pytest.raises(EveryChangeRefusedError):
            writer.write_rest(batch, 0)

    assert 50 == len(letters.reasons())


def test_dead_letters_of_a_failed_attempt_are_counted(monkeypatch):
    """
    The next attempt counts them, and does not store them again.
    """
    monkeypatch.setattr(batches, "RECORDS_AT_ONCE", 1)
    sink, letters = PickySink(7), Letters()
    writer = RecordWriter(ROUTES, sink, context_of(letters))
    batch = table(row(1, "c", order=7), row(2, "c", order=8))
    sink.down_for = 8
    with pytest.raises(TargetUnavailableError):
        writer.write_rest(batch, 0)
    sink.down_for = None
    counts = [
        writer.write_rest(one, number).dead_letters
        for number, one in enumerate((batch, table(row(3, "c", order=9))))
    ]

    assert ([1, 0], [(1, "no such field")]) == (counts, letters.reasons())


def test_replays_do_not_count_as_refusals():
    """
    Replays do not drain the topic: the next bad row becomes a dead letter as usual.
    """
    sink, letters = PickySink(7, 8), Letters()
    writer = RecordWriter(ROUTES, sink, context_of(letters))
    for _ in range(60):
        writer.replay(records_of(table(row(1, "c", order=7))))

    assert 1 == writer.write_rest(table(row(2, "c", order=8)), 0).dead_letters


def test_a_missing_row_of_a_partial_change_is_refetched():
    """
    Each key is requested once, even if the same batch deletes its row.

    No dead letter is written.
    """
    letters, repairs = Letters(), RecordedRepairs()
    batch = table(
        row(1, "u", order=9, a=1, unchanged=["b"]),
        row(2, "d", order=8),
        row(3, "u", order=8, a=2, unchanged=["b"]),
        row(4, "u", order=8, a=3, unchanged=["b"]),
    )
    context = context_of(letters, repairs=repairs)
    result = RecordWriter(ROUTES, MemorySink(), context).write_rest(batch, 0)

    assert (2, 0, [("orders", (8,)), ("orders", (9,))], []) == (
        result.refetches_requested,
        result.dead_letters,
        sorted(repairs.keys),
        letters.reasons(),
    )


def test_a_refetched_row_does_not_overwrite_newer_changes():
    """
    The newer change arrived in an earlier batch; the target compares positions.
    """
    shop = Shop()
    shop.write(change(1, "c", note="old", status="placed"))
    shop.write(change(3, note="new", status="placed"))
    result = shop.write(
        change(2, "r", topic=FILL, note="old", status="placed"),
        change(4, status="paid", unchanged=["note"]),
    )

    assert ({"order_id": 7, "note": "new", "status": "paid"}, 1, 1) == (
        shop.sink.rows["orders"]["7"].row,
        result.rows,
        result.stale,
    )


def test_partial_changes_after_a_refused_row_are_refused_too():
    """
    Otherwise they would be merged with an older row.
    """
    shop = Shop()
    shop.write(change(1, "c", note="old", status="placed"))
    shop.write(
        change(2, "r", topic=FILL, note="bad", status="placed"),
        change(4, status="paid", unchanged=["note"]),
    )

    assert ("placed", [2, 4]) == (
        shop.sink.rows["orders"]["7"].row["status"],
        sorted(offset for offset, _ in shop.letters.reasons()),
    )
