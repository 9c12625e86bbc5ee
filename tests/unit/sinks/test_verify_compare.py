"""What counts as a difference, and how it is told."""

import pytest

from towpath.sinks.verify.compare import (
    Difference,
    Held,
    Kind,
    SourceRow,
    differences,
    pack,
)
from towpath.sinks.verify.shelf import Shelf

COLUMNS = ("id", "total", "note")


def row(key, *texts):
    """Make a row of the source."""
    return SourceRow(key, texts)


def held(key, *texts):
    """Make a live row of the sink."""
    return Held(key, is_deleted=False, packed=pack(texts))


def gone(key):
    """Make a tombstone."""
    return Held(key, is_deleted=True, packed=b"")


def found(source, sink):
    """Compare rows of the source, two at a time, with what a sink holds."""
    with Shelf() as shelf:
        shelf.put(sink)
        pairs = [source[n : n + 2] for n in range(0, len(source), 2)]
        return list(differences(COLUMNS, pairs, shelf))


def test_equal_is_equal_in_any_order():
    """Order, tombstones of rows that are gone, and null say nothing."""
    source = [
        row("1", "1", None, "a"),
        row("2", "2", "5.00", ""),
        row("3", "3", "1", "ä"),
    ]
    sink = [
        gone("9"),
        held("3", "3", "1", "ä"),
        held("1", "1", None, "a"),
        held("2", "2", "5.00", ""),
    ]

    assert found(source, sink) == []


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ([], Difference(Kind.MISSING, "1")),
        ([gone("1")], Difference(Kind.DELETED, "1")),
        (
            [held("1", "1", "9.99", None)],
            Difference(Kind.CHANGED, "1", "total", "5.00", "9.99"),
        ),
        (
            [held("1", "1", "5.00", "")],
            Difference(Kind.CHANGED, "1", "note", None, ""),
        ),
        (
            [held("1", "1", None, None)],
            Difference(Kind.CHANGED, "1", "total", "5.00", None),
        ),
        (
            [held("1", "1", "5.00", None), held("2", "2", None, None)],
            Difference(Kind.EXTRA, "2"),
        ),
        (
            [held("1", "1", "5.00", None), held("1", "1", "5.00", None)],
            Difference(Kind.TWICE, "1"),
        ),
        (
            [held("1", "1", "5.00", None), gone("1")],
            Difference(Kind.TWICE, "1"),
        ),
    ],
)
def test_each_defect_is_found(sink, expected):
    """One defect of the sink is one difference, with its key and both values."""
    assert [expected] == found([row("1", "1", "5.00", None)], sink)


def test_every_column_is_told():
    """A row that differs in two columns is two differences."""
    differing = found([row("1", "1", "a", "b")], [held("1", "1", "x", "y")])

    assert ["total", "note"] == [difference.column for difference in differing]


def test_a_row_of_many_batches_is_found_twice():
    """A key that comes again much later is noticed as well."""
    sink = [held(str(n), str(n), None, None) for n in [*range(2500), 3]]
    source = [row(str(n), str(n), None, None) for n in range(2500)]

    assert [Difference(Kind.TWICE, "3")] == found(source, sink)


def test_a_difference_is_told_in_a_sentence():
    """Key, column and both values; long ones by their beginning and length."""
    long = Difference(Kind.CHANGED, "1:2", "note", "x" * 200, None)

    assert str(long) == (
        f"1:2: note is '{'x' * 80}'... (200 characters) in the source"
        " and null in the sink"
    )


def test_the_shelf_counts_what_it_was_given():
    """Live rows and tombstones are counted apart; keys without a row are left out."""
    with Shelf() as shelf:
        shelf.put([held("1", "a"), gone("2"), held("3", "b")])
        taken = shelf.take(["1", "2", "4"])

        assert (2, 1, {"1", "2"}, ["3"]) == (
            shelf.live_rows,
            shelf.tombstones,
            set(taken),
            [left.key for left in shelf.rest()],
        )
