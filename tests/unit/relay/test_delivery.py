"""The ledger: one LSN that is safe to confirm."""

import pytest

from support.relay_bench import Acknowledged
from towpath.relay.publish.in_flight import (
    RECORD_BYTES,
    Delivery,
    DeliveryLedger,
    PartitionBatch,
)


def batch(*deliveries: Delivery, position: bytes = b"p", size: int = 1):
    """Make a batch of one record of ``size`` bytes for each delivery."""
    ledger, size_bytes = deliveries[0].ledger, len(deliveries) * (size + RECORD_BYTES)
    return PartitionBatch(ledger, ("t", 0), list(deliveries), size_bytes, position)


def test_a_new_ledger_is_at_its_start_lsn():
    """
    Without a transaction the ledger's LSN is its start LSN.
    """
    assert 8 == DeliveryLedger(8).acknowledged()


def test_a_transaction_waits_for_all_of_its_records():
    """
    The end LSN is reached with the last acknowledgement, not before.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin()
    delivery.expect(b"a")
    delivery.expect(b"b")
    ledger.commit(16)
    seen = [ledger.acknowledged()]
    for _ in range(2):
        batch(delivery).acknowledge(None, Acknowledged())
        seen.append(ledger.acknowledged())

    assert [0, 0, 16] == seen


def test_the_confirmed_lsn_does_not_pass_an_open_transaction():
    """
    Acknowledgements before the commit do not move the LSN.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin()
    delivery.expect(b"a")
    batch(delivery).acknowledge(None, Acknowledged())

    assert (0, False) == (ledger.acknowledged(), ledger.is_idle)


def test_an_empty_transaction_waits_for_earlier_ones():
    """
    A transaction without records does not overtake an unsettled one.
    """
    ledger = DeliveryLedger(0)
    first = ledger.begin()
    first.expect(b"a")
    ledger.commit(16)
    ledger.begin()
    ledger.commit(24)
    before = ledger.acknowledged()
    batch(first).acknowledge(None, Acknowledged())

    assert (0, 24) == (before, ledger.acknowledged())


def test_a_hold_keeps_its_transaction_unsettled():
    """
    A signal's transaction is settled only when the signal's hold is released.
    """
    ledger = DeliveryLedger(0)
    ledger.begin()
    ledger.hold("s")
    ledger.commit(16)
    ledger.release("other")
    before = ledger.acknowledged()
    ledger.release("s")

    assert (0, 16) == (before, ledger.acknowledged())


def test_a_keepalive_moves_the_lsn_only_if_nothing_is_open():
    """
    A keepalive moves the LSN neither inside nor after an unsettled transaction.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin()
    ledger.idle_until(100)
    inside = ledger.acknowledged()
    delivery.expect(b"a")
    ledger.commit(16)
    ledger.idle_until(100)
    unsettled = ledger.acknowledged()
    batch(delivery).acknowledge(None, Acknowledged())
    ledger.idle_until(100)

    assert (0, 0, 100) == (inside, unsettled, ledger.acknowledged())


def test_a_keepalive_does_not_move_the_lsn_while_snapshot_rows_are_in_flight():
    """
    The server's position is ignored until the rows are acknowledged.
    """
    ledger = DeliveryLedger(0)
    chunk = ledger.begin_chunk(1)
    chunk.expect(b"row")
    ledger.end_chunk(1)
    ledger.idle_until(100)

    assert 0 == ledger.acknowledged()


def test_a_keepalive_never_moves_the_lsn_back():
    """
    A lower position from the server changes nothing.
    """
    ledger = DeliveryLedger(50)
    ledger.idle_until(10)

    assert 50 == ledger.acknowledged()


def test_a_failed_record_is_never_confirmed():
    """
    The LSN remains below a failed record, and the error is kept.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin()
    delivery.expect(b"a")
    ledger.commit(16)
    batch(delivery).acknowledge("refused", Acknowledged())

    assert (0, "refused") == (ledger.acknowledged(), ledger.failure)


def test_bytes_in_flight_return_to_zero():
    """
    Bytes are subtracted on acknowledgement and on failure.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin()
    for value in (b"12345", None, b"1"):
        delivery.expect(value)
    most = ledger.in_flight_bytes
    batch(delivery, size=5).acknowledge(None, Acknowledged())
    batch(delivery, size=0).acknowledge("refused", Acknowledged())
    batch(delivery).acknowledge(None, Acknowledged())

    assert (6 + 3 * RECORD_BYTES, 0) == (most, ledger.in_flight_bytes)


def test_a_chunk_is_delivered_once_and_only_after_it_is_closed():
    """
    It is reported once it is closed and all its rows are acknowledged.
    """
    ledger = DeliveryLedger(0)
    chunk = ledger.begin_chunk(7)
    chunk.expect(b"row")
    batch(chunk, position=b"", size=3).acknowledge(None, Acknowledged())
    still_open = ledger.take_delivered()
    ledger.end_chunk(7)

    assert ((), (7,), ()) == (
        still_open,
        ledger.take_delivered(),
        ledger.take_delivered(),
    )


def test_the_last_record_of_each_partition_is_kept():
    """
    Streamed records are kept with their position; others only with their offset.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin()
    for position in (b"1", b"2"):
        delivery.expect(b"")
        batch(delivery, position=position).acknowledge(None, Acknowledged())
    delivery = ledger.begin_untracked()
    delivery.expect(b"")
    batch(delivery, position=b"").acknowledge(None, Acknowledged())
    position, _ = ledger.ordered_acks["t", 0]

    assert (b"2", [("t", 0)], 0) == (
        position,
        list(ledger.unordered_acks),
        delivery.pending,
    )


def test_the_acknowledgement_of_a_batch_covers_all_of_its_records():
    """
    It counts for each delivery as often as the delivery has records in the batch.
    """
    ledger = DeliveryLedger(0)
    first, second = ledger.begin_untracked(), ledger.begin_untracked()
    for delivery in (first, second, second, second):
        delivery.expect(b"1")
    batch(first, second, second).acknowledge(None, Acknowledged())

    assert (0, 1, 1 + RECORD_BYTES) == (
        first.pending,
        second.pending,
        ledger.in_flight_bytes,
    )


def test_a_failed_internal_record_is_a_failure():
    """
    A failed mark or READ row is not ignored.
    """
    ledger = DeliveryLedger(0)
    delivery = ledger.begin_untracked()
    delivery.expect(b"")
    batch(delivery, position=b"").acknowledge("refused", Acknowledged())

    assert ("refused", {}, 1) == (
        ledger.failure,
        ledger.unordered_acks,
        delivery.pending,
    )


def test_settled_transactions_are_counted_with_the_oldest_commit_time():
    """
    This is that of the first transaction settled since the statistics were last taken.

    A message outside a transaction has none (0), and is not counted.
    """
    ledger = DeliveryLedger(0)
    for number, committed_us in enumerate((0, 5, 0, 7)):
        delivery = ledger.begin(committed_us)
        delivery.expect(b"")
        ledger.commit(number + 8)
        batch(delivery).acknowledge(None, Acknowledged())
    ledger.acknowledged()

    assert (5, 2) == (ledger.settled_us, ledger.settled_count)


def test_a_commit_without_a_begin_raises():
    """
    Closing a transaction that was never opened is a defect of the relay.
    """
    with pytest.raises(RuntimeError):
        DeliveryLedger(0).commit(8)
