"""Corner cases of the fold that a random history rarely contains."""

from support.copying import replace
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Floor, Origin, Refusal
from towpath.sinks.fold import (
    ABSENT_ROW,
    OTHER_PARTITION,
    Folded,
    first_per_event,
    newest_per_key,
)

ORIGIN = Origin("orders", 0, 0)


def change(number, row, *, unchanged=(), key=1, route="orders"):
    """Make a change at the position of the given number."""
    position = f"{number:016x}.0000000000"
    missing = frozenset(unchanged) or ALL_PRESENT
    return Change(route, (key,), ("id",), position, row, missing, False, ORIGIN)


def test_a_partial_change_takes_missing_columns_from_older_ones():
    """Each column has the newest value present, null included."""
    folded = newest_per_key(
        [
            change(1, {"id": 1, "a": 1, "b": 1, "c": 1}),
            change(2, {"id": 1, "a": 2, "b": None}, unchanged=["c"]),
            change(3, {"id": 1, "a": 3}, unchanged=["b", "c"]),
        ]
    )

    assert (change(3, {"id": 1, "a": 3, "b": None, "c": 1}),) == folded.changes


def test_folded_partial_changes_remain_partial():
    """
    Columns that no change contains keep their values in the target.
    """
    folded = newest_per_key(
        [
            change(1, {"id": 1, "a": 1}, unchanged=["b", "c"]),
            change(2, {"id": 1, "b": 2}, unchanged=["a", "c"]),
        ]
    )

    expected = change(2, {"id": 1, "a": 1, "b": 2}, unchanged=["c"])

    assert (expected,) == folded.changes


def test_a_partial_change_after_a_delete_is_refused():
    """
    The delete remains, and each of the partial changes is refused.
    """
    delete = change(2, None)
    partials = [
        change(3, {"id": 1, "a": 3}, unchanged=["b"]),
        change(4, {"id": 1, "a": 4}, unchanged=["b"]),
    ]
    folded = newest_per_key([change(1, {"id": 1, "a": 1, "b": 1}), delete, *partials])

    refused = tuple(
        Refusal(partial, ABSENT_ROW, needs_refetch=True) for partial in partials
    )

    assert ((delete,), refused) == (folded.changes, folded.refused)


def test_a_read_row_is_below_the_changes_at_its_log_position():
    """The READ row's ordinal sorts before all others."""
    row = change(5, {"id": 1, "a": "streamed"})
    read = replace(row, position=f"{5:016x}.-", row={"id": 1, "a": "read"})

    assert (row,) == newest_per_key([row, read]).changes


def test_changes_of_different_topics_are_not_merged():
    """
    Each topic's changes are applied separately.

    The target may already have a change in between them. The same holds for a delete
    that a snapshot reports.

    A whole row makes the READ row superfluous.
    """
    read = change(1, {"id": 1, "a": 1, "b": 1})
    read = replace(read, is_read=True, origin=Origin("orders.backfill.cache", 0, 0))
    partials = [
        change(3, {"id": 1, "a": 3}, unchanged=["b", "c"]),
        change(4, {"id": 1, "c": 4}, unchanged=["a", "b"]),
    ]
    merged = change(4, {"id": 1, "a": 3, "c": 4}, unchanged=["b"])
    whole = change(2, {"id": 1, "a": 2, "b": 2, "c": 2})
    above = change(4, {"id": 1, "a": 3, "b": 2, "c": 4})

    assert [
        Folded((read,), (), 0, (merged,)),
        Folded((replace(read, row=None),), (), 0, (merged,)),
        Folded((above,), ()),
    ] == [
        newest_per_key([read, *partials]),
        newest_per_key([*partials, replace(read, row=None)]),
        newest_per_key([read, whole, *partials]),
    ]


def test_changes_of_different_partitions_are_not_merged():
    """
    If a key has moved, a change in between may be in the target, or may arrive later.

    After a whole row, the moved change is applied separately.
    After a partial change, the row is refetched.
    """
    moved = Origin("orders", 1, 0)
    whole = change(5, {"id": 1, "a": 5, "b": 5})
    lower = change(6, {"id": 1, "b": 6}, unchanged=["a"])
    newest = replace(change(9, {"id": 1, "b": 9}, unchanged=["a"]), origin=moved)
    refusal = Refusal(newest, OTHER_PARTITION, needs_refetch=True)

    assert [
        Folded((whole,), (), 0, (newest,)),
        Folded((lower,), (refusal,)),
        Folded(
            (replace(whole, position=lower.position, row=whole.row | {"b": 6}),),
            (refusal,),
        ),
    ] == [
        newest_per_key([whole, newest]),
        newest_per_key([lower, newest]),
        newest_per_key([whole, lower, newest]),
    ]


def test_many_partial_changes_that_alternate_between_partitions_are_folded():
    """
    All changes but the oldest need a refetch, however many there are.
    """
    moved = Origin("orders", 1, 0)
    changes = [
        replace(
            change(at, {"id": 1, "b": at}, unchanged=["a"]),
            origin=moved if at % 2 else ORIGIN,
        )
        for at in range(1, 3_001)
    ]
    folded = newest_per_key(changes)

    assert ((changes[0],), 2_999, True) == (
        folded.changes,
        len(folded.refused),
        all(refusal.needs_refetch for refusal in folded.refused),
    )


def test_equal_keys_of_two_routes_are_two_rows():
    """
    The route is part of a row's identity.
    """
    both = (change(1, {"id": 1}), change(2, {"id": 1}, route="customers"))

    assert both == newest_per_key(both).changes


def test_a_repeated_event_is_kept_once():
    """
    An event id that occurs twice in a batch is one event.
    """
    event = EventRow("log", "id", "order", "7", "T", "{}", "{}", "p", "t", ORIGIN)
    other = replace(event, route="other")

    assert (event, other) == first_per_event([event, other, event])


def test_no_change_above_a_floor_merges_with_one_below_it():
    """
    A partial change above a truncate does not take older columns.
    """
    floor = Floor("orders", f"{2:016x}.0000000005", needs_all=False, origin=ORIGIN)
    lower = replace(floor, position=f"{1:016x}.-")
    partial = change(3, {"id": 1, "a": 3}, unchanged=["b"])
    other = change(1, {"id": 1}, route="customers")
    folded = newest_per_key(
        [
            change(1, {"id": 1, "a": 1, "b": 1}),
            partial,
            change(2, {"id": 2}, key=2),
            other,
        ],
        [floor, lower],
    )

    assert ((partial, other), 2) == (folded.changes, folded.below)


def test_a_row_at_the_floor_is_kept():
    """
    The floor deletes only rows below it.
    """
    row = change(2, {"id": 1})
    floor = Floor("orders", row.position, needs_all=True, origin=ORIGIN)

    assert Folded((row,), (), 0) == newest_per_key([row], [floor])


def test_keys_that_differ_only_as_text_are_not_merged():
    """
    A key that changes from 0 to -0 has a delete and a create at the same position.
    """
    deleted = change(2, None, key=0.0)
    created = change(2, {"id": -0.0}, key=-0.0)
    folded = newest_per_key([change(1, {"id": 0.0}, key=0.0), deleted, created])

    assert [None, {"id": -0.0}] == [each.row for each in folded.changes]
