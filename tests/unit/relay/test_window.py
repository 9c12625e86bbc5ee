"""A chunk between its watermarks: the outcome for its rows, slice by slice."""

from collections.abc import Sequence

import pytest

from towpath.relay.snapshot.changed_keys import ChangedKeyFeed, ChangedKeys
from towpath.relay.snapshot.protocol import WatermarkSeen
from towpath.relay.snapshot.shape import Chunk, Key, RowValues, TableShape
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.snapshot.window import (
    MAX_BLOCKS,
    SLICE_BYTES,
    RowPartitionsOf,
    Window,
)
from towpath.relay.wal.messages import Column, Relation

LOW = WatermarkSeen("low", 100, 10)
HIGH = WatermarkSeen("high", 120, 20)
# Sees every transaction up to 104.
SNAPSHOT = XidSnapshot(105, 105, frozenset())
COLUMNS = (Column("a", 20), Column("b", 25), Column("c", 25))
ROWS = ((b"1", b"x", None), (b"2", b"y", b"r"), (b"3", b"z", b"s"))


def shape(key: tuple[int, ...] = (0,), order: tuple[int, ...] = ()) -> TableShape:
    """Make a table's shape."""
    return TableShape(Relation(1, "s", "t", COLUMNS, key), ("bigint",), order=order)


def window(
    rows: Sequence[RowValues] = ROWS,
    table: TableShape | None = None,
    widest_bytes: int = 0,
) -> Window:
    """Make a window that is ready to be deduplicated."""
    made = Window(5, "low", "high")
    made.observe(LOW)
    made.observe(HIGH)
    made.chunk = Chunk(
        table or shape(), rows, SNAPSHOT, is_last=True, widest_bytes=widest_bytes
    )
    return made


@pytest.mark.parametrize("is_last", [True, False])
def test_listed_keys_after_a_cut_by_bytes_are_not_absent(is_last: bool):
    """
    A delete for a row that was merely not yet read would remove it from the sinks.
    """
    _, changed_keys = recording()
    made = Window(5, "low", "high", ((b"1",), (b"2",), (b"9",)))
    made.observe(LOW)
    made.observe(HIGH)
    made.chunk = Chunk(shape(), ROWS[:1], SNAPSHOT, is_last=is_last)
    verdict = made.deduplicate(changed_keys, 10)
    after_the_cut = [(b"2",), (b"9",)]

    assert ((after_the_cut, []) if is_last else ([], after_the_cut)) == (
        verdict.absent,
        verdict.incomplete,
    )


def recording() -> tuple[ChangedKeyFeed, ChangedKeys]:
    """Make a feed of changed keys, and a scan's recording of it."""
    feed, changed_keys = ChangedKeyFeed(), ChangedKeys()
    feed.recordings.append(changed_keys)
    changed_keys.begin()
    return feed, changed_keys


def test_only_rows_changed_since_are_dropped():
    """
    A change that the chunk saw and that precedes its low watermark drops no row.
    """
    feed, changed_keys = recording()
    feed.record((b"1",), 101, 9)
    feed.record((b"2",), 101, 11, partial=True)
    verdict = window().deduplicate(changed_keys, 10)

    assert ([ROWS[0], ROWS[2]], 3, 1, [(b"2",)], (b"3",), True) == (
        list(verdict.rows),
        verdict.used_rows,
        verdict.dropped,
        verdict.incomplete,
        verdict.last_key,
        verdict.is_last,
    )


@pytest.mark.parametrize(("key", "dropped"), [((0,), 1), ((1, 0), 1), ((), 3)])
def test_the_keys_of_a_window_are_those_of_the_stream(
    key: tuple[int, ...], dropped: int
):
    """
    Composite keys are in key order; rows of a table without a key share the empty key.
    """
    feed, changed_keys = recording()
    feed.record(tuple(ROWS[1][column] or b"" for column in key), 200, 11)

    assert dropped == window(table=shape(key)).deduplicate(changed_keys, 10).dropped


def test_a_truncate_drops_every_row_of_the_slice():
    """
    Rows without any other change are dropped, too.
    """
    feed, changed_keys = recording()
    feed.record_truncate(200, 11)
    verdict = window().deduplicate(changed_keys, 2)

    assert ([], 2, 2, False) == (
        list(verdict.rows),
        verdict.used_rows,
        verdict.dropped,
        verdict.is_last,
    )


def test_the_last_key_is_in_the_order_of_reading():
    """
    A chosen key differs from the key under which changes are recorded.
    """
    feed, changed_keys = recording()
    feed.record((b"3",), 200, 11)
    verdict = window(table=shape(order=(1, 0))).deduplicate(changed_keys, 10)

    assert ((b"z", b"3"), 1) == (verdict.last_key, verdict.dropped)


def test_a_change_between_two_slices_drops_its_row_from_the_rest():
    """
    Each row is compared with all changes streamed so far.
    """
    feed, changed_keys = recording()
    made = window()
    first = made.deduplicate(changed_keys, 1)
    feed.record((b"3",), 200, 21)
    second = made.deduplicate(changed_keys, 10)

    assert ([ROWS[0]], [ROWS[1]]) == (list(first.rows), list(second.rows))


def test_long_rows_lead_to_short_slices():
    """
    Live changes must not wait for many megabytes of rows.

    No other slice follows in that turn.
    """
    long = b"x" * (SLICE_BYTES // 2)
    rows = [(b"%d" % number, long, None) for number in range(3)]
    rows += [(b"3", long * 3, None), (b"4", b"", None), (b"5", b"", None)]
    made = window(rows, widest_bytes=len(long) * 3)
    _, changed_keys = recording()
    parts = []
    while not parts or not parts[-1].is_last:
        parts.append(made.deduplicate(changed_keys, 64))

    assert [([b"0", b"1"], 64), ([b"2", b"3"], 64), ([b"4", b"5"], 2)] == [
        ([row[0] for row in part.rows], part.used_rows) for part in parts
    ]


def modulo(partitions: int) -> RowPartitionsOf:
    """Make a function that returns row ids modulo the number of partitions."""
    return lambda _, rows: [int(row[0] or b"") % partitions for row in rows]


def slices(
    made: Window, max_rows: int, partitions: int
) -> list[tuple[list[bytes | None], Key | None, int]]:
    """Deduplicate a window; return each slice's ids, last key and used rows."""
    _, changed_keys = recording()
    parts = []
    while not parts or not parts[-1].is_last:
        parts.append(made.deduplicate(changed_keys, max_rows, modulo(partitions)))
    return [
        ([row[0] for row in part.rows], part.last_key, part.used_rows) for part in parts
    ]


def numbered(count: int, text: bytes = b"x") -> list[RowValues]:
    """Make rows with ascending ids."""
    return [(b"%d" % number, text, None) for number in range(count)]


def test_a_slice_has_rows_of_one_partition_in_the_order_read():
    """
    The last key is that of the row before the first row that waits.
    """
    assert [
        ([b"0", b"2"], (b"0",), 2),
        ([b"1", b"3"], (b"3",), 2),
        ([b"4", b"6"], (b"4",), 2),
        ([b"5", b"7"], (b"7",), 2),
    ] == slices(window(numbered(8)), 2, 2)


def test_a_slice_of_many_partitions_groups_few_rows():
    """
    Otherwise live changes would wait for the grouping of a whole chunk.

    A slice that is not full uses up its turn, so that the loop checks the clock.
    """
    made = window(numbered(4 * MAX_BLOCKS))
    grouped: list[RowValues] = []

    def partitions_of(_relation: Relation, rows: Sequence[RowValues]) -> Sequence[int]:
        grouped.extend(rows)
        return [int(row[0] or b"") for row in rows]

    _, changed_keys = recording()
    first = made.deduplicate(changed_keys, 2, partitions_of)

    assert ([(b"0", b"x", None)], 2 * MAX_BLOCKS, 2) == (
        first.rows,
        len(grouped),
        first.used_rows,
    )


def test_long_rows_of_one_partition_lead_to_short_slices():
    """
    The rows after the cut remain, and the slice uses up its turn.
    """
    long = b"x" * (SLICE_BYTES // 2)
    made = window(numbered(8, long), widest_bytes=len(long) + 1)
    made_slices = slices(made, 4, 2)

    assert {4} == {used_rows for _, _, used_rows in made_slices}
    assert [
        [b"0", b"2"],
        [b"1", b"3"],
        [b"4", b"6"],
        [b"5", b"7"],
    ] == sorted(ids for ids, _, _ in made_slices)


def test_a_row_of_a_rare_partition_does_not_wait_for_the_end_of_its_chunk():
    """
    The last key advances, so that an interrupted chunk is not read again completely.
    """
    rows = numbered(100 * MAX_BLOCKS)
    made = window(rows)
    _, changed_keys = recording()

    def partitions_of(_relation: Relation, rows: Sequence[RowValues]) -> Sequence[int]:
        return [row[0] == b"0" for row in rows]

    last_keys = [
        made.deduplicate(changed_keys, 2, partitions_of).last_key
        for _ in range(2 * MAX_BLOCKS + 3)
    ]

    assert (None, True) == (last_keys[0], last_keys[-1] is not None)


def test_listed_keys_are_emitted_in_the_order_read():
    """
    A list has no range that could be resumed, and is short.
    """
    made = Window(5, "low", "high", ((b"1",), (b"2",), (b"3",)))
    made.observe(LOW)
    made.observe(HIGH)
    made.chunk = Chunk(shape(), ROWS, SNAPSHOT, is_last=True)

    assert [([b"1", b"2"], None, 2), ([b"3"], None, 1)] == slices(made, 2, 2)


def test_a_change_evicts_a_row_that_a_slice_has_passed_over():
    """
    A row is compared with the changes before its own slice, not before its grouping.
    """
    feed, changed_keys = recording()
    made = window()
    first = made.deduplicate(changed_keys, 2, modulo(2))
    feed.record((b"2",), 200, 21)
    second = made.deduplicate(changed_keys, 2, modulo(2))

    assert ([ROWS[0], ROWS[2]], [], 1, True) == (
        first.rows,
        second.rows,
        second.dropped,
        second.is_last,
    )
