"""The relay's own key requests: batches, holds, and repeats after a restart."""

import pytest

from support.copying import replace
from towpath.relay.snapshot.key_requests import MAX_BATCH_BYTES, MAX_WAIT_S, KeyRequests
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.position import Position

A = Relation(1, "s", "a", (Column("id", 20),), (0,))
B = Relation(2, "s", "b", (Column("id", 20),), (0,))


def position_at(lsn: int, ordinal: int = 0) -> Position:
    """Return the position of a change."""
    return Position(lsn, ordinal)


def scan(table_oid: int, floor: int | None) -> StoredTable:
    """Return a whole table whose scan began at a log LSN."""
    return StoredTable("s1", "s.a", 0, "running", table_oid, floor=floor)


def key(number: int) -> tuple[bytes, ...]:
    """Return a key."""
    return (b"%d" % number,)


def test_a_mass_update_makes_few_key_requests():
    """
    A transaction that moves 100,000 rows makes ten requests, and is held for each.
    """
    requests = KeyRequests()
    holds = [requests.add(A, key(n), position_at(8, n)) for n in range(100_000)]
    batches = [requests.next_batch(0.0) for _ in range(11)]
    sizes = [batch and batch.tables[0].asked_keys for batch in batches]

    assert [10_000] * 10 + [None] == sizes
    assert [batch.snapshot_id for batch in batches[:10]] == [h for h in holds if h]


def test_transactions_share_a_key_request_and_are_each_held_for_it():
    """
    Keys of several tables and transactions are stored together.
    """
    requests = KeyRequests()
    holds = [
        requests.add(A, key(1), position_at(0x10, 3)),
        requests.add(A, key(2), position_at(0x10, 4)),
        requests.add(B, key(1), position_at(0x20, 0)),
        requests.add(A, key(1), position_at(0x20, 1)),
    ]
    batch = requests.next_batch(0.0)
    tables = [(t.collection, t.pending_keys, t.asked_until) for t in batch.tables]

    name = "towpath-keys-0000000000000010"
    assert [name, None, name, None] == holds
    assert [
        ("s.a", (key(1), key(2)), "0000000000000020.0000000001"),
        ("s.b", (key(1),), "0000000000000020.0000000001"),
    ] == tables


def test_a_stored_key_request_is_not_repeated():
    """
    After a crash, changes up to the stored position are skipped, but not later ones.
    """
    requests = KeyRequests()
    requests.resume("0000000000000010.0000000004")
    requested = [requests.add(A, key(n), position_at(0x10, n)) for n in (3, 4, 5)]

    assert [None, None, "towpath-keys-0000000000000010.0000000005"] == requested


def test_a_first_start_requests_every_key():
    """
    Without stored requests, every key is requested.
    """
    requests = KeyRequests()
    requests.resume(None)

    assert "towpath-keys-0000000000000008" == requests.add(A, key(1), position_at(8))


@pytest.mark.parametrize(
    ("has_ended", "waited_s", "is_taken"),
    [(False, 0.0, False), (True, 0.0, True), (False, MAX_WAIT_S, True)],
)
def test_a_key_request_waits_briefly_for_the_previous_one(
    has_ended, waited_s, is_taken
):
    """
    While one request is being read, the next one grows; it is stored after a second.
    """
    requests = KeyRequests()
    requests.add(A, key(1), position_at(8))
    first = requests.next_batch(0.0)
    requests.add(A, key(2), position_at(16))
    early = requests.next_batch(1.0)
    if has_ended:
        requests.end_batch(first.tables)

    assert (None, is_taken) == (early, requests.next_batch(1.0 + waited_s) is not None)


def test_long_keys_fill_a_key_request_by_size():
    """
    A request is limited in bytes as well as in number.
    """
    requests = KeyRequests()
    for number in range(3):
        part = b"%d" % number * (MAX_BATCH_BYTES // 2)
        requests.add(A, (part,), position_at(8, number))
    batches = [requests.next_batch(0.0), requests.next_batch(0.0)]

    assert [2, None] == [batch and batch.tables[0].asked_keys for batch in batches]


def test_a_recreated_table_replaces_the_requests_of_the_dropped_one():
    """
    A dropped table has no rows left to read.
    """
    requests = KeyRequests()
    requests.add(A, key(1), position_at(8, 0))
    requests.add(replace(A, oid=7), key(2), position_at(8, 1))
    [table] = requests.next_batch(0.0).tables

    assert (7, (key(2),)) == (table.table_oid, table.pending_keys)


def test_a_failed_key_request_fails_the_waiting_table():
    """
    A table that waits for its requests is informed of the failure.
    """
    requests = KeyRequests()
    requests.add(A, key(1), position_at(8))
    batch = requests.next_batch(0.0)
    waiting = requests.has_ended(requests.newest(1))
    requests.end_batch((replace(batch.tables[0], state="failed"),))

    assert (False, True) == (waiting, requests.has_ended(requests.newest(1)))
    scans = (scan(1, floor=7), scan(1, floor=9), scan(2, floor=7))
    assert [True, False, False] == [*map(requests.has_failed, scans)]


def test_a_failed_key_request_affects_earlier_scans_of_a_whole_table():
    """
    The newest failure decides, stored or not; listed keys depend on no other key.
    """
    requests = KeyRequests()
    requests.resume(None, ((1, str(position_at(20))), (2, str(position_at(30)))))
    failed = StoredTable("k", "s.a", 0, "failed", 1, asked_until=str(position_at(10)))
    completed = replace(failed, state="completed", asked_until=str(position_at(40)))
    requests.end_batch((failed,))
    requests.end_batch((completed,))
    scans = (scan(1, 20), scan(1, 21), scan(2, 30), scan(1, None))

    assert [True, False, True, False] == [*map(requests.has_failed, scans)]
    assert not requests.has_failed(replace(scans[0], asked_keys=3))
