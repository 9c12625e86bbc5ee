"""The read side of the storefront, with targets written by the sinks' own code."""

import json
import uuid
from contextlib import closing

import pytest
import redis
from opensearchpy import OpenSearch

from support.api_conformance import conformance_report
from support.storefront import ProductShape, storefront, without_indexes
from towpath.schemas.clock import SystemClock
from towpath.services.storefront.__main__ import create_app
from towpath.services.storefront.read_side import OrderCache, ReadSide, SearchIndex
from towpath.services.storefront.shop import Shop
from towpath.settings import Route, RouteKind
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.ports import Batch
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.search.sink import SearchSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

NOWHERE = "http://127.0.0.1:1"
ADA, BOB = uuid.UUID(int=0xADA), uuid.UUID(int=0xB0B)
ROPE, LAMP = uuid.UUID(int=0x409E), uuid.UUID(int=0x1A39)
ORDERS = Route(
    topic="outbox.event.order",
    name="orders",
    kind=RouteKind.AGGREGATE,
    state_types=("OrderPlaced", "OrderPaid", "OrderCancelled"),
    fields={
        "customer_id": "uuid",
        "status": "keyword",
        "placed_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
        "lines[].product_id": "uuid",
    },
)
PRODUCTS = Route(topic="towpath.inventory.products", name="products")
AT = "2026-11-27T03:00:00.000000Z"


def position(log_lsn, ordinal=0):
    """Format a position."""
    return f"{log_lsn:016x}.{ordinal:010d}"


def change(route, key, at, row, text=None):
    """Return a change to a row or to a document at a position."""
    origin = Origin(route.topic, 0, 0)
    return Change(
        route.name, (key,), ("id",), at, row, ALL_PRESENT, False, origin, text
    )


class Targets:
    """The targets of both sinks, and the sinks' own writers."""

    def __init__(self, stack, prefix):
        self.cache = CacheSink(stack.redis_url, prefix, 3600)
        routes = (ORDERS, PRODUCTS)
        clock = SystemClock()
        self.search = SearchSink(stack.opensearch_url, routes, ProductShape(), clock)
        self.cache.open()
        self.search.open()

    def close(self):
        """Close the connections."""
        self.cache.close()
        self.search.close()

    def document(self, number, log_lsn, **fields):
        """Write the document of an order."""
        line = {"line_no": 1, "product_id": str(ROPE), "quantity": 2}
        document = {
            "order_id": number,
            "customer_id": str(ADA),
            "status": "placed",
            "total": "25.00",
            "currency": "EUR",
            "lines": [line | {"unit_price": "12.50"}],
            "note": None,
            "attributes": None,
            "placed_at": AT,
            "updated_at": AT,
        } | fields
        text = json.dumps(document).encode()
        one = change(ORDERS, str(number), position(log_lsn, 1), document, text)
        self._apply(self.search, one)

    def row(self, number, log_lsn, **fields):
        """Write the row of an order; delete it if no fields are given."""
        row = {"id": number, "note": None, "updated_at": AT, **fields}
        one = change(ORDERS, number, position(log_lsn), row if fields else None)
        self._apply(self.cache, one)

    def product(self, product_id, name):
        """Write the row of a product."""
        row = {"id": str(product_id), "name": name, "unit_price": "12.50"}
        units = dict.fromkeys(("received", "on_hand", "reserved", "sold"), 7)
        row |= units | {"version": 1, "updated_at": AT}
        one = change(PRODUCTS, str(product_id), position(8), row)
        self._apply(self.search, one)

    def _apply(self, sink, one):
        sink.apply(Batch(0, (one,)))
        assert () == sink.flush().refused


@pytest.fixture
def targets(stack, unique):
    """Provide empty targets."""
    stack.up("redis", "opensearch")
    with without_indexes(stack.opensearch_url):
        targets = Targets(stack, unique)
        yield targets
        targets.close()


def client_of(search_url, cache_url, prefix):
    """Create a client of a storefront without services and without a configuration."""
    reads = ReadSide(SearchIndex(search_url), OrderCache(cache_url, prefix), None)
    return create_app(Shop(NOWHERE, NOWHERE), reads).test_client(), reads


@pytest.fixture
def client(stack, unique, targets):
    """Provide a client of the read side."""
    assert targets
    client, reads = client_of(stack.opensearch_url, stack.redis_url, unique)
    yield client
    reads.close()


@pytest.fixture
def refresh(stack):
    """Provide a function that makes all writes visible to searches."""
    with closing(OpenSearch(stack.opensearch_url)) as search:
        yield lambda: search.indices.refresh(index="orders,products")


@pytest.fixture
def found(client, refresh):
    """Provide a function that returns the numbers of the orders that match a query."""

    def search(text):
        refresh()
        response = client.get("/search", query_string={"q": text})
        assert 200 == response.status_code, response.text
        return [order["order_id"] for order in response.json["orders"]]

    return search


@pytest.fixture
def some_orders(targets):
    """Write three orders."""
    targets.document(7, 8, note="a blue gift for Grandma")
    targets.document(70, 16, status="completed", customer_id=str(BOB))
    lamp = {"line_no": 1, "product_id": str(LAMP), "quantity": 1, "unit_price": "1.00"}
    targets.document(71, 24, status="completed", lines=[lamp], note="blue ribbon")


FOUND = {
    "7": [7],
    "#70": [70],
    "completed": [70, 71],
    "Completed": [70, 71],
    str(BOB): [70],
    str(LAMP).upper(): [71],
    "grand": [7],
    "blue": [7, 71],
    "completed blue": [71],
    "completed blue 7": [],
    "nothing": [],
}
UNFOUND = (
    *("*", "*:*", "(((", '"', "AND OR NOT", "q\\", "status:completed", "[* TO *]"),
    *("\x1c", "9" * 19, "9" * 200, "\x00", "\U0010ffff", "{}", "_id", "/.*/"),
    "~" * 200,
)


@pytest.mark.usefixtures("some_orders")
def test_a_search_finds_orders_by_each_of_their_fields(found):
    """
    The fields are number, status, customer, product and note; every word must match.
    """
    assert FOUND == {text: sorted(found(text)) for text in FOUND}


@pytest.mark.usefixtures("some_orders")
def test_a_search_does_not_interpret_query_syntax(found):
    """
    Operators, patterns and huge numbers are treated as words, which match no order.
    """
    assert set() == {text for text in UNFOUND if found(text)}


def test_a_search_finds_products_once_their_index_exists(client, refresh, targets):
    """
    Without the index, no product is found; later, products are found by name.
    """
    targets.document(7, 8)
    refresh()
    before = client.get("/search", query_string={"q": "rope"}).json["products"]
    targets.product(ROPE, "Mooring rope")
    targets.product(LAMP, "Brass lantern")
    refresh()
    after = client.get("/search", query_string={"q": "Rope moor"}).json["products"]

    assert ([], [(str(ROPE), "Mooring rope", "12.50", 7)]) == (
        before,
        [(p["product_id"], p["name"], p["unit_price"], p["on_hand"]) for p in after],
    )


def test_a_customer_pages_through_orders_newest_first(client, refresh, targets):
    """
    Each page links to the next one; orders of other customers are on no page.
    """
    for number in range(1, 8):
        targets.document(number, 8 * number)
    targets.document(8, 64, customer_id=str(BOB))
    refresh()
    pages, path = [], f"/customers/{ADA}/orders?limit=3"
    while path:
        response = client.get(path)
        pages.append([order["order_id"] for order in response.json["items"]])
        path = response.json["next"]
        assert (path is None) == ("Link" not in response.headers)

    assert [[7, 6, 5], [4, 3, 2], [1]] == pages


def test_the_newest_copy_of_each_order_is_served(client, refresh, targets):
    """
    The cache serves an order if its copy is not older; the index serves all others.
    """
    for number in range(1, 6):
        targets.document(number, 16, status="placed")
    targets.row(1, 16, status="placed", updated_at="same")
    targets.row(2, 24, status="completed", note="new", updated_at="later")
    targets.row(3, 8, status="draft")
    targets.row(4, 24, status="paid")
    targets.row(4, 32)
    refresh()
    items = client.get(f"/customers/{ADA}/orders").json["items"]

    assert [
        (5, "placed", "search", None),
        (4, "placed", "search", None),
        (3, "placed", "search", position(8)),
        (2, "completed", "cache", position(24)),
        (1, "placed", "cache", position(16)),
    ] == [
        (i["order_id"], i["status"], i["served_from"], i["cache_position"])
        for i in items
    ]
    assert ("new", "later") == (items[3]["note"], items[3]["updated_at"])
    assert {position(16, 1)} == {item["search_position"] for item in items}


def test_an_order_that_the_index_lacks_is_not_listed(client, refresh, targets):
    """A customer without orders in the index has an empty page."""
    targets.row(1, 16, status="placed")
    targets.document(2, 8, customer_id=str(BOB))
    refresh()
    page = client.get(f"/customers/{ADA}/orders").json

    assert ([], None, {"lsn": None, "waited_ms": {}}) == (
        *(page["items"], page["next"], page["freshness"]),
    )


GARBAGE = {
    "/search": 422,
    "/search?q=": 422,
    "/search?q=%20%20": 422,
    "/search?q=" + "x" * 201: 422,
    "/search?q=a&q=b": 422,
    "/search?q=a&limit=0": 422,
    "/search?q=a&limit=101": 422,
    "/search?q=a&limit=ten": 422,
    "/search?q=a&more=1": 422,
    f"/customers/{ADA}/orders?cursor=x": 400,
    f"/customers/{ADA}/orders?cursor=Wy0xXQ": 400,
    f"/customers/{ADA}/orders?cursor=WzkyMjMzNzIwMzY4NTQ3NzU4MDhd": 400,
    f"/customers/{ADA}/orders?limit=0": 422,
    "/customers/ada/orders": 404,
}


def test_garbage_is_refused_with_a_problem_document(client):
    """
    Each refusal is a problem document with a reason, and none is a server error.
    """
    responses = {path: client.get(path) for path in GARBAGE}

    assert {path: each.status_code for path, each in responses.items()} == GARBAGE
    assert {each.mimetype for each in responses.values()} == {
        "application/problem+json"
    }
    assert all(each.json["detail"] for each in responses.values())


LSNS = {"0/16B3748": 501, "": 400, "16B3748": 400, "0/G": 400, "0/1 or 1": 400}


@pytest.mark.usefixtures("some_orders")
def test_an_lsn_is_never_ignored(client, refresh):
    """
    A storefront that cannot wait refuses the request instead of serving older copies.
    """
    refresh()
    responses = {
        lsn: client.get("/search?q=7", headers={"Towpath-Lsn": lsn}) for lsn in LSNS
    }

    assert {lsn: each.status_code for lsn, each in responses.items()} == LSNS
    fields = {each.json["errors"][0]["field"] for each in responses.values()}

    assert fields == {"Towpath-Lsn"}


def test_a_target_that_is_down_makes_reads_unavailable(stack, unique, targets):
    """
    The response is 503 with a Retry-After header, and the service is not ready.
    """
    stack.up("redis", "opensearch")
    targets.document(7, 8)
    responses = []
    for search_url, cache_url in (
        (NOWHERE, stack.redis_url),
        (stack.opensearch_url, "redis://127.0.0.1:1"),
    ):
        client, reads = client_of(search_url, cache_url, unique)
        with closing(reads):
            reads.search.refresh() if search_url != NOWHERE else None
            responses += [
                client.get(f"/customers/{ADA}/orders"),
                client.get("/health/ready"),
            ]

    assert [(503, "1")] * 4 == [
        (each.status_code, each.headers["Retry-After"]) for each in responses
    ]


def test_a_service_that_does_not_answer_gives_a_page_with_a_remedy(client):
    """
    The response is 503 with a Retry-After header and a sentence for the visitor.
    """
    responses = [client.get(path) for path in ("/", "/orders/1", "/orders/1/saga")]

    assert [(503, "1", "text/html")] * 3 == [
        (each.status_code, each.headers["Retry-After"], each.mimetype)
        for each in responses
    ]
    assert all("does not answer" in each.text for each in responses)
    assert "nothing is ordered twice" in responses[0].text


@pytest.mark.timeout(300)
def test_every_response_of_the_read_side_matches_the_openapi_document(
    stack, unique, targets, tmp_path
):
    """
    Schemathesis finds no response that violates the document.
    """
    for number in range(1, 40):
        targets.document(number, 8 * number)
        targets.row(number, 8 * number, status="placed")
    options = {
        "--orders": NOWHERE,
        "--inventory": NOWHERE,
        "--search": stack.opensearch_url,
        "--cache": stack.redis_url,
        "--cache-prefix": unique,
    }
    with storefront(options, tmp_path / "log") as service:
        code, report = conformance_report(
            service, tmp_path, "support.orders_requests", examples=25
        )

    assert 0 == code, report


def test_the_cache_has_the_documented_keys(stack, unique, targets):
    """A row's key consists of the prefix, the route and the order's number."""
    targets.row(7, 16, status="placed")
    with closing(redis.Redis.from_url(stack.redis_url, decode_responses=True)) as own:
        keys = [key for key in own.keys(f"{unique}:*") if "_" not in key[len(unique) :]]

    assert [f"{unique}:orders:7"] == keys
