"""If the row of a parked key changes again, a refetch may release the key."""

import pytest

from support.copying import replace
from support.dead_letters import MemoryRefetches, RecordedRepairs
from support.parked_shop import FILL, Shop, change
from towpath.sinks.dead_letters.entries import Verb

REQUESTED = ("orders", (7,))


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock():
    """Return a clock."""
    return Clock()


@pytest.fixture
def shop(clock):
    """Return a shop with a parked order."""
    shop = Shop(accepts_repairs=True, refetches=MemoryRefetches(clock=clock))
    shop.write(change(1, "c", note="a", bio="x"))
    shop.write(change(2, note="bad", unchanged=["bio"]))
    assert (1, []) == (len(shop.parked), shop.repairs.keys)
    return shop


def read(number, note="good", operation="r"):
    """Make the answer to a refetch."""
    record = change(number, operation, topic=FILL, note=note, bio="x")
    return replace(record, headers={"position": f"{number * 8:016x}.-".encode()})


@pytest.mark.parametrize("unchanged", [["bio"], None])
def test_a_change_to_a_parked_key_requests_a_refetch_which_releases_it(shop, unchanged):
    """
    Whole and partial changes wait, and the refetched row has a higher position.
    """
    shop.write(change(3, note="good", unchanged=unchanged))
    refetches = len(shop.refetches)
    shop.write(read(4))

    assert ([REQUESTED], 1, 0, 0) == (
        shop.repairs.keys,
        refetches,
        len(shop.refetches),
        len(shop.parked),
    )
    assert {"7": "good"} == shop.sink.notes


def test_a_refetched_delete_releases_the_key(shop):
    """
    The answer reports that there is no row.
    """
    shop.write(change(3, "d"))
    shop.write(read(4, operation="d"))

    assert ([REQUESTED], 0, {"7": None}) == (
        shop.repairs.keys,
        len(shop.parked),
        shop.sink.notes,
    )


def test_a_parked_row_has_one_pending_refetch_at_a_time(shop, clock):
    """
    It is not requested again until the answer has arrived or is overdue.

    If the answer was read before the newest change, the row is requested again.
    """
    for number in (3, 5):
        shop.write(change(number, note="good"))
    one = list(shop.repairs.keys)
    shop.write(read(4))
    two = list(shop.repairs.keys)
    clock.now_s += 61
    shop.write(change(6, note="good"))
    three = list(shop.repairs.keys)
    shop.write(read(7))

    assert ([REQUESTED], [REQUESTED] * 2, [REQUESTED] * 3, 0, 0) == (
        *(one, two, three),
        len(shop.parked),
        len(shop.refetches),
    )


def test_a_refused_refetched_row_waits_for_its_next_change(shop):
    """
    Until that change, the row is not requested again.
    """
    shop.write(change(3, note="bad"))
    shop.write(read(4, note="bad"))
    refused = len(shop.parked), len(shop.refetches), list(shop.repairs.keys)
    shop.write(change(5, note="good"))
    shop.write(read(6))

    assert ((1, 0, [REQUESTED]), [REQUESTED] * 2, 0) == (
        refused,
        shop.repairs.keys,
        len(shop.parked),
    )


def test_a_repeated_batch_requests_no_second_refetch(shop):
    """
    The request was durable before the dead letter was.
    """
    shop.write(change(3, note="good"))
    shop.begin()
    shop.write(change(2, note="bad", unchanged=["bio"]), change(3, note="good"))

    assert [REQUESTED] == shop.repairs.keys


def test_without_signals_a_parked_key_remains_parked():
    """
    The key can be replayed or discarded.
    """
    shop = Shop()
    shop.write(change(1, "c", note="bad"))
    shop.write(change(2, note="good"))
    held = len(shop.parked), len(shop.refetches)
    shop.sink.is_repaired = True

    assert ((1, 0), "replayed") == (held, shop.ask(Verb.REPLAY).how)


def test_a_refetch_that_cannot_be_sent_fails_the_batch(shop):
    """
    None of its dead letters has been written by then.
    """
    shop.repairs = RecordedRepairs()
    letters = len(shop.letters.records)

    def fail(*_):
        message = "no broker"
        raise ConnectionError(message)

    shop.repairs.request_keys = fail
    shop.begin()
    with pytest.raises(ConnectionError):
        shop.write(change(3, note="good"))

    assert letters == len(shop.letters.records)
