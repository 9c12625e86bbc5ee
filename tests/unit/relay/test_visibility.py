"""Which transactions a snapshot sees, and how far the WAL may be confirmed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot

WRAP = 1 << 32


@pytest.mark.parametrize(
    ("text", "snapshot"),
    [
        ("726:729:726,727", XidSnapshot(726, 729, frozenset({726, 727}))),
        ("10:10:", XidSnapshot(10, 10, frozenset())),
    ],
)
def test_a_snapshots_text_form_is_parsed(text: str, snapshot: XidSnapshot):
    """
    The text has the snapshot's bounds and the transactions in progress.
    """
    assert snapshot == XidSnapshot.parse(text)


def test_a_snapshot_sees_ended_transactions():
    """
    Transactions below the upper bound that were not in progress are seen.
    """
    snapshot = XidSnapshot.parse("726:729:726,727")

    assert [True, False, False, True, False] == [
        snapshot.sees(xid) for xid in (725, 726, 727, 728, 729)
    ]


@given(st.integers(WRAP, 1 << 50), st.integers(-(1 << 30), 1 << 30))
def test_short_ids_are_extended_to_the_nearest(xmax: int, distance: int):
    """
    Thirty-two bits identify the transaction nearest to the snapshot's upper bound.
    """
    snapshot = XidSnapshot(xmax, xmax, frozenset())

    assert xmax + distance == snapshot.extend((xmax + distance) % WRAP)


def test_the_wal_is_kept_from_the_first_invisible_transaction_on():
    """
    Nothing is confirmed beyond the end of the transactions before it.
    """
    invisible = InvisibleTransactions(start_lsn=100)
    before = invisible.confirmable(90)
    for xid, end_lsn in ((7, 200), (8, 300), (9, 400)):
        invisible.add(xid, end_lsn)
    invisible.observe(XidSnapshot(8, 10, frozenset({8})))

    assert (90, 200, 150, 1) == (
        before,
        invisible.confirmable(400),
        invisible.confirmable(150),
        invisible.count,
    )


def test_transactions_after_an_invisible_one_are_not_kept():
    """
    One long invisible transaction does not make later ones pile up.
    """
    invisible = InvisibleTransactions(0)
    for xid in range(3, 1003):
        invisible.add(xid, xid * 10)
    invisible.observe(XidSnapshot(3, 1003, frozenset({3, 500})))

    assert (2, 0) == (invisible.count, invisible.confirmable(10_020))


def test_a_marker_is_passed_once_all_transactions_before_it_are_visible():
    """
    Transactions after a marker do not delay it.
    """
    invisible = InvisibleTransactions(0)
    invisible.add(3, 30)
    marker = invisible.marker()
    invisible.add(4, 40)
    waits = invisible.are_visible_until(marker)
    invisible.observe(XidSnapshot(4, 5, frozenset({4})))

    assert (False, True) == (waits, invisible.are_visible_until(marker))
