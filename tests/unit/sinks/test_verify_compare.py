"""What counts as a difference, and how it is told."""

from collections import Counter

import pytest

from towpath.sinks.verify.compare import (
    Difference,
    Held,
    Kind,
    SourceRow,
    Standing,
    Suspect,
    differences,
    pack,
    standing_of,
    suspects,
)
from towpath.sinks.verify.shelf import Shelf

COLUMNS = ("id", "total", "note")


def row(key, *texts):
    """Make a row of the source."""
    return SourceRow(key, texts)


def held(key, *texts, position=""):
    """Make a live row of the sink."""
    return Held(key, is_deleted=False, packed=pack(texts), position=position)


def gone(key):
    """Make a tombstone."""
    return Held(key, is_deleted=True, packed=b"")


def found(source, sink):
    """Compare rows of the source, two at a time, with what a sink goes on to hold."""
    with Shelf() as shelf:
        shelf.put(sink)
        pairs = [source[n : n + 2] for n in range(0, len(source), 2)]
        suspected = list(suspects(pairs, shelf))
    copies = Counter(each.key for each in sink)
    held_of = {each.key: each for each in sink}
    seen = [
        s._replace(after=held_of.get(s.key), copies=copies[s.key]) for s in suspected
    ]
    return [found for each in seen for found in differences(COLUMNS, each)]


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
        (
            # Behind the texts of the columns stand the names of other fields.
            [held("1", "1", "5.00", None, "stray")],
            Difference(Kind.SURPLUS, "1", "stray"),
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


OLD = held("1", "a", position="8")
NEW = held("1", "b", position="9")
A, B = pack(["a"]), pack(["b"])


@pytest.mark.parametrize(
    ("source", "before", "after", "copies", "expected"),
    [
        (A, OLD, OLD, 1, Standing.EQUAL),
        (B, OLD, NEW, 1, Standing.EQUAL),
        (None, OLD, None, 0, Standing.EQUAL),
        (None, OLD, gone("1"), 1, Standing.EQUAL),
        (A, OLD, NEW, 1, Standing.EQUAL),
        (B, OLD, OLD, 1, Standing.WRONG),
        (A, None, None, 0, Standing.WRONG),
        (None, OLD, OLD, 1, Standing.WRONG),
        (A, gone("1"), gone("1"), 1, Standing.WRONG),
        (A, OLD, OLD, 2, Standing.WRONG),
        (pack(["c"]), OLD, NEW, 1, Standing.MOVING),
        (A, None, NEW, 1, Standing.MOVING),
        (None, OLD, NEW, 1, Standing.MOVING),
        (A, OLD, NEW, 2, Standing.MOVING),
    ],
)
def test_two_looks_tell_what_moved_from_what_is_wrong(
    source, before, after, copies, expected
):
    """Only a row that stood still, and is not what the source has, is wrong."""
    assert expected is standing_of(Suspect("1", source, before, after, copies))


def test_an_old_row_that_moved_without_a_new_content_is_no_proof():
    """The position counts as well: the same content again is another change."""
    again = held("1", "a", position="9")

    assert Standing.MOVING is standing_of(Suspect("1", B, OLD, again, 1))


def test_what_only_the_sink_has_says_nothing_of_a_pruned_source():
    """However many they are, they are no suspects, unless they come twice."""
    with Shelf() as shelf:
        shelf.put([held("1", "1"), held("2", "2"), held("3", "3"), held("3", "3")])
        found = [one.key for one in suspects([[row("1", "x")]], shelf, is_pruned=True)]

    assert ["1", "3"] == found


@pytest.mark.parametrize(
    ("source", "copies", "expected"),
    [
        (None, 1, Standing.EQUAL),
        (None, 2, Standing.WRONG),
        (pack(["2"]), 1, Standing.WRONG),
    ],
)
def test_a_row_that_a_pruned_source_has_no_more_is_not_wrong(source, copies, expected):
    """Another content is, and a second copy."""
    same = held("1", "1")
    suspect = Suspect("1", source, same, same, copies)

    assert expected is standing_of(suspect, is_pruned=True)
