"""Inventory, payments and shipping over HTTP, with a real Postgres."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask.testing import FlaskClient
from sqlalchemy import inspect, text

from support.api_conformance import conformance_report
from support.orders_service import running_service
from towpath.schemas import source_tables
from towpath.schemas.clock import TICK, SystemClock
from towpath.services.inventory import app as inventory
from towpath.services.inventory import handlers
from towpath.services.inventory.domain import RESERVE, ReservedLine
from towpath.services.inventory.repository import InventoryRepository
from towpath.services.orders import app as orders
from towpath.services.payments import app as payments
from towpath.services.payments.domain import OperationKind, Payment
from towpath.services.payments.repository import PaymentRepository
from towpath.services.plumbing.consumer import begin_in, make_sessions
from towpath.services.plumbing.metrics import metrics_of
from towpath.services.shipping import app as shipping
from towpath.services.shipping.repository import ShipmentRepository

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PRODUCT = str(uuid.UUID(int=1))
AT = SystemClock().now()
# The fields of an order's event that shipping reads.
ORDER = {"order_id": 7, "customer_id": "ada", "attributes": None}


class ServiceRig(NamedTuple):
    """A service without an HTTP server, and its database."""

    client: FlaskClient
    begin: Any


def serve(dsn: str, service: Any, migrate: Any) -> Iterator[ServiceRig]:
    """Provide a service whose tables and outbox exist."""
    app = service.create_app(dsn, threads=2)
    engine = app.extensions["engine"]
    with engine.begin() as connection:
        connection.execute(text("create schema towpath"))
        connection.execute(text(source_tables.outbox().create_statement()))
    migrate(engine)
    sessions = make_sessions(engine, service.collector(SystemClock()), metrics_of(app))
    yield ServiceRig(app.test_client(), begin_in(sessions))
    engine.dispose()


@pytest.fixture
def stock(database: str) -> Iterator[ServiceRig]:
    """Provide the inventory."""
    yield from serve(database, inventory, inventory.migrate_inventory)


@pytest.fixture
def money(database: str) -> Iterator[ServiceRig]:
    """Provide payments."""
    yield from serve(database, payments, payments.migrate_payments)


@pytest.fixture
def parcels(database: str) -> Iterator[ServiceRig]:
    """Provide shipping."""
    yield from serve(database, shipping, shipping.migrate_shipping)


# Each service with its schema and the revision that precedes the inbox's new key.
EARLIER = [
    (orders, orders.migrate_shop, "shop", "0005"),
    (inventory, inventory.migrate_inventory, "inventory", "0001"),
    (payments, payments.migrate_payments, "payments", "0001"),
    (shipping, shipping.migrate_shipping, "shipping", "0001"),
]


@pytest.mark.parametrize(("service", "migrate", "schema", "revision"), EARLIER)
def test_a_migration_updates_the_inbox_of_an_earlier_revision(
    database, service, migrate, schema, revision
):
    """
    The key of a parked event was the offset of its record; now it is the event's id.
    """
    engine = service.create_app(database, threads=1).extensions["engine"]
    migrate(engine)
    with engine.begin() as connection:
        earlier = f"update {schema}.alembic_version set version_num = :it"  # noqa: S608
        connection.execute(text(earlier), {"it": revision})
        connection.execute(
            text(
                f"alter table {schema}.inbox_parked drop constraint inbox_parked_pkey,"
                ' add primary key (consumer, topic, partition, "offset")'
            )
        )
    migrate(engine)
    key = inspect(engine).get_pk_constraint("inbox_parked", schema)
    engine.dispose()

    assert ["consumer", "event_id"] == key["constrained_columns"]


def register(stock: ServiceRig, product_id: str = PRODUCT, **change: Any):
    """Register a product."""
    body = {
        "product_id": product_id,
        "name": "A product",
        "unit_price": "12.50",
        "on_hand": 5,
    }
    return stock.client.post("/products", json=body | change)


def test_a_registered_product_can_be_read_and_gains_units(stock: ServiceRig):
    """
    Each change increments its version; all received units are counted.
    """
    registered = register(stock)
    location = registered.headers["Location"]
    received = stock.client.post(f"{location}/receipts", json={"units": 3})

    assert (201, f"/products/{PRODUCT}") == (registered.status_code, location)
    assert stock.client.get(location).json == received.json
    assert (8, 8, 0, 0, 2) == tuple(
        received.json[name]
        for name in ("received", "on_hand", "reserved", "sold", "version")
    )


def test_each_change_to_a_product_has_a_later_time(stock: ServiceRig):
    """
    The time is taken before the row is locked, possibly from a clock that is slow.
    """
    register(stock)
    product_id, early = uuid.UUID(PRODUCT), AT - timedelta(days=1)
    lines = [ReservedLine(product_id, 1)]
    with stock.begin() as session:
        products = InventoryRepository(session)
        registered = products.find_product(product_id)
        products.transfer(lines, RESERVE, early)
        reserved = products.find_product(product_id)
        received = products.receive(product_id, 1, early)

    assert (TICK, TICK) == (
        reserved.updated_at - registered.updated_at,
        received.updated_at - reserved.updated_at,
    )


def test_a_repeated_receipt_with_one_key_counts_once(stock: ServiceRig):
    """
    The response is repeated, including its version.
    """
    register(stock)
    path, headers = f"/products/{PRODUCT}/receipts", {"Idempotency-Key": "k"}
    first, again = (
        stock.client.post(path, json={"units": 3}, headers=headers) for _ in range(2)
    )

    assert first.json == again.json
    assert 8 == stock.client.get(f"/products/{PRODUCT}").json["on_hand"]


def test_products_are_listed_page_by_page_in_the_order_of_their_ids(
    stock: ServiceRig,
):
    """
    Each product is on one page, and the last page refers to no next page.
    """
    ids = [str(uuid.UUID(int=number)) for number in (3, 1, 5, 2, 4)]
    for product_id in ids:
        register(stock, product_id)
    listed, after = [], ""
    while after is not None:
        page = stock.client.get(f"/products?limit=2{after and f'&after={after}'}").json
        listed.append([item["product_id"] for item in page["items"]])
        after = page["next"]

    assert [2, 2, 1] == [len(page) for page in listed]
    assert sorted(ids) == [product_id for page in listed for product_id in page]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/products", {"product_id": PRODUCT}, 409),
        ("/products", {"on_hand": -1}, 422),
        ("/products", {"on_hand": 1_000_000_001}, 422),
        ("/products", {"name": ""}, 422),
        ("/products", {"unit_price": "-0.01"}, 422),
        ("/products", {"color": "red"}, 422),
        (f"/products/{PRODUCT}/receipts", {"units": 0}, 422),
        (f"/products/{uuid.UUID(int=9)}/receipts", {"units": 1}, 404),
    ],
)
def test_a_refused_command_changes_no_product(stock: ServiceRig, path, body, status):
    """
    The response is a problem document, and the only product is unchanged.
    """
    register(stock)
    if path == "/products":
        body = {
            "product_id": str(uuid.UUID(int=9)),
            "name": "Another",
            "unit_price": "1.00",
            "on_hand": 1,
        } | body
    refused = stock.client.post(path, json=body)
    (product,) = stock.client.get("/products").json["items"]

    assert (status, "application/problem+json") == (
        refused.status_code,
        refused.mimetype,
    )
    assert (5, 1) == (product["on_hand"], product["version"])


@pytest.mark.parametrize(
    ("query", "status"), [("limit=0", 422), ("limit=101", 422), ("after=x", 422)]
)
def test_an_invalid_query_of_products_is_refused(
    stock: ServiceRig, query: str, status: int
):
    """
    The problem document names the parameter.
    """
    response = stock.client.get(f"/products?{query}")

    assert (status, query.partition("=")[0]) == (
        response.status_code,
        response.json["errors"][0]["field"],
    )


def test_the_reservation_of_an_order_can_be_read(stock: ServiceRig):
    """
    The units are reserved and not on hand. An order without a reservation gives 404.
    """
    register(stock)
    lines = [{"product_id": PRODUCT, "quantity": 2}]
    with stock.begin() as session:
        handlers.reserve(ORDER | {"lines": lines}, InventoryRepository(session), AT)
    found = stock.client.get("/reservations/7").json
    product = stock.client.get(f"/products/{PRODUCT}").json

    assert ("reserved", lines) == (found["status"], found["lines"])
    assert (3, 2) == (product["on_hand"], product["reserved"])
    assert 404 == stock.client.get("/reservations/8").status_code
    assert 404 == stock.client.get(f"/products/{uuid.UUID(int=9)}").status_code


def test_the_payment_of_an_order_can_be_read(money: ServiceRig):
    """
    The payment has been requested. An order without a payment gives 404.
    """
    payment = Payment.request(7, Decimal("12.50"), "EUR", "card", AT)
    with money.begin() as session:
        assert PaymentRepository(session).add(payment)
    found = money.client.get("/payments/7").json

    assert ("requested", "12.50", "EUR", "card", 1) == tuple(
        found[name] for name in ("status", "amount", "currency", "method", "version")
    )
    assert 404 == money.client.get("/payments/8").status_code


def test_the_shipment_of_an_order_can_be_read(parcels: ServiceRig):
    """
    The shipment is dispatched, with a tracking number.

    An order without a shipment gives 404.
    """
    with parcels.begin() as session:
        shipping.ship(ORDER, ShipmentRepository(session), AT)
    found = parcels.client.get("/shipments/7").json

    assert ("dispatched", True) == (found["status"], bool(found["tracking_number"]))
    assert 404 == parcels.client.get("/shipments/8").status_code


def test_no_query_plan_claims_more_operations_than_requested(money):
    """
    A nested loop could run the claiming query repeatedly, with new rows each time.
    """
    with money.begin() as session:
        repository = PaymentRepository(session)
        for order_id in range(1, 21):
            price = Decimal("9.99")
            repository.add(Payment.request(order_id, price, "EUR", "card", AT))
            repository.add_operation(order_id, OperationKind.AUTHORIZE, AT)
    with money.begin() as session:
        for planner in ("hashjoin", "mergejoin", "hashagg", "sort", "material"):
            session.execute(text(f"set local enable_{planner} = off"))
        claimed = PaymentRepository(session).claim_operations(AT, 3)

    assert 3 == len(claimed)


@pytest.mark.parametrize("name", ["inventory", "payments", "shipping"])
def test_every_response_matches_the_openapi_document(
    database: str, tmp_path: Path, name: str
):
    """
    Schemathesis finds no response that violates the document.
    """
    with running_service(f"towpath.services.{name}", database, tmp_path) as service:
        code, report = conformance_report(
            service, tmp_path, "support.inventory_requests", examples=30
        )

    assert 0 == code, report
