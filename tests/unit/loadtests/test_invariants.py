"""The invariants of the shop: each is broken by a change that affects it alone."""

import copy
import io
import json
from collections import Counter
from decimal import Decimal
from types import SimpleNamespace

import pytest
import redis

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.check import check_stores, main, readers
from towpath.loadtests.load.invariants import (
    OrderRow,
    PaymentRow,
    StoreContents,
    Units,
    findings,
    read_cache,
    read_warehouse,
)
from towpath.schemas.clock import SystemClock

PRICE = Decimal("12.50")
# Order 1 is older than the services; each other order has a different outcome.
FIRST = 2
GOOD = StoreContents(
    orders={
        1: OrderRow("placed", PRICE),
        2: OrderRow("completed", PRICE),
        3: OrderRow("cancelled", PRICE),
        4: OrderRow("returned", PRICE),
    },
    sold=Counter({"a": 3}),
    held=Counter({"b": 1}),
    products={"a": Units(10, 7, 0, 3), "b": Units(5, 4, 1, 0)},
    payments={
        2: PaymentRow("captured", PRICE),
        3: PaymentRow("declined", PRICE),
        4: PaymentRow("refunded", PRICE),
    },
    shipments={2: "dispatched", 3: "cancelled", 4: "dispatched"},
    placements=Counter({2: 1, 3: 1, 4: 1}),
)


def broken(change):
    """Return the findings after a change to the good contents."""
    contents = copy.deepcopy(GOOD)
    change(contents)
    return findings(contents, FIRST)


def test_a_consistent_shop_has_no_findings():
    """An order from before the services may wait, and has no event."""
    assert [] == findings(GOOD, FIRST)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda b: b.orders.update({3: OrderRow("paying", PRICE)}),
            "1 orders are not final: order 3 is paying",
        ),
        (
            lambda b: b.payments.update({3: PaymentRow("captured", PRICE)}),
            "1 payments differ from completed orders: order 3 costs 0, captured 12.50",
        ),
        (
            lambda b: b.payments.update({2: PaymentRow("captured", Decimal("12.49"))}),
            (
                "1 payments differ from completed orders:"
                " order 2 costs 12.50, captured 12.49"
            ),
        ),
        (
            lambda b: b.payments.pop(2),
            "1 payments differ from completed orders: order 2 costs 12.50, captured 0",
        ),
        (
            lambda b: b.products.update({"b": Units(5, 3, 1, 0)}),
            (
                "1 products have units that do not add up: product b:"
                " Units(received=5, on_hand=3, reserved=1, sold=0)"
            ),
        ),
        (
            lambda b: b.products.update({"b": Units(5, 6, -1, 0)}),
            (
                "1 products have units that do not add up: product b:"
                " Units(received=5, on_hand=6, reserved=-1, sold=0)"
            ),
        ),
        (
            lambda b: b.products.update({"b": Units(5, 3, 2, 0)}),
            (
                "1 products differ in reserved and placed units:"
                " product b: 2 reserved, 1 placed"
            ),
        ),
        (
            lambda b: b.held.update({"c": 1}),
            (
                "1 products differ in reserved and placed units:"
                " product c: 0 reserved, 1 placed"
            ),
        ),
        (
            lambda b: b.sold.update({"b": 1}),
            (
                "1 products differ in sold and ordered units:"
                " product b: 0 sold, 1 ordered"
            ),
        ),
        (
            lambda b: b.sold.update({"c": 1}),
            (
                "1 products differ in sold and ordered units:"
                " product c: 0 sold, 1 ordered"
            ),
        ),
        (
            lambda b: b.shipments.update({3: "dispatched"}),
            "1 parcels differ from orders: order 3",
        ),
        (lambda b: b.shipments.pop(4), "1 parcels differ from orders: order 4"),
        (
            lambda b: b.placements.update({2: 1}),
            "1 orders differ from their OrderPlaced events: order 2: 2 events",
        ),
        (
            lambda b: b.placements.update({7: 1}),
            "1 orders differ from their OrderPlaced events: order 7: 1 events",
        ),
        (
            lambda b: b.placements.pop(3),
            "1 orders differ from their OrderPlaced events: order 3: 0 events",
        ),
    ],
)
def test_each_contradiction_is_found_and_named(change, sentence):
    """One change gives one finding, except that a changed status gives several."""
    assert sentence in broken(change)


def test_an_order_of_an_earlier_load_has_its_event():
    """An older order may have one event, but not two."""
    contents = copy.deepcopy(GOOD)
    later = max(contents.orders) + 1
    earlier = findings(contents, later)
    contents.placements[2] += 1

    assert [] == earlier
    assert "order 2: 2 events" in findings(contents, later)[0]


def test_a_store_without_events_is_not_checked_for_them():
    """Only the warehouse keeps the event log."""
    contents = copy.deepcopy(GOOD)
    contents.placements = None

    assert [] == findings(contents, FIRST)


def test_a_sink_is_not_compared_with_an_unreadable_database():
    """
    The reason is a finding of the database alone.
    """

    def fail():
        message = "no response"
        raise OSError(message)

    stores = {"database": fail, "cache": lambda: GOOD}
    found = dict(check_stores(stores, FIRST, SystemClock(), 0.0))

    assert ["could not be read: no response"] == found["database"]
    assert [] == found["cache"]


@pytest.mark.parametrize(
    ("target", "facts", "option"),
    [
        ("cache", {"url": "redis://x", "key": "orders/{}"}, "--load-cache-key"),
        ("warehouse", {"catalog": {}, "table": "a.b"}, "--load-warehouse-table"),
    ],
)
def test_a_target_whose_tables_cannot_be_derived_is_refused(
    target, facts, option, monkeypatch, capsys
):
    """
    The check derives the names of the other tables from that of the orders.

    The option is refused before the run, not after it.
    """
    targets = {target: facts}
    config = {"dsn": "postgresql://x/y", "within_s": 0, "targets": targets}
    with pytest.raises(LoadOptionError, match=option):
        readers("postgresql://x/y", targets)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(config) + "\n"))
    main()

    response = json.loads(capsys.readouterr().out)
    assert (True, True) == (option in response["error"], response["is_option"])


class Warehouse:
    """A catalog with the given tables as lists of rows; all others are empty."""

    def __init__(self, **tables):
        self.tables = tables

    def load_table(self, name):
        """Return a table that scans and converts to itself."""
        rows = self.tables.get(name.partition(".")[2], [])
        table = SimpleNamespace(to_pylist=lambda: rows)
        table.scan = lambda **_: table
        table.to_arrow = lambda: table
        table.column = lambda _: table
        return table


def test_a_line_without_its_order_does_not_fail_the_read():
    """
    A lost order leaves its lines behind; the sold units then differ.
    """
    units = {"received": 5, "on_hand": 3, "reserved": 0, "sold": 2}
    contents = read_warehouse(
        Warehouse(
            products=[{"id": "a", **units}],
            order_lines=[{"order_id": 7, "product_id": "a", "quantity": 2}],
        )
    )

    assert [
        "1 products differ in sold and ordered units: product a: 2 sold, 0 ordered"
    ] == findings(contents, FIRST)


class Cache:
    """A server that stores hashes, and whose scans return each key twice."""

    def __init__(self, hashes):
        self.hashes = hashes
        self.replies = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def scan_iter(self, pattern, count):
        """Yield the keys that match the pattern."""
        del count
        found = [key for key in self.hashes if key.startswith(pattern[:-1])]
        yield from (*found, *found)

    def pipeline(self, **_):
        """Return a pipeline, which is the server itself."""
        self.replies = []
        return self

    def hmget(self, key, names):
        """Add the fields of a hash to the replies."""
        self.replies.append([self.hashes[key].get(name) for name in names])

    def execute(self):
        """Return the replies."""
        return self.replies


def test_a_key_that_a_scan_returns_twice_is_read_once(monkeypatch):
    """
    A server that is rehashing its keys may return some of them twice.
    """
    line = {"order_id": "2", "product_id": "a", "quantity": "3"}
    hashes = {
        "p:orders:2": {"id": "2", "status": "completed", "total": "12.50"},
        "p:order_lines:2:1": line,
    }
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_args, **_more: Cache(hashes))

    assert Counter({"a": 3}) == read_cache("redis://c", "p").sold
