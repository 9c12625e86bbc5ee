"""Events whose values cannot tell their place are counted all the same."""

import pytest

from towpath.relay.routing.codec import Place
from towpath.relay.routing.counted import CountedChanges, CountedEvents
from towpath.relay.wal.relation import Column, Relation
from towpath.relay.wal.sequencer import Change, Spoken, Transaction
from towpath.schemas.envelope import Operation

TRANSACTION = Transaction(1, 8, 8, 0, b"0000000000000008.")
TABLE = Relation(7, "towpath", "outbox", (Column("id", 23),), (0,))
CHANGE = Change(
    Operation.CREATE,
    TABLE,
    (b"1",),
    None,
    False,
    TRANSACTION,
    0,
    8,
)
INSIDE = Spoken("towpath.outbox", b"{}", 8, 0, TRANSACTION, 8)
OUTSIDE = Spoken("towpath.outbox", b"{}", 8, -1, None, 8)


class Giving:
    """A route that gives the same records for whatever comes."""

    def __init__(self, *records: str) -> None:
        self._records = records

    def records(self, _step: object, _now_us: int, /):
        return self._records


@pytest.fixture
def counted() -> list[str]:
    """Lend the list of what was counted."""
    return []


@pytest.fixture
def count_in(counted: list[str]):
    """Lend what counts an event in."""

    def count(collection: str) -> Place:
        counted.append(collection)
        return Place("1:8", len(counted), len(counted))

    return count


@pytest.mark.parametrize("records", [(), ("event",), ("event", "another")])
def test_each_record_of_a_change_is_an_event(records, counted, count_in):
    """
    A82: as many are counted as the route gives, which come through untouched.
    """
    route = CountedChanges(Giving(*records), "towpath.outbox", count_in)
    given = route.records(CHANGE, 0)

    assert (records, ["towpath.outbox"] * len(records)) == (given, counted)


@pytest.mark.parametrize(("spoken", "count"), [(INSIDE, 1), (OUTSIDE, 0)])
def test_only_messages_of_a_transaction_are_counted(spoken, count, counted, count_in):
    """
    A82: an event outside a transaction comes through, and belongs to none.
    """
    route = CountedEvents(Giving("event"), "towpath.outbox", count_in)
    given = route.records(spoken, 0)

    assert (("event",), count) == (given, len(counted))
