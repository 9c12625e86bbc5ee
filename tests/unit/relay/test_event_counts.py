"""Events are counted even if their values have no position in the transaction."""

import pytest

from towpath.relay.encode.codecs.codec import TransactionPlace
from towpath.relay.encode.router import CountedChanges, CountedEvents
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, LogicalMessageEvent, Transaction
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
INSIDE = LogicalMessageEvent("towpath.outbox", b"{}", 8, 0, TRANSACTION, 8)
OUTSIDE = LogicalMessageEvent("towpath.outbox", b"{}", 8, -1, None, 8)


class FixedRoute:
    """A route that returns the same records for every change."""

    def __init__(self, *records: str) -> None:
        self._records = records

    def records(self, _step: object, _now_us: int, /):
        return self._records


@pytest.fixture
def counted_events() -> list[str]:
    """Return the list of counted events."""
    return []


@pytest.fixture
def count_event(counted_events: list[str]):
    """Return the callback that counts an event."""

    def count(collection: str) -> TransactionPlace:
        counted_events.append(collection)
        return TransactionPlace("1:8", len(counted_events), len(counted_events))

    return count


@pytest.mark.parametrize("records", [(), ("event",), ("event", "other")])
def test_each_record_of_a_change_is_counted_as_an_event(
    records, counted_events, count_event
):
    """
    A82: the count is the number of the route's records, which are unchanged.
    """
    route = CountedChanges(FixedRoute(*records), "towpath.outbox", count_event)
    given = route.records(CHANGE, 0)

    assert (records, ["towpath.outbox"] * len(records)) == (given, counted_events)


@pytest.mark.parametrize(("message", "count"), [(INSIDE, 1), (OUTSIDE, 0)])
def test_only_messages_of_a_transaction_are_counted(
    message, count, counted_events, count_event
):
    """
    A82: an event outside a transaction is published, but belongs to none.
    """
    route = CountedEvents(FixedRoute("event"), "towpath.outbox", count_event)
    given = route.records(message, 0)

    assert (("event",), count) == (given, len(counted_events))
