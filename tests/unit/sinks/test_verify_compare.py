"""Differences between source and sink, and how they are reported."""

from collections import Counter

import pytest

from support.copying import replace
from towpath.sinks.verify.compare import (
    Difference,
    DifferenceKind,
    SinkRow,
    SourceRow,
    Suspect,
    SuspectState,
    differences,
    pack,
    state_of,
    suspects,
)
from towpath.sinks.verify.suspects import DigestTable

COLUMNS = ("id", "total", "note")


def row(key, *texts):
    """Make a row of the source."""
    return SourceRow(key, texts)


def held(key, *texts, position=""):
    """Make a live row of the sink."""
    return SinkRow(key, is_deleted=False, packed=pack(texts), position=position)


def gone(key):
    """Make a tombstone."""
    return SinkRow(key, is_deleted=True, packed=b"")


def found(source, sink):
    """Compare rows of the source, two at a time, with the sink's."""
    with DigestTable() as digests:
        digests.put(sink)
        pairs = [source[n : n + 2] for n in range(0, len(source), 2)]
        suspected = list(suspects(pairs, digests))
    copies = Counter(each.key for each in sink)
    held_of = {each.key: each for each in sink}
    seen = [
        replace(s, after=held_of.get(s.key), copies=copies[s.key]) for s in suspected
    ]
    return [found for each in seen for found in differences(COLUMNS, each)]


def test_equal_rows_are_equal_in_any_order():
    """
    Order, tombstones of deleted rows, and null make no difference.
    """
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
        ([], Difference(DifferenceKind.MISSING, "1")),
        ([gone("1")], Difference(DifferenceKind.DELETED, "1")),
        (
            [held("1", "1", "9.99", None)],
            Difference(DifferenceKind.CHANGED, "1", "total", "5.00", "9.99"),
        ),
        (
            [held("1", "1", "5.00", "")],
            Difference(DifferenceKind.CHANGED, "1", "note", None, ""),
        ),
        (
            [held("1", "1", None, None)],
            Difference(DifferenceKind.CHANGED, "1", "total", "5.00", None),
        ),
        (
            [held("1", "1", "5.00", None), held("2", "2", None, None)],
            Difference(DifferenceKind.EXTRA, "2"),
        ),
        (
            [held("1", "1", "5.00", None), held("1", "1", "5.00", None)],
            Difference(DifferenceKind.TWICE, "1"),
        ),
        (
            [held("1", "1", "5.00", None), gone("1")],
            Difference(DifferenceKind.TWICE, "1"),
        ),
        (
            # The texts of the columns are followed by the names of other fields.
            [held("1", "1", "5.00", None, "stray")],
            Difference(DifferenceKind.SURPLUS, "1", "stray"),
        ),
    ],
)
def test_each_defect_is_found(sink, expected):
    """
    One defect of the sink gives one difference, with its key and both values.
    """
    assert [expected] == found([row("1", "1", "5.00", None)], sink)


def test_every_differing_column_is_reported():
    """
    A row that differs in two columns gives two differences.
    """
    differing = found([row("1", "1", "a", "b")], [held("1", "1", "x", "y")])

    assert ["total", "note"] == [difference.column for difference in differing]


def test_a_duplicate_row_across_batches_is_found():
    """
    A key that occurs again much later is noticed too.
    """
    sink = [held(str(n), str(n), None, None) for n in [*range(2500), 3]]
    source = [row(str(n), str(n), None, None) for n in range(2500)]

    assert [Difference(DifferenceKind.TWICE, "3")] == found(source, sink)


def test_a_difference_is_one_sentence():
    """
    It has the key, the column and both values; long values are shortened.
    """
    long = Difference(DifferenceKind.CHANGED, "1:2", "note", "x" * 200, None)

    assert str(long) == (
        f"1:2: note is '{'x' * 80}'... (200 characters) in the source"
        " and null in the sink"
    )


def test_the_digest_table_counts_its_rows():
    """
    Live rows and tombstones are counted separately; keys without a row are left out.
    """
    with DigestTable() as digests:
        digests.put([held("1", "a"), gone("2"), held("3", "b")])
        taken = digests.take(["1", "2", "4"])

        assert (2, 1, {"1", "2"}, ["3"]) == (
            digests.live_rows,
            digests.tombstones,
            set(taken),
            [left.key for left in digests.rest()],
        )


OLD = held("1", "a", position="8")
NEW = held("1", "b", position="9")
A, B = pack(["a"]), pack(["b"])


@pytest.mark.parametrize(
    ("source", "before", "after", "copies", "expected"),
    [
        (A, OLD, OLD, 1, SuspectState.EQUAL),
        (B, OLD, NEW, 1, SuspectState.EQUAL),
        (None, OLD, None, 0, SuspectState.EQUAL),
        (None, OLD, gone("1"), 1, SuspectState.EQUAL),
        (A, OLD, NEW, 1, SuspectState.EQUAL),
        (B, OLD, OLD, 1, SuspectState.WRONG),
        (A, None, None, 0, SuspectState.WRONG),
        (None, OLD, OLD, 1, SuspectState.WRONG),
        (A, gone("1"), gone("1"), 1, SuspectState.WRONG),
        (A, OLD, OLD, 2, SuspectState.WRONG),
        (pack(["c"]), OLD, NEW, 1, SuspectState.MOVING),
        (A, None, NEW, 1, SuspectState.MOVING),
        (None, OLD, NEW, 1, SuspectState.MOVING),
        (A, OLD, NEW, 2, SuspectState.MOVING),
    ],
)
def test_two_passes_separate_moving_rows_from_wrong_ones(
    source, before, after, copies, expected
):
    """
    Only a row that did not move, and differs from the source, is wrong.
    """
    assert expected is state_of(Suspect("1", source, before, after, copies))


def test_a_row_that_changed_back_to_its_content_proves_nothing():
    """
    The position counts too: the same content at a new position is a new change.
    """
    again = held("1", "a", position="9")

    assert SuspectState.MOVING is state_of(Suspect("1", B, OLD, again, 1))


def test_extra_rows_of_a_pruned_source_are_not_differences():
    """
    However many there are, they are not suspects unless they occur twice.
    """
    with DigestTable() as digests:
        digests.put([held("1", "1"), held("2", "2"), held("3", "3"), held("3", "3")])
        found = [
            one.key for one in suspects([[row("1", "x")]], digests, is_pruned=True)
        ]

    assert ["1", "3"] == found


@pytest.mark.parametrize(
    ("source", "copies", "expected"),
    [
        (None, 1, SuspectState.EQUAL),
        (None, 2, SuspectState.WRONG),
        (pack(["2"]), 1, SuspectState.WRONG),
    ],
)
def test_a_row_deleted_from_a_pruned_source_is_not_wrong(source, copies, expected):
    """
    A row with different content is wrong, and so is a second copy.
    """
    same = held("1", "1")
    suspect = Suspect("1", source, same, same, copies)

    assert expected is state_of(suspect, is_pruned=True)
