"""Which changed keys drop a row, and what becomes of it."""

import pytest

from towpath.relay.snapshot.changed_keys import (
    ChangedKeyFeed,
    ChangedKeys,
    TouchOutcome,
)
from towpath.relay.snapshot.visibility import XidSnapshot

KEY, OTHER = (b"1",), (b"2",)
LOW = 10
# Sees everything up to 104 but 102.
SNAPSHOT = XidSnapshot(102, 105, frozenset({102}))


def recording(**bounds: int) -> tuple[ChangedKeyFeed, ChangedKeys]:
    """Make changed keys and a scan's recording of them."""
    touches, notes = ChangedKeyFeed(), ChangedKeys(**bounds)
    touches.notes.append(notes)
    notes.begin()
    return touches, notes


@pytest.mark.parametrize(
    ("xid", "sequence", "left"),
    [
        (101, 9, None),
        (101, 11, TouchOutcome.FULL),
        (102, 9, TouchOutcome.FULL),
        (102, 11, TouchOutcome.FULL),
        (105, 9, TouchOutcome.FULL),
    ],
)
def test_a_row_is_dropped_for_late_or_invisible_changes(xid, sequence, left):
    """
    Late is after the low watermark, however visible; invisible counts at any place.
    """
    touches, notes = recording()
    touches.touch(KEY, xid, sequence)

    assert (left, None) == (
        notes.judge(KEY, LOW, SNAPSHOT),
        notes.judge(OTHER, LOW, SNAPSHOT),
    )


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        (["partial"], TouchOutcome.PARTIAL),
        (["partial", "partial"], TouchOutcome.PARTIAL),
        (["full", "partial"], TouchOutcome.FULL),
        (["partial", "full"], TouchOutcome.FULL),
        (["moved"], TouchOutcome.MOVED),
        (["full", "moved"], TouchOutcome.MOVED),
        (["moved", "partial"], TouchOutcome.MOVED),
        (["moved", "full"], TouchOutcome.FULL),
        (["partial", "truncate"], TouchOutcome.FULL),
        (["truncate", "moved"], TouchOutcome.MOVED),
    ],
)
@pytest.mark.parametrize("xids", [(101, 101), (101, 103)])
def test_a_dropped_row_follows_the_order_of_changes(changes, left, xids):
    """
    A partial change completes a whole row, but no moved or missing one.
    """
    touches, notes = recording()
    for sequence, (change, xid) in enumerate(zip(changes, xids, strict=False), 11):
        match change:
            case "moved":
                touches.move(OTHER, KEY, xid, sequence, partial=True)
            case "truncate":
                touches.touch_all(xid, sequence)
            case _:
                touches.touch(KEY, xid, sequence, partial=change == "partial")

    assert left is notes.judge(KEY, LOW, SNAPSHOT)


def test_a_truncate_touches_every_key():
    """
    After a TRUNCATE no row of an older chunk is emitted.
    """
    touches, notes = recording()
    touches.touch_all(101, 11)

    assert TouchOutcome.FULL is notes.judge(OTHER, LOW, SNAPSHOT)


def test_a_move_touches_both_keys():
    """
    The old key of a row is recorded as well as its new one.
    """
    touches, notes = recording()
    touches.move(KEY, OTHER, 101, 11)

    assert (TouchOutcome.FULL, TouchOutcome.FULL) == (
        notes.judge(KEY, LOW, SNAPSHOT),
        notes.judge(OTHER, LOW, SNAPSHOT),
    )


def test_only_changed_keys_without_effect_are_forgotten():
    """
    A change that the chunk did not see stays, and so does one after its low watermark.
    """
    touches, notes = recording()
    for place, (xid, sequence) in enumerate(((101, 9), (102, 9), (103, 11))):
        touches.touch((b"%d" % place,), xid, sequence)
    touches.touch_all(101, 8)
    notes.passed(notes.join(), LOW, SNAPSHOT)

    nothing = XidSnapshot(1, 1, frozenset())
    judged = [notes.judge((b"%d" % place,), 0, nothing) for place in range(4)]

    assert [None, TouchOutcome.FULL, TouchOutcome.FULL, None] == judged


def test_a_reader_keeps_changed_keys_that_another_needs():
    """
    Readers share a scan's recording.

    One that has judged nothing yet may need all of it.
    """
    touches, notes = recording()
    touches.touch(KEY, 101, 9)
    early, late = notes.join(), notes.join()
    notes.passed(early, LOW, SNAPSHOT)
    held = notes.judge(KEY, 0, SNAPSHOT)
    notes.passed(late, LOW, SNAPSHOT)

    assert (TouchOutcome.FULL, None) == (held, notes.judge(KEY, 0, SNAPSHOT))


def test_a_reader_that_has_left_keeps_no_changed_keys():
    """
    A reader with nothing to judge needs no changed key.
    """
    touches, notes = recording()
    touches.touch(KEY, 101, 9)
    early, idle = notes.join(), notes.join()
    notes.leave(idle)
    notes.passed(early, LOW, SNAPSHOT)

    assert notes.judge(KEY, 0, SNAPSHOT) is None


def test_above_the_bound_changed_keys_are_dropped_and_reported():
    """
    Changed keys are bounded; losing them is never silent.
    """
    touches, notes = recording(max_changed_keys=2)
    for place in range(3):
        touches.touch((b"%d" % place,), 101, 11)
    overflowed = notes.has_overflowed
    notes.begin()

    assert (True, False) == (overflowed, notes.has_overflowed)


def test_repeated_touches_of_one_transaction_count_once():
    """
    A hot key within one transaction takes no more memory than a cold one.
    """
    touches, notes = recording(max_changed_keys=1)
    for sequence in range(100):
        touches.touch(KEY, 101, sequence)

    assert not notes.has_overflowed


def test_each_scan_records_from_its_own_start():
    """
    Several scans of a table forget, and restart, each by itself.
    """
    touches, early = recording()
    touches.touch(KEY, 101, 11)
    late = ChangedKeys()
    touches.notes.append(late)
    late.begin()
    touches.touch(OTHER, 101, 12)
    early.passed(early.join(), 11, SNAPSHOT)

    assert ([None, TouchOutcome.FULL], [None, TouchOutcome.FULL]) == (
        [early.judge(key, LOW, SNAPSHOT) for key in (KEY, OTHER)],
        [late.judge(key, LOW, SNAPSHOT) for key in (KEY, OTHER)],
    )


def test_changed_keys_before_the_start_are_not_recorded():
    """
    Transactions streamed before the recording begins are waited for instead.
    """
    touches, notes = ChangedKeyFeed(), ChangedKeys()
    touches.notes.append(notes)
    touches.touch(KEY, 101, 11)
    touches.touch_all(101, 12)

    assert notes.judge(KEY, LOW, SNAPSHOT) is None
