"""Which touches drop a row, and what they leave behind."""

import pytest

from towpath.relay.snapshot.touches import Left, Touches
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot

KEY, OTHER = (b"1",), (b"2",)
LOW = 10
# Sees everything up to 104 but 102.
SNAPSHOT = XidSnapshot(102, 105, frozenset({102}))


def recording(**bounds: int) -> Touches:
    """Make touches that record."""
    touches = Touches(InvisibleTransactions(0), **bounds)
    touches.begin()
    return touches


@pytest.mark.parametrize(
    ("xid", "sequence", "left"),
    [
        (101, 9, None),
        (101, 11, Left.FULL),
        (102, 9, Left.FULL),
        (102, 11, Left.FULL),
        (105, 9, Left.FULL),
    ],
)
def test_a_row_is_dropped_for_late_or_invisible_touches(xid, sequence, left):
    """
    Late is after the low watermark, however visible; invisible counts at any place.
    """
    touches = recording()
    touches.touch(KEY, xid, sequence)

    assert (left, None) == (
        touches.judge(KEY, LOW, SNAPSHOT),
        touches.judge(OTHER, LOW, SNAPSHOT),
    )


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        (["partial"], Left.PARTIAL),
        (["partial", "partial"], Left.PARTIAL),
        (["full", "partial"], Left.FULL),
        (["partial", "full"], Left.FULL),
        (["moved"], Left.MOVED),
        (["full", "moved"], Left.MOVED),
        (["moved", "partial"], Left.MOVED),
        (["moved", "full"], Left.FULL),
        (["partial", "truncate"], Left.FULL),
        (["truncate", "moved"], Left.MOVED),
    ],
)
@pytest.mark.parametrize("xids", [(101, 101), (101, 103)])
def test_what_is_left_follows_the_order_of_changes(changes, left, xids):
    """
    A partial change completes a whole row, but no moved or missing one.
    """
    touches = recording()
    for sequence, (change, xid) in enumerate(zip(changes, xids, strict=False), 11):
        match change:
            case "moved":
                touches.move(OTHER, KEY, xid, sequence, partial=True)
            case "truncate":
                touches.touch_all(xid, sequence)
            case _:
                touches.touch(KEY, xid, sequence, partial=change == "partial")

    assert left is touches.judge(KEY, LOW, SNAPSHOT)


def test_truncate_touches_every_key():
    """
    After a TRUNCATE no row of an older chunk is emitted.
    """
    touches = recording()
    touches.touch_all(101, 11)

    assert Left.FULL is touches.judge(OTHER, LOW, SNAPSHOT)


def test_a_move_touches_both_keys():
    """
    The old key of a row is as touched as its new one.
    """
    touches = recording()
    touches.move(KEY, OTHER, 101, 11)

    assert (Left.FULL, Left.FULL, False) == (
        touches.judge(KEY, LOW, SNAPSHOT),
        touches.judge(OTHER, LOW, SNAPSHOT),
        touches.has_moved,
    )


def test_only_what_can_drop_nothing_any_more_is_forgotten():
    """
    A touch that the chunk did not see stays, and so does one after its low watermark.
    """
    touches = recording()
    for place, (xid, sequence) in enumerate(((101, 9), (102, 9), (103, 11))):
        touches.touch((b"%d" % place,), xid, sequence)
    touches.touch_all(101, 8)
    touches.forget(LOW, SNAPSHOT)

    nothing = XidSnapshot(1, 1, frozenset())
    judged = [touches.judge((b"%d" % place,), 0, nothing) for place in range(4)]

    assert [None, Left.FULL, Left.FULL, None] == judged


def test_above_the_bound_all_is_forgotten_and_said():
    """
    Touches are bounded; losing them is never silent.
    """
    touches = recording(max_touches=2)
    for place in range(3):
        touches.touch((b"%d" % place,), 101, 11)
    overflowed = touches.has_overflowed
    touches.begin()

    assert (True, False) == (overflowed, touches.has_overflowed)


def test_repeated_touches_of_one_transaction_count_once():
    """
    A hot key within one transaction takes no more memory than a cold one.
    """
    touches = recording(max_touches=1)
    for sequence in range(100):
        touches.touch(KEY, 101, sequence)

    assert not touches.has_overflowed


def test_moved_keys_are_kept_before_recording_begins():
    """
    A row that moves with columns left out is remembered, and its transaction held.
    """
    invisible = InvisibleTransactions(10)
    touches = Touches(invisible)
    touches.move(KEY, OTHER, 101, 1, partial=True)
    held = invisible.confirmable(99)

    assert (10, (OTHER,), ()) == (held, touches.take_moved(), touches.take_moved())


def test_too_many_moved_keys_are_said_to_be_lost():
    """
    The list of moved keys is bounded, and its loss is known.
    """
    touches = recording(max_moved_keys=1)
    touches.move(KEY, OTHER, 101, 1, partial=True)
    touches.move(OTHER, KEY, 101, 2, partial=True)

    assert touches.has_lost_moves
