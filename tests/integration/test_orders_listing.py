"""The paginated listings of the orders service on a real Postgres."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Engine, event, text

from towpath.schemas import source_tables
from towpath.services.orders.__main__ import seed_shop
from towpath.services.orders.app import create_app, migrate_shop

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

LINE = {
    "product_id": "0af76519-16cd-43dd-8448-eb211c80319c",
    "quantity": 1,
    "unit_price": "1.00",
}


@pytest.fixture
def client(database: str) -> Iterator[FlaskClient]:
    """Provide a client of the service on a fresh database."""
    app = create_app(database, threads=2)
    engine = app.extensions["engine"]
    migrate_shop(engine)
    with engine.begin() as connection:
        connection.execute(text("create schema towpath"))
        connection.execute(text(source_tables.outbox().create_statement()))
    yield app.test_client()
    engine.dispose()


def register(client: FlaskClient, name: str = "Ada") -> str:
    """Register a customer; return the id."""
    body = {"name": name, "email": "ada@example.org"}
    return client.post("/customers", json=body).json["customer_id"]


def place(client: FlaskClient, customer_id: str, lines: int = 1) -> int:
    """Place an order; return its number."""
    body = {"customer_id": customer_id, "lines": [LINE] * lines}
    return client.post("/orders", json=body).json["order_id"]


def pages(client: FlaskClient, link: str | None) -> Iterator[list[dict[str, Any]]]:
    """Follow the links of a listing, and yield the items of each page."""
    while link is not None:
        response = client.get(link)
        assert 200 == response.status_code, response.text
        link = response.json["next"]
        in_header = response.headers.get("Link")
        assert (None if link is None else f'<{link}>; rel="next"') == in_header
        yield response.json["items"]


def test_orders_are_listed_once_newest_first_while_others_are_placed(client):
    """
    Orders that are placed between two pages do not appear on later pages.
    """
    customer = register(client)
    placed = [place(client, customer, lines=1 + n % 3) for n in range(7)]
    listed = []
    for page in pages(client, "/orders?limit=3"):
        listed += page
        place(client, customer)

    assert placed[::-1] == [order["order_id"] for order in listed]
    whole = [client.get(f"/orders/{n}").json for n in placed[::-1]]
    assert listed == [
        {name: order[name] for name in summary}
        for order, summary in zip(whole, listed, strict=True)
    ]
    assert {"version", "payment_method", "reason", "saga"} == set(whole[0]) - set(
        listed[0]
    )


def test_a_full_last_page_has_no_link(client):
    """
    There is a link to the next page only if that page has an order.
    """
    customer = register(client)
    for _ in range(4):
        place(client, customer)

    assert [2, 2] == [len(page) for page in pages(client, "/orders?limit=2")]
    assert [[]] == list(pages(client, "/orders?status=paid"))


def test_orders_are_listed_by_customer_and_status_on_every_page(client):
    """
    The links keep the filters of the first request.
    """
    ada, bob = register(client), register(client)
    ada_orders = [place(client, customer) for customer in (ada, bob) * 4][::2]
    for order_id in ada_orders[:3]:
        client.post(f"/orders/{order_id}/pay")
    link = f"/orders?customer_id={ada}&status=paying&limit=2"
    listed = [[order["order_id"] for order in page] for page in pages(client, link)]

    assert [[ada_orders[2], ada_orders[1]], [ada_orders[0]]] == listed


def nodes(plan: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield the type and the index of each node of a plan."""
    yield plan["Node Type"], plan.get("Index Name")
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def plan_of_orders(client: FlaskClient, link: str) -> list[tuple[str, str | None]]:
    """Return the plan of the orders query that a request runs."""
    engine: Engine = client.application.extensions["engine"]
    sent = []

    def record(_connection, _cursor, statement, values, *_):
        sent.append((statement, values))

    event.listen(engine, "before_cursor_execute", record)
    response = client.get(link)
    event.remove(engine, "before_cursor_execute", record)
    assert 200 == response.status_code, response.text
    ((statement, values),) = [
        one for one in sent if "ORDER BY shop.orders.id" in one[0]
    ]
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"explain (format json) {statement}", values)
        return list(nodes(plan.scalar_one()[0]["Plan"]))


def test_orders_with_a_status_are_read_from_an_index_in_the_listed_order(client):
    """
    Listing the few orders with a rare status reads only these, and sorts nothing.

    They are the oldest: without the index, all newer orders would be read first.
    """
    engine = client.application.extensions["engine"]
    seed_shop(engine, orders=20_000, customers=50)
    with engine.begin() as connection:
        few = "update shop.orders set status = 'paid' where id <= 200"
        connection.execute(text(few))
        connection.execute(text("analyze shop.orders"))
    link = "/orders?status=paid&limit=5"
    plans = [plan_of_orders(client, link)]
    plans.append(plan_of_orders(client, client.get(link).json["next"]))

    index_scan = [("Limit", None), ("Index Scan", "ix_shop_orders_status_id")]
    assert [index_scan, index_scan] == plans
    listed = [order["order_id"] for page in pages(client, link) for order in page]
    assert list(range(200, 0, -1)) == listed


def test_customers_with_equal_times_are_listed_once(client):
    """
    Customers with equal times are ordered by id.
    """
    registered = [register(client, f"c{n}") for n in range(5)]
    with client.application.extensions["engine"].begin() as connection:
        connection.execute(text("update shop.customers set created_at = now()"))
    found = [
        customer["customer_id"]
        for page in pages(client, "/customers?limit=2")
        for customer in page
    ]

    assert sorted(registered, reverse=True) == found


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("limit=0", 422, "limit"),
        ("limit=101", 422, "limit"),
        ("limit=x", 422, "limit"),
        ("limit=1&limit=2", 422, "limit"),
        ("status=lost", 422, "status"),
        ("customer_id=7", 422, "customer_id"),
        ("color=red", 422, "color"),
        ("cursor=nonsense", 400, "cursor"),
    ],
)
def test_an_invalid_query_of_a_listing_is_refused(
    client, query: str, status: int, field: str
):
    """
    The problem document names the parameter.
    """
    response = client.get(f"/orders?{query}")

    assert (status, field) == (
        response.status_code,
        response.json["errors"][0]["field"],
    )
