"""The storefront's rules without I/O: timelines, baskets, newest copies, options."""

import re
import uuid
from types import SimpleNamespace

import httpx2
import pytest
from structlog.testing import capture_logs

from support.api_conformance import document_errors
from towpath.schemas.failure import BusyError, UnavailableError, UsageError
from towpath.services.orders.domain import OrderStatus, Step
from towpath.services.plumbing.http import (
    FieldError,
    InvalidInputError,
    MalformedError,
    NotFoundError,
)
from towpath.services.storefront import __main__ as storefront
from towpath.services.storefront import saga
from towpath.services.storefront.__main__ import create_app, declare
from towpath.services.storefront.pages import basket_text, parse_basket
from towpath.services.storefront.read_side import (
    MAX_WORDS,
    Copy,
    OrderCache,
    ReadSide,
    SearchIndex,
    newest,
)
from towpath.services.storefront.saga import elapsed_text, timeline_of
from towpath.services.storefront.shop import ServiceUnreachableError, Shop
from towpath.services.storefront.waits import SinkWaits, malformed_lsn
from towpath.sinks.errors import UnknownSinkError
from towpath.sinks.wait import UnknownLsnError

START = "2026-11-27T03:00:00.000000Z"


def order(status, *steps, method="card", is_settled=False, second=9):
    """Make an order whose steps are one second apart."""
    return {
        "status": status,
        "placed_at": START,
        "updated_at": START.replace("00.000000", f"{second:02}.000000"),
        "payment_method": method,
        "reason": None,
        "saga": {
            "is_settled": is_settled,
            "steps": [
                {
                    "step": step,
                    "at": START.replace("00.000000", f"{number:02}.500000"),
                    "detail": None,
                }
                for number, step in enumerate(steps)
            ],
        },
    }


def test_every_status_and_every_step_has_a_text():
    """
    The timeline has a text for every status and every step of the orders service.
    """
    assert {*OrderStatus} == {*saga.STATUSES}
    assert {*Step} == {*saga.STEPS}


def test_a_timeline_has_all_steps_in_chronological_order():
    """
    The last change of the order is placed among the steps, each in its service's lane.
    """
    steps = ("stock_reserved", "payment_authorized", "shipment_dispatched")
    drawn = timeline_of(order("completed", *steps, second=2))

    assert [
        ("orders", "Order placed", "+0.00 s", False),
        ("inventory", "Stock reserved", "+0.50 s", False),
        ("payments", "Payment authorized", "+1.50 s", False),
        ("orders", "Order completed", "+2.00 s", False),
        ("shipping", "Parcel dispatched", "+2.50 s", False),
        ("inventory", "Booking the sale", "", True),
    ] == [(m.service, m.text, m.elapsed, m.is_awaited) for m in drawn.moments]
    assert [False] * 4 + [True] == [is_awaited for _, is_awaited in drawn.hops]
    assert 6 * saga.ROW_HEIGHT == drawn.height
    assert [14, 42, 70, 14, 98, 42] == [moment.x for moment in drawn.moments]


@pytest.mark.parametrize(
    ("status", "steps", "awaited"),
    [
        ("placed", (), ["inventory"]),
        ("placed", ("stock_reserved",), []),
        ("paying", (), ["inventory", "payments"]),
        ("paying", ("payment_authorized",), ["inventory"]),
        ("confirmed", ("stock_reserved", "payment_authorized"), ["payments"]),
        ("paid", ("payment_captured",), ["shipping"]),
        ("cancelling", (), ["shipping"]),
        ("cancelled", ("payment_declined",), ["inventory"]),
        ("cancelled", ("stock_rejected",), ["payments"]),
        ("returned", ("payment_refunded",), ["inventory"]),
    ],
)
def test_the_steps_that_an_order_waits_for_are_at_the_end(status, steps, awaited):
    """
    The awaited steps follow from the status; steps that have been taken are left out.
    """
    moments = timeline_of(order(status, *steps)).moments

    assert awaited == [m.service for m in moments if m.is_awaited]


def test_a_settled_order_awaits_nothing():
    """An unpaid order does not wait for money, either."""
    settled = timeline_of(order("cancelled", is_settled=True)).moments
    unpaid = timeline_of(order("cancelled", method=None)).moments

    assert [False, False] == [moment.is_awaited for moment in settled]
    assert ["Releasing the stock"] == [m.text for m in unpaid if m.is_awaited]


def test_a_step_dated_before_the_order_is_shown_after_it():
    """
    A service's clock may be slow, but the order is always placed first.
    """
    early = order("placed", "stock_reserved")
    early["saga"]["steps"][0]["at"] = "2026-11-27T02:59:59Z"
    drawn = timeline_of(early)

    assert [("Order placed", "+0.00 s"), ("Stock reserved", "+0.00 s")] == [
        (moment.text, moment.elapsed) for moment in drawn.moments
    ]


@pytest.mark.parametrize(
    ("elapsed_s", "text"),
    [
        (0.004, "+0.00 s"),
        (59.99, "+59.99 s"),
        (59.996, "+1 min 0 s"),
        (61.2, "+1 min 1 s"),
        (600, "+10 min 0 s"),
    ],
)
def test_an_elapsed_time_is_short(elapsed_s, text):
    """Up to a minute, it has seconds with two decimals, then minutes and seconds."""
    assert text == elapsed_text(elapsed_s)


def test_a_basket_can_be_read_back():
    """Order and quantities are kept."""
    basket = {uuid.UUID(int=2): 3, uuid.UUID(int=1): 99}

    assert list(basket.items()) == list(parse_basket(basket_text(basket)).items())


@pytest.mark.parametrize(
    ("cookie", "quantities"),
    [
        (None, []),
        ("", []),
        ("~*~x*1", []),
        (f"{uuid.UUID(int=1)}*0", []),
        (f"{uuid.UUID(int=1)}*-1", []),
        (f"{uuid.UUID(int=1)}*1000", [99]),
        (f"{uuid.UUID(int=1)}*{'9' * 5000}", []),
        (f"{uuid.UUID(int=1)}*²", []),
        ("~".join(f"{uuid.UUID(int=n)}*1" for n in range(50)), [1] * 20),
    ],
)
def test_a_forged_basket_is_reduced(cookie, quantities):
    """
    Only lines with a product and a quantity remain, and both are limited.
    """
    assert quantities == list(parse_basket(cookie).values())


@pytest.mark.parametrize(
    ("document", "row", "served_from"),
    [(16, 16, "cache"), (16, 8, "search"), (16, 24, "cache"), (16, None, "search")],
)
def test_the_newest_copy_is_served(document, row, served_from):
    """
    Positions are compared by LSN, because ordinals of one commit may differ.
    """
    found = newest(
        Copy({"status": "old"}, f"{document:016x}.0000000009"),
        None if row is None else Copy({"status": "new"}, f"{row:016x}.0000000000"),
    )

    assert served_from == found.served_from
    assert {"cache": "new", "search": "old"}[served_from] == found.document["status"]


def test_the_document_describes_the_reads_and_not_the_pages():
    """
    The document conforms to OpenAPI; reads that wait declare the header.
    """
    nowhere = "http://127.0.0.1:1"
    cache = OrderCache("redis://127.0.0.1:1", "towpath")
    reads = ReadSide(SearchIndex(nowhere), cache, None)
    client = create_app(Shop(nowhere, nowhere), reads).test_client()
    document = client.get("/openapi.json").json
    errors = document_errors(document)
    waiting = {
        path
        for path, operations in document["paths"].items()
        if "Towpath-Lsn" in [each["name"] for each in operations["get"]["parameters"]]
    }
    linked = {
        path
        for path, operations in document["paths"].items()
        if "Link" in operations["get"]["responses"]["200"]["headers"]
    }

    summary = document["paths"]["/search"]["get"]["summary"]

    assert "Search orders and products; each of the first 8 words must match" == (
        summary.removesuffix(".")
    )
    assert 8 == MAX_WORDS
    assert [] == errors
    assert {"/search", "/customers/{customer_id}/orders"} == waiting
    assert {"/customers/{customer_id}/orders"} == linked
    assert waiting | {"/health/live", "/health/ready", "/openapi.json"} == {
        *document["paths"]
    }


class Clock:
    """A clock that advances only in a wait."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic_s(self):
        """Return the time."""
        return self.now_s


class Sinks:
    """Sinks that each need a given time to apply any LSN, and their waiter."""

    def __init__(self, clock, **needed_s):
        self.clock = clock
        self.needed_s = needed_s
        self.made = 0

    def make(self):
        """Count the waiters."""
        self.made += 1
        return self

    def wait_for(self, _lsn, sink, timeout_s):
        """Let the time that the sink needs pass, but no more than the timeout."""
        self.clock.now_s += min(self.needed_s[sink], timeout_s)
        if self.needed_s[sink] > timeout_s:
            raise UnavailableError(sink)
        if not self.needed_s[sink]:
            raise malformed_lsn(sink)

    def close(self):
        """Close nothing."""


def make_waits(**needed_s):
    """Make waits of at most three seconds."""
    sinks = Sinks(Clock(), **needed_s)
    names = {"search": "s", "cache": "c"}
    return SinkWaits(sinks.make, names, sinks.clock, 3.0), sinks


def test_one_deadline_applies_to_all_sinks_of_a_read():
    """
    Each sink may use the time that the previous sinks have left over.
    """
    enough, _ = make_waits(s=1.0, c=1.5)
    too_long, sinks = make_waits(s=2.0, c=2.0)
    waited = enough.until_applied("0/1", ["search", "cache"])
    with pytest.raises(UnavailableError):
        too_long.until_applied("0/1", ["search", "cache"])

    assert ({"search": 1000, "cache": 2500}, 3.0) == (waited, sinks.clock.now_s)


def test_a_waiter_is_kept_for_the_next_read():
    """Its connections outlive a wait, however it ends; an unknown LSN is rejected."""
    made, sinks = make_waits(s=1.0, c=0.0)
    made.until_applied("0/1", ["search"])
    with pytest.raises(MalformedError):
        made.until_applied("0/1", ["cache"])
    made.until_applied("0/1", ["search"])

    assert 1 == sinks.made


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(UnknownLsnError, MalformedError), (UnknownSinkError, UnknownSinkError)],
)
def test_only_an_lsn_outside_the_history_is_an_invalid_header(
    failure, raised, monkeypatch
):
    """
    A mistake in the configuration is not the client's fault.
    """

    def wait_for(*_given):
        message = "no"
        raise failure(message)

    made = SimpleNamespace(wait_for=wait_for)
    monkeypatch.setattr(storefront, "Waiter", lambda _settings: made)
    settings = SimpleNamespace(
        sink=[
            SimpleNamespace(
                kind=kind, name=kind, route=[SimpleNamespace(name="orders")]
            )
            for kind in ("search", "cache")
        ]
    )
    waits = storefront.make_waits(settings, Clock())

    with pytest.raises(raised):
        waits.until_applied("0/1", ["cache"])


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "601"])
def test_a_wait_out_of_its_range_is_refused(wait, capsys):
    """
    Otherwise a read could wait forever, or never.
    """
    addresses = ("--orders", "o", "--inventory", "i", "--search", "s", "--cache", "c")
    with pytest.raises(SystemExit):
        declare({}).options([*addresses, f"--wait-seconds={wait}"], {})

    expected = "argument --wait-seconds: must be from 0 to 600 seconds"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "address"),
    [
        ("orders", "orders:8080"),
        ("inventory", "http://inventory:port"),
        ("orders", "http://orders..local"),
        ("inventory", f"http://{'i' * 64}"),
        ("search", "http://search..local"),
        ("search", "http://search:port"),
        ("search", ""),
        ("cache", "cache:6379"),
        ("cache", "redis://:secret/word@cache:6379"),
        ("cache", "redis://:secret@cache..local:6379"),
    ],
)
def test_an_invalid_url_gives_one_error(option, address):
    """
    It is refused before the storefront listens, and no password is quoted.
    """
    given = {
        "orders": "http://o",
        "inventory": "http://i",
        "search": "http://s",
        "cache": "redis://c",
    }
    storefront = declare({})
    valid, invalid = (
        storefront.options([f"--{name}={url}" for name, url in urls.items()], {})
        for urls in (given, given | {option: address})
    )
    storefront.check(valid)
    with pytest.raises(UsageError) as refused:
        storefront.check(invalid)

    assert f"--{option} is not a URL such as" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_products_are_also_visible_after_a_wait(monkeypatch):
    """
    A search shows both kinds; an index of products may not exist yet.
    """
    requested = []
    indices = SimpleNamespace(refresh=lambda **given: requested.append(given))
    index = SearchIndex("http://s")
    monkeypatch.setattr(index, "_client", SimpleNamespace(indices=indices))
    index.refresh()

    assert [
        {"index": "orders,products", "params": {"ignore_unavailable": "true"}}
    ] == requested


class ShopWithOutage:
    """A shop with an order of four products, whose inventory fails at the third."""

    def __init__(self):
        self.requested = []

    def order(self, order_id):
        """Return the order."""
        lines = [
            {"product_id": f"product-{n}", "quantity": 1, "unit_price": "1.00"}
            for n in range(4)
        ]
        content = {"order_id": order_id, "lines": lines, "note": None, "version": 1}
        return order("placed") | content | {"currency": "EUR", "total": "4.00"}

    def product(self, product_id):
        """Return a product; the first one is no longer known."""
        self.requested.append(product_id)
        if product_id == "product-0":
            raise NotFoundError(product_id)
        if product_id == "product-2":
            raise UnavailableError(product_id)
        return {"name": f"Name of {product_id}"}


def test_an_order_is_shown_without_querying_a_failed_inventory_for_each_line():
    """
    Otherwise a page would wait for each of up to a hundred lines.
    """
    cache = OrderCache("redis://127.0.0.1:1", "towpath")
    shop = ShopWithOutage()
    reads = ReadSide(SearchIndex("http://127.0.0.1:1"), cache, None)
    page = create_app(shop, reads).test_client().get("/orders/7")
    names = ["product-0", "Name of product-1", "product-2", "product-3"]

    assert 200 == page.status_code
    assert names == re.findall("<tr><td>([^<]+)</td>", page.text)
    assert ["product-0", "product-1", "product-2"] == shop.requested


def shop_with_response(response, monkeypatch):
    """Make a shop whose orders service gives one response."""
    client = httpx2.Client(
        base_url="http://orders", transport=httpx2.MockTransport(lambda _: response)
    )
    shop = Shop("http://orders", "http://inventory")
    monkeypatch.setattr(shop, "_orders", client)
    return shop


@pytest.mark.parametrize("body", ["[]", '{"message": "no Route matched"}', "null"])
def test_a_refusal_from_a_gateway_counts_as_unreachable(body, monkeypatch):
    """
    A gateway in front of a service may refuse a request with a document of its own.
    """
    shop = shop_with_response(httpx2.Response(404, text=body), monkeypatch)
    with pytest.raises(ServiceUnreachableError, match="http://orders"):
        shop.order(7)


def test_the_media_type_of_a_refusal_may_have_parameters(monkeypatch):
    """
    A gateway may add the character set to a service's response.
    """
    response = httpx2.Response(
        404,
        text='{"detail": "there is no order 7"}',
        headers={"Content-Type": "application/problem+json; charset=utf-8"},
    )
    shop = shop_with_response(response, monkeypatch)
    with pytest.raises(NotFoundError, match="there is no order 7"):
        shop.order(7)


class ShopWithoutCustomers:
    """A shop whose database was recreated, so that it knows no customer."""

    def product(self, product_id):
        """Return a product."""
        return {"product_id": str(product_id), "unit_price": "1.00"}

    def place(self, _order, _key):
        """Refuse the order."""
        reason = "There is no such customer."
        raise InvalidInputError(reason, [FieldError("customer_id", reason)])


def test_a_customer_who_is_no_longer_known_can_register_again():
    """
    The browser's cookie outlives the shop's data, so every checkout would be refused.
    """
    cache = OrderCache("redis://127.0.0.1:1", "towpath")
    reads = ReadSide(SearchIndex("http://127.0.0.1:1"), cache, None)
    client = create_app(ShopWithoutCustomers(), reads).test_client()
    client.set_cookie("customer", str(uuid.UUID(int=7)))
    client.set_cookie("basket", f"{uuid.UUID(int=1)}*2")
    refused = client.post("/checkout", data={})
    basket = client.get_cookie("basket")

    assert (422, None) == (refused.status_code, client.get_cookie("customer"))
    assert "There is no such customer." in refused.text
    assert f"{uuid.UUID(int=1)}*2" == basket.value


def test_a_copy_that_cannot_be_read_in_time_is_a_problem_document():
    """
    The script of an order's page reads the response as JSON, and shows its detail.
    """
    waits, _ = make_waits(s=9.0, c=0.0)
    cache = OrderCache("redis://127.0.0.1:1", "towpath")
    reads = ReadSide(SearchIndex("http://127.0.0.1:1"), cache, waits)
    client = create_app(ShopWithoutCustomers(), reads).test_client()
    late, wrong, unknown = (
        client.get("/orders/7/read", query_string={"from": kind, "lsn": "0/1"})
        for kind in ("search", "cache", "warehouse")
    )

    assert [503, 400, 422] == [each.status_code for each in (late, wrong, unknown)]
    assert "1" == late.headers["Retry-After"]
    assert "application/problem+json" == late.mimetype == wrong.mimetype
    assert "The header Towpath-Lsn cannot be used: c." == wrong.json["detail"]
    assert "cache or search" in unknown.json["detail"]


class BusyShop:
    """A shop whose orders service is busy."""

    def order(self, order_id):
        """Refuse to return an order for now."""
        message = f"Order {order_id} is locked."
        raise BusyError(message, retry_after_s=7.0)


def test_a_page_that_a_service_refuses_is_logged():
    """
    The log has the reason, as for any other refused request.
    """
    cache = OrderCache("redis://127.0.0.1:1", "towpath")
    reads = ReadSide(SearchIndex("http://127.0.0.1:1"), cache, None)
    client = create_app(BusyShop(), reads).test_client()
    with capture_logs() as records:
        page = client.get("/orders/7")

    assert (503, "7") == (page.status_code, page.headers["Retry-After"])
    assert "<li>" in page.text
    assert [("request refused: unavailable", "Order 7 is locked.")] == [
        (record["event"], record["reason"]) for record in records
    ]
