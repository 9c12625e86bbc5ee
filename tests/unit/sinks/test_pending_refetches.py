"""A row is refetched if a partial change may have been merged with a stale version."""

import pytest

from support.copying import replace
from support.dead_letters import MemoryRefetches, RecordedRepairs, StoppedClock
from support.parked_shop import FILL, Shop, change
from towpath.schemas import headers
from towpath.schemas.clock import SystemClock
from towpath.sinks.apply import refetch
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.refetch_requests import NOT_BY_KEY, TOO_MANY, request_overdue
from towpath.sinks.apply.replay import AWAITS_REFETCH
from towpath.sinks.dead_letters.entries import Verb
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.state import incomplete

REQUESTED = ("orders", (7,))


@pytest.fixture
def shop():
    """Return a shop whose target has lost its last writes: the route is incomplete."""
    shop = Shop(accepts_repairs=True)
    shop.write(change(1, "c", note="old", bio="old", status="placed"))
    shop.refetches.routes.add("orders")
    return shop


def paid(number, *unchanged, **after):
    """Make a partial change; without column names, only the note is left out."""
    return change(number, unchanged=list(unchanged or ("note",)), **after)


def row_of(shop):
    """Return the row of the order without its key."""
    stored = shop.sink.rows["orders"]["7"].row
    return {name: value for name, value in stored.items() if name != "order_id"}


def test_a_row_merged_with_a_stale_one_is_refetched(shop):
    """
    An earlier READ row arrives too late: it is below the change, and is dropped.
    """
    shop.write(paid(5, bio="new", status="paid"))
    shop.write(change(4, "r", topic=FILL, note="new", bio="old", status="placed"))
    requested = list(shop.repairs.keys)
    shop.write(change(6, "r", topic=FILL, note="new", bio="new", status="paid"))

    assert ([REQUESTED], {"note": "new", "bio": "new", "status": "paid"}, 0) == (
        requested,
        row_of(shop),
        len(shop.refetches),
    )


def test_a_change_above_its_answer_in_one_batch_needs_no_refetch(shop):
    """
    Such a change is merged with the READ row, so a hot row is not refetched forever.
    """
    shop.refetches.routes.clear()
    shop.sink.rows.clear()
    shop.write(paid(5, status="paid", bio="new"))
    shop.write(
        change(6, "r", topic=FILL, note="new", bio="new", status="paid"),
        paid(7, status="sent", bio="new"),
    )

    assert ([REQUESTED], {"note": "new", "bio": "new", "status": "sent"}, 0) == (
        shop.repairs.keys,
        row_of(shop),
        len(shop.refetches),
    )


def test_while_rows_are_missing_a_row_that_changes_after_its_answer_is_refetched(shop):
    """
    Keys may have moved: a change in between may arrive later.
    """
    shop.write(paid(5, status="paid", bio="new"))
    shop.write(
        change(6, "r", topic=FILL, note="new", bio="new", status="paid"),
        paid(7, status="sent", bio="new"),
    )

    assert ([REQUESTED, REQUESTED], 1) == (shop.repairs.keys, len(shop.refetches))


def test_a_complete_route_refetches_nothing(shop):
    """
    A partial change finds the current row, and is merged with it.
    """
    shop.refetches.routes.clear()
    shop.write(paid(5, bio="new", status="paid"))

    assert ([], "old", 0) == (
        shop.repairs.keys,
        row_of(shop)["note"],
        len(shop.refetches),
    )


def test_a_row_that_is_whole_in_the_batch_is_not_refetched(shop):
    """
    The batch contains the whole row, at a higher position than the target's row.
    """
    shop.write(change(4, note="new", bio="b", status="placed"), paid(5, bio="c"))

    assert ([], {"note": "new", "bio": "c", "status": "placed"}) == (
        shop.repairs.keys,
        row_of(shop) | {"status": "placed"},
    )


def test_a_row_is_refetched_once_however_often_it_changes(shop):
    """
    Only one request is open at a time, even after a restart.
    """
    for number in range(5, 9):
        shop.write(paid(number, status=f"{number}"))
    shop.begin()
    shop.write(paid(9, status="9"))

    assert [REQUESTED] == shop.repairs.keys


def test_a_row_is_requested_again_if_its_answer_was_read_too_early(shop):
    """
    A change above the answer was merged with the stale row.

    The row is requested even after the route has become complete, as nothing else
    would correct it.
    """
    shop.write(paid(5, status="paid"))
    shop.refetches.routes.clear()
    shop.write(paid(8, "note", "bio", status="sent"))
    shop.write(change(7, "r", topic=FILL, note="new", bio="new", status="paid"))
    again = list(shop.repairs.keys)
    shop.write(change(9, "r", topic=FILL, note="new", bio="new", status="sent"))

    assert (
        [REQUESTED, REQUESTED],
        {"note": "new", "bio": "new", "status": "sent"},
        0,
    ) == (
        again,
        row_of(shop),
        len(shop.refetches),
    )


def test_a_row_from_below_the_request_is_not_an_answer(shop):
    """
    A running snapshot delivers rows too; the answer is still pending.
    """
    shop.write(paid(5, status="paid"))
    shop.write(change(3, "r", topic=FILL, note="old", bio="old", status="placed"))

    assert ([REQUESTED], 1) == (shop.repairs.keys, len(shop.refetches))


def test_an_absent_row_is_refetched_too(shop):
    """
    The target has no row for the change, so only the answer has the missing columns.
    """
    shop.refetches.routes.clear()
    shop.sink.rows.clear()
    shop.write(paid(5, bio="new", status="paid"))
    shop.write(change(4, "r", topic=FILL, note="new", bio="old", status="placed"))
    shop.write(paid(8, "note", "bio", status="sent"))
    shop.write(change(7, "r", topic=FILL, note="new", bio="new", status="paid"))
    shop.write(change(9, "r", topic=FILL, note="new", bio="new", status="sent"))

    assert (
        [REQUESTED, REQUESTED],
        {"note": "new", "bio": "new", "status": "sent"},
    ) == (
        shop.repairs.keys,
        row_of(shop),
    )


def test_a_row_whose_dead_letter_was_discarded_is_refetched():
    """
    A change before the answer is merged with a row that lacks the dead letter's change.
    """
    shop = Shop(accepts_repairs=True)
    shop.write(change(1, "c", note="old", status="placed"))
    shop.write(change(2, note="bad", status="paid"))
    shop.ask(Verb.DISCARD)
    shop.sink.is_repaired = True
    shop.write(paid(5, status="sent"))
    shop.write(change(4, "r", topic=FILL, note="bad", status="paid"))
    again = list(shop.repairs.keys)
    shop.write(change(6, "r", topic=FILL, note="bad", status="sent"))

    assert ([REQUESTED, REQUESTED], {"note": "bad", "status": "sent"}, 0) == (
        again,
        row_of(shop),
        len(shop.refetches),
    )


def test_a_key_remains_parked_while_its_refetch_is_pending(shop):
    """
    It is parked until the row arrives, even if the row was requested earlier.
    """
    shop.write(paid(2, status="paid"))
    shop.write(change(3, note="bad", status="sent", unchanged=["bio"]))
    shop.sink.is_repaired = True
    answer = shop.ask(Verb.REPLAY).text
    parked = len(shop.parked)
    shop.write(change(4, "r", topic=FILL, note="bad", bio="b", status="sent"))

    assert (AWAITS_REFETCH, [REQUESTED], 1, 0, 0) == (
        *(answer, shop.repairs.keys, parked),
        *(len(shop.parked), len(shop.refetches)),
    )


def test_a_deleted_row_needs_no_refetch(shop):
    """
    A delete, or a truncate above it, settles the refetch.
    """
    shop.write(paid(5), change(2, "c", order=8, note="a"))
    shop.write(paid(6, order=8))
    seen = [len(shop.refetches)]
    for record in (change(7, "d"), change(8, "t")):
        shop.write(record)
        seen.append(len(shop.refetches))

    assert [2, 1, 0] == seen


def test_a_row_that_cannot_be_requested_has_no_pending_refetch():
    """
    The answer would never arrive.
    """
    shop = Shop()
    shop.write(change(1, "c", note="a"))
    shop.write(paid(2, status="paid"), paid(3, order=8))

    assert (0, 1) == (len(shop.refetches), len(shop.letters.reasons()))


def test_a_pending_refetch_ends_with_an_operators_fill():
    """
    Until the fill ends, it may still deliver the rows; the rest cannot be requested.
    """
    shop = Shop()
    shop.write(change(1, "c", note="a"))
    shop.refetches.routes.add("orders")
    shop.write(paid(2, status="paid"), paid(3, order=8))
    meanwhile = len(shop.refetches)
    shop.writer.request_overdue()
    kept = len(shop.refetches)
    shop.refetches.routes.clear()
    shop.writer.request_overdue()

    assert (2, 2, 0) == (meanwhile, kept, len(shop.refetches))


def test_too_many_pending_refetches_become_one_of_the_whole_route(shop, monkeypatch):
    """
    A snapshot of the route contains all of these rows.
    """
    monkeypatch.setattr(refetch, "MAX_PENDING", 2)
    shop.refetches.routes.clear()
    shop.write(*(paid(3, order=order) for order in range(11, 13)))
    kept = len(shop.refetches)
    shop.write(*(paid(4, order=order) for order in range(11, 13)))
    shop.write(*(paid(5, order=order) for order in range(11, 15)))

    assert (2, 0, 1) == (kept, len(shop.refetches), len(shop.repairs.routes))


def test_a_whole_route_has_one_refetch_at_a_time(shop, monkeypatch):
    """
    The next request waits while the route has missing rows, even after a crash.
    """
    monkeypatch.setattr(refetch, "MAX_PENDING", 2)
    for number in range(3, 6):
        shop.write(*(paid(number, order=order) for order in range(11, 15)))
    again = shop.refetches.again()
    meanwhile = len(shop.repairs.routes), again.overdue_routes()
    again.routes.clear()
    request_overdue(again, shop.repairs)
    request_overdue(again.again(), shop.repairs)

    assert ((0, frozenset()), ["orders"]) == (
        meanwhile,
        [route for route, _ in shop.repairs.routes],
    )


def test_a_batch_counts_pending_refetches(shop):
    """
    The count covers all requested rows that have not arrived.
    """
    counts = [
        shop.write(*records).pending_refetches
        for records in (
            [paid(5), paid(5, order=8)],
            [change(6, "r", topic=FILL, note="new")],
            [change(7, "d", order=8)],
        )
    ]

    assert [2, 1, 0] == counts


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the time."""
        return self.now_s


def test_an_unanswered_refetch_is_requested_again_after_a_while():
    """
    The next partial change after that time requests it.
    """
    clock = Clock()
    shop = Shop(accepts_repairs=True, refetches=MemoryRefetches(clock=clock))
    requested = []
    for number, now_s in enumerate((0, 59, 61, 62), start=1):
        clock.now_s = now_s
        shop.write(paid(number))
        requested.append(len(shop.repairs.keys))

    assert [1, 1, 2, 2] == requested


def test_pending_refetches_survive_a_restart(tmp_path, shop):
    """
    They are stored in the sink's folder, beside the incomplete routes.

    A removed route has none.
    """
    found = PendingRefetches(tmp_path, "cache", ["orders"], SystemClock())
    shop = Shop(accepts_repairs=True, refetches=found)
    shop.write(change(1, "c", note="a"))
    incomplete.begin(tmp_path, "cache", "orders", "repair-1")
    shop.write(paid(2))
    again = PendingRefetches(tmp_path, "cache", ["orders"], SystemClock())
    other = PendingRefetches(tmp_path, "cache", ["lines"], SystemClock())

    assert (1, found.record_keys(), {"orders"}, 0) == (
        *(len(again), again.record_keys(), again.incomplete_routes()),
        len(other),
    )


WHOLE = [("orders", NOT_BY_KEY)]


class UnlistedShop(Shop):
    """
    A shop of orders whose keys no signal can list: only a whole route can be requested.
    """

    def __init__(self, clock=None):
        super().__init__(refetches=MemoryRefetches(clock=clock))
        self.repairs = RecordedRepairs(by_key=False, reading=self.refetches.reading)
        self.begin()

    def answer(self, number, *rows):
        """Deliver READ rows and the sweep: the route has been read."""
        self.write(*rows, sweep(number))
        self.refetches.reading.clear()
        self.refetches.routes.clear()
        self.writer.request_overdue()


def read(number, order=7, **row):
    """Make a READ row."""
    return change(number, "r", order=order, topic=FILL, **row)


def sweep(number):
    """Make the sweep of a snapshot that began at the given number."""
    record = change(number, "t", topic=FILL)
    return replace(record, headers={headers.SWEEP: f"{number * 8:016x}.-".encode()})


def test_a_row_whose_key_cannot_be_listed_is_refetched_with_its_route():
    """
    The answer settles the refetch: no row is requested twice.
    """
    shop = UnlistedShop()
    shop.write(paid(2, status="paid"), paid(2, order=8))
    pending_at_first = len(shop.refetches)
    shop.write(paid(3, status="sent"))
    shop.answer(4, read(4, note="a", status="sent"))

    assert (2, WHOLE, [], 0, []) == (
        *(pending_at_first, shop.repairs.routes, shop.repairs.keys),
        *(len(shop.refetches), shop.letters.reasons()),
    )
    assert {"note": "a", "status": "sent"} == row_of(shop)


@pytest.mark.parametrize("key", [[7, 8], {"no": 7}])
def test_a_key_of_arrays_or_composites_is_not_listed(key):
    """
    A signal can list only strings, numbers and booleans.
    """
    shop = Shop(accepts_repairs=True)
    shop.write(paid(2, order=key), paid(2, order=[9]))
    first = list(shop.repairs.routes)
    shop.write(read(3, key, note="a"))

    assert (WHOLE, [], 1) == (first, shop.repairs.keys, len(shop.refetches))


def test_a_refetch_of_some_rows_does_not_make_others_stale():
    """
    Otherwise a table that changes constantly would be read forever.
    """
    shop = UnlistedShop()
    shop.write(*(change(1, "c", order=order, note="a") for order in (8, 9)))
    shop.write(paid(2))
    seen = []
    for number in range(3, 9):
        shop.write(paid(number, order=8, status=f"{number}"), paid(number, order=9))
        seen.append(len(shop.refetches))
        shop.answer(number, read(number, note="a"))

    assert ([1, 0, 0, 0, 0, 0], WHOLE) == (seen, shop.repairs.routes)


def test_a_route_refetch_with_all_pending_rows_makes_none_stale():
    """
    The route is not requested again after its snapshot, however late that ends.
    """
    clock = Clock()
    shop = UnlistedShop(clock)
    shop.write(paid(2), change(2, "c", order=8, note="a"))
    shop.write(read(3, note="a"))
    shop.write(paid(4, order=8))
    shop.refetches.reading.clear()
    clock.now_s = 10_000
    shop.writer.request_overdue()

    assert (0, WHOLE) == (len(shop.refetches), shop.repairs.routes)


def test_a_row_that_changes_after_its_answer_is_refetched_after_a_while():
    """
    It is not requested immediately, because each request reads the whole table.
    """
    clock = Clock()
    shop = UnlistedShop(clock)
    shop.write(paid(2))
    requested = []
    for number, now_s in ((3, 1), (5, 599), (7, 600), (9, 601)):
        clock.now_s = now_s
        shop.write(paid(number + 1, status=f"{number}"))
        shop.answer(number, read(number, note="a"))
        requested.append(len(shop.repairs.routes))
    shop.answer(99, read(99, note="a"))

    assert ([1, 1, 2, 2], 0) == (requested, len(shop.refetches))


def test_a_route_that_is_being_read_is_refetched_afterwards():
    """
    One later request covers all rows that are still pending, even after a crash.
    """
    shop = UnlistedShop()
    shop.write(*(change(1, "c", order=order, note="a") for order in (7, 8)))
    shop.refetches.routes.add("orders")
    shop.write(paid(3), paid(3, order=8))
    shop.begin()
    meanwhile = list(shop.repairs.routes)
    shop.answer(2, read(2, note="b"), read(4, 8, note="b"))
    then = (
        list(shop.repairs.routes),
        len(shop.refetches),
        shop.refetches.incomplete_routes(),
    )
    shop.answer(5, read(5, note="b"))
    shop.writer.request_overdue()

    assert ([], (WHOLE, 1, frozenset()), 0, WHOLE) == (
        *(meanwhile, then),
        *(len(shop.refetches), shop.repairs.routes),
    )


def test_a_loss_while_a_route_is_read_makes_it_incomplete():
    """
    From then on, any row of the target may be stale.
    """
    shop = UnlistedShop()
    shop.write(paid(2), change(2, "c", order=8, note="a"))
    before = shop.refetches.incomplete_routes()
    shop.refetches.routes.add("orders")
    shop.write(paid(3, order=8))

    assert (frozenset(), {"orders"}, 2) == (
        *(before, shop.refetches.incomplete_routes()),
        len(shop.refetches),
    )


def test_a_refetch_request_that_failed_is_repeated():
    """
    A request is stored before it is sent, so a stored one may not have been sent.
    """
    shop = UnlistedShop()
    request_all = shop.repairs.request_all

    def fail(route, why):
        request_all(route, why)
        message = "no answer in time"
        raise BrokerUnavailableError(message)

    shop.repairs.request_all = fail
    with pytest.raises(BrokerUnavailableError):
        shop.write(paid(2))
    shop.repairs.request_all = request_all
    shop.begin()
    shop.write(paid(2))
    shop.write(paid(3))

    assert (WHOLE * 2, 1) == (shop.repairs.routes, len(shop.refetches))


def test_too_many_unlistable_rows_make_the_route_incomplete(monkeypatch):
    """
    Individual rows are no longer counted, so the whole route is incomplete.
    """
    monkeypatch.setattr(refetch, "MAX_PENDING", 2)
    shop = UnlistedShop()
    shop.write(*(paid(2, order=order) for order in range(11, 14)))

    assert ([("orders", TOO_MANY)], 0, {"orders"}) == (
        shop.repairs.routes,
        len(shop.refetches),
        shop.refetches.incomplete_routes(),
    )


def test_the_kind_of_a_refetch_survives_a_restart(tmp_path):
    """
    Once the route has no pending rows, rows are requested by key again if possible.
    """
    shop = Shop(
        refetches=PendingRefetches(tmp_path, "cache", ["orders"], StoppedClock())
    )
    shop.repairs = RecordedRepairs(by_key=False)
    shop.begin()
    shop.repairs.request_all = lambda route, _why: (
        incomplete.begin(tmp_path, "cache", route, "repair-2") is None
    )
    shop.write(paid(2))
    again = PendingRefetches(tmp_path, "cache", ["orders"], StoppedClock())
    found = len(again), again.is_requested_whole("orders"), again.incomplete_routes()
    incomplete.end(tmp_path, "cache", "orders", "repair-2")
    shop.write(change(3, note="a"))
    last = PendingRefetches(tmp_path, "cache", ["orders"], StoppedClock())

    assert (1, True, frozenset()) == found
    assert (0, False) == (len(last), last.is_requested_whole("orders"))
