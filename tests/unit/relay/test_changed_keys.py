"""The changed keys for which a snapshot's row is dropped, and the outcomes of rows."""

import pytest

from towpath.relay.snapshot.changed_keys import (
    ChangedKeyFeed,
    ChangedKeys,
    ChangeOutcome,
)
from towpath.relay.snapshot.visibility import XidSnapshot

KEY, OTHER = (b"1",), (b"2",)
LOW = 10
# Sees every transaction up to 104 except 102.
SNAPSHOT = XidSnapshot(102, 105, frozenset({102}))


def recording(**bounds: int) -> tuple[ChangedKeyFeed, ChangedKeys]:
    """Make a feed of changed keys, and a scan's recording of it."""
    feed, changed_keys = ChangedKeyFeed(), ChangedKeys(**bounds)
    feed.recordings.append(changed_keys)
    changed_keys.begin()
    return feed, changed_keys


@pytest.mark.parametrize(
    ("xid", "sequence", "left"),
    [
        (101, 9, None),
        (101, 11, ChangeOutcome.FULL),
        (102, 9, ChangeOutcome.FULL),
        (102, 11, ChangeOutcome.FULL),
        (105, 9, ChangeOutcome.FULL),
    ],
)
def test_a_row_is_dropped_for_late_or_invisible_changes(xid, sequence, left):
    """
    Changes after the low watermark count, as do invisible ones at any position.
    """
    feed, changed_keys = recording()
    feed.record(KEY, xid, sequence)

    assert (left, None) == (
        changed_keys.outcome(KEY, LOW, SNAPSHOT),
        changed_keys.outcome(OTHER, LOW, SNAPSHOT),
    )


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        (["partial"], ChangeOutcome.PARTIAL),
        (["partial", "partial"], ChangeOutcome.PARTIAL),
        (["full", "partial"], ChangeOutcome.FULL),
        (["partial", "full"], ChangeOutcome.FULL),
        (["moved"], ChangeOutcome.MOVED),
        (["full", "moved"], ChangeOutcome.MOVED),
        (["moved", "partial"], ChangeOutcome.MOVED),
        (["moved", "full"], ChangeOutcome.FULL),
        (["partial", "truncate"], ChangeOutcome.FULL),
        (["truncate", "moved"], ChangeOutcome.MOVED),
    ],
)
@pytest.mark.parametrize("xids", [(101, 101), (101, 103)])
def test_the_outcome_follows_the_order_of_changes(changes, left, xids):
    """
    A partial change can complete a full row, but not a moved or missing one.
    """
    feed, changed_keys = recording()
    for sequence, (change, xid) in enumerate(zip(changes, xids, strict=False), 11):
        match change:
            case "moved":
                feed.record_move(OTHER, KEY, xid, sequence, partial=True)
            case "truncate":
                feed.record_truncate(xid, sequence)
            case _:
                feed.record(KEY, xid, sequence, partial=change == "partial")

    assert left is changed_keys.outcome(KEY, LOW, SNAPSHOT)


def test_a_truncate_changes_every_key():
    """
    After a TRUNCATE no row of an older chunk is emitted.
    """
    feed, changed_keys = recording()
    feed.record_truncate(101, 11)

    assert ChangeOutcome.FULL is changed_keys.outcome(OTHER, LOW, SNAPSHOT)


def test_a_move_changes_both_keys():
    """
    Both the old and the new key of a row are recorded.
    """
    feed, changed_keys = recording()
    feed.record_move(KEY, OTHER, 101, 11)

    assert (ChangeOutcome.FULL, ChangeOutcome.FULL) == (
        changed_keys.outcome(KEY, LOW, SNAPSHOT),
        changed_keys.outcome(OTHER, LOW, SNAPSHOT),
    )


def test_only_changed_keys_that_no_longer_matter_are_forgotten():
    """
    Changes that the chunk did not see or that follow its low watermark are kept.
    """
    feed, changed_keys = recording()
    for number, (xid, sequence) in enumerate(((101, 9), (102, 9), (103, 11))):
        feed.record((b"%d" % number,), xid, sequence)
    feed.record_truncate(101, 8)
    changed_keys.passed(changed_keys.add_reader(), LOW, SNAPSHOT)

    nothing = XidSnapshot(1, 1, frozenset())
    outcomes = [
        changed_keys.outcome((b"%d" % number,), 0, nothing) for number in range(4)
    ]

    assert [None, ChangeOutcome.FULL, ChangeOutcome.FULL, None] == outcomes


def test_changed_keys_that_a_second_reader_needs_are_kept():
    """
    Readers share a scan's recording.

    A reader without a finished chunk may need all changed keys.
    """
    feed, changed_keys = recording()
    feed.record(KEY, 101, 9)
    early, late = changed_keys.add_reader(), changed_keys.add_reader()
    changed_keys.passed(early, LOW, SNAPSHOT)
    kept = changed_keys.outcome(KEY, 0, SNAPSHOT)
    changed_keys.passed(late, LOW, SNAPSHOT)

    assert (ChangeOutcome.FULL, None) == (kept, changed_keys.outcome(KEY, 0, SNAPSHOT))


def test_a_removed_reader_keeps_no_changed_keys():
    """
    A reader without a window needs no changed keys.
    """
    feed, changed_keys = recording()
    feed.record(KEY, 101, 9)
    early, idle = changed_keys.add_reader(), changed_keys.add_reader()
    changed_keys.remove_reader(idle)
    changed_keys.passed(early, LOW, SNAPSHOT)

    assert changed_keys.outcome(KEY, 0, SNAPSHOT) is None


def test_beyond_the_limit_changed_keys_are_dropped_and_reported():
    """
    The number of changed keys is limited; their loss is never silent.
    """
    feed, changed_keys = recording(max_changed_keys=2)
    for number in range(3):
        feed.record((b"%d" % number,), 101, 11)
    overflowed = changed_keys.has_overflowed
    changed_keys.begin()

    assert (True, False) == (overflowed, changed_keys.has_overflowed)


def test_repeated_changes_of_one_transaction_count_once():
    """
    A hot key within one transaction takes no more memory than a cold one.
    """
    feed, changed_keys = recording(max_changed_keys=1)
    for sequence in range(100):
        feed.record(KEY, 101, sequence)

    assert not changed_keys.has_overflowed


def test_each_scan_records_from_its_own_start():
    """
    Several scans of a table forget and restart independently.
    """
    feed, early = recording()
    feed.record(KEY, 101, 11)
    late = ChangedKeys()
    feed.recordings.append(late)
    late.begin()
    feed.record(OTHER, 101, 12)
    early.passed(early.add_reader(), 11, SNAPSHOT)

    assert ([None, ChangeOutcome.FULL], [None, ChangeOutcome.FULL]) == (
        [early.outcome(key, LOW, SNAPSHOT) for key in (KEY, OTHER)],
        [late.outcome(key, LOW, SNAPSHOT) for key in (KEY, OTHER)],
    )


def test_keys_changed_before_the_start_are_not_recorded():
    """
    Instead, the scan waits for transactions streamed before the recording began.
    """
    feed, changed_keys = ChangedKeyFeed(), ChangedKeys()
    feed.recordings.append(changed_keys)
    feed.record(KEY, 101, 11)
    feed.record_truncate(101, 12)

    assert changed_keys.outcome(KEY, LOW, SNAPSHOT) is None
