"""
The orders service on a real Postgres: its rows, its events and its responses.

The tests call the application without a server; ``test_orders_server.py`` uses one.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from flask.testing import FlaskClient
from sqlalchemy import Engine, text
from werkzeug.test import TestResponse

from towpath.relay.postgres.views import view_findings
from towpath.schemas import source_tables
from towpath.schemas.clock import SystemClock
from towpath.services.orders import __main__ as orders
from towpath.services.orders import handlers
from towpath.services.orders.__main__ import seed_shop
from towpath.services.orders.api import EXTENSION
from towpath.services.orders.app import create_app, migrate_shop
from towpath.services.orders.commands import PlaceOrder
from towpath.services.orders.events import shop_schemas
from towpath.services.orders.repository import (
    OrdersUnit,
    StaleOrderError,
    metadata,
)
from towpath.settings import AggregateView, IdForm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PRODUCT = "0af76519-16cd-43dd-8448-eb211c80319c"
LINE = {"product_id": PRODUCT, "quantity": 2, "unit_price": "9.99"}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
THREADS = 8
# The fields of an order's event that the response to a request also has.
EVENT_FIELDS = (
    *("order_id", "customer_id", "status", "total", "currency", "lines", "note"),
    *("attributes", "placed_at", "updated_at"),
)


@dataclass
class Shop:
    """The service on a fresh database, and queries of that database."""

    dsn: str
    client: FlaskClient
    engine: Engine
    customer_id: str = ""

    def place(self, *, key: str | None = None, **change: Any) -> TestResponse:
        """Place an order with one line; ``change`` replaces fields of the request."""
        body = {"customer_id": self.customer_id, "lines": [LINE], **change}
        headers = {"Idempotency-Key": key} if key else {}
        return self.client.post("/orders", json=body, headers=headers)

    def placed(self) -> int:
        """Place an order; return its number."""
        return self.place().json["order_id"]

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Run a statement, and return its rows."""
        with self.engine.begin() as connection:
            result = connection.execute(text(query), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def events(self) -> list[tuple[str, str]]:
        """
        Return the type and the order number of each order event, by order and time.
        """
        return self.rows(
            "select type, aggregate_id from towpath.outbox"
            " where aggregate_type = 'order' order by aggregate_id::bigint, occurred_at"
        )

    def counts(self) -> tuple[int, int, int, int]:
        """Count orders, lines, stored responses and order events."""
        return self.rows(
            "select (select count(*) from shop.orders),"
            " (select count(*) from shop.order_lines),"
            " (select count(*) from shop.idempotency),"
            " (select count(*) from towpath.outbox where aggregate_type = 'order')"
        )[0]


@pytest.fixture
def bare_shop(database: str) -> Iterator[Shop]:
    """Provide a shop whose outbox does not exist yet."""
    app = create_app(database, threads=THREADS)
    engine = app.extensions["engine"]
    migrate_shop(engine)
    yield Shop(database, app.test_client(), engine)
    engine.dispose()


@pytest.fixture
def shop(bare_shop: Shop) -> Shop:
    """Provide a shop with its outbox and one customer."""
    bare_shop.rows("create schema towpath")
    bare_shop.rows(source_tables.outbox().create_statement())
    customer = {"name": "Ada", "email": "ada@example.org"}
    response = bare_shop.client.post("/customers", json=customer)
    bare_shop.customer_id = response.json["customer_id"]
    return bare_shop


def concurrently(do: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Call a function several times concurrently; return the results."""
    barrier = threading.Barrier(count)

    def call(number: int) -> Any:
        barrier.wait(timeout=30)
        return do(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def test_an_order_is_written_with_its_lines_and_its_event(shop: Shop):
    """
    Order, lines and OrderPlaced are written together; the event has the whole order.
    """
    headers = {"traceparent": TRACEPARENT}
    lines = [LINE, LINE | {"unit_price": "0.02", "quantity": 1}]
    body = {
        "customer_id": shop.customer_id,
        "lines": lines,
        "note": "Zürich",
        "attributes": {"gift": True},
    }

    response = shop.client.post("/orders", json=body, headers=headers)
    event = shop.rows(
        "select aggregate_id, type, payload, headers, traceparent,"
        """ to_char(occurred_at, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
        " from towpath.outbox where aggregate_type = 'order'"
    )[0]

    order = response.json
    expected = (
        str(order["order_id"]),
        "OrderPlaced",
        {name: order[name] for name in EVENT_FIELDS} | {"attributes": '{"gift": true}'},
        {"schema": "shop.OrderPlaced:1"},
        TRACEPARENT,
        order["placed_at"],
    )

    assert (201, "20.00", 2) == (
        response.status_code,
        order["total"],
        len(order["lines"]),
    )
    assert response.headers["Location"] == f"/orders/{order['order_id']}"
    assert shop.client.get(f"/orders/{order['order_id']}").json == order
    assert expected == event


def test_a_customer_is_written_with_its_event(shop: Shop):
    """
    The payload of CustomerRegistered equals the customer that a GET returns.
    """
    read = shop.client.get(f"/customers/{shop.customer_id}").json
    events = shop.rows("select aggregate_type, type, payload from towpath.outbox")

    assert [("customer", "CustomerRegistered", read)] == events


def test_paying_and_canceling_each_record_one_event(shop: Shop):
    """
    A repeated request also succeeds, but records no event.
    """
    paid, cancelled = shop.placed(), shop.placed()
    responses = [
        shop.client.post(f"/orders/{paid}/pay"),
        shop.client.post(f"/orders/{paid}/pay"),
        shop.client.post(f"/orders/{cancelled}/cancel", json={"reason": "late"}),
        shop.client.post(f"/orders/{cancelled}/cancel", json={"reason": "again"}),
    ]
    reasons = shop.rows(
        "select payload->>'reason' from towpath.outbox where type = 'OrderCancelled'"
    )

    expected = [
        ("OrderPlaced", str(paid)),
        ("OrderPaymentRequested", str(paid)),
        ("OrderPlaced", str(cancelled)),
        ("OrderCancelled", str(cancelled)),
    ]

    assert [200] * 4 == [a.status_code for a in responses]
    assert responses[0].json == responses[1].json
    assert [("late",)] == reasons
    assert expected == shop.events()


def test_a_command_that_the_orders_status_forbids_is_a_conflict(shop: Shop):
    """
    A canceled order cannot be paid for, nor a placed one returned; no event is written.
    """
    placed, cancelled = shop.placed(), shop.placed()
    shop.client.post(f"/orders/{cancelled}/cancel")
    before = shop.events()

    responses = [
        shop.client.post(f"/orders/{placed}/return"),
        shop.client.post(f"/orders/{cancelled}/pay"),
    ]

    assert [409, 409] == [a.status_code for a in responses]
    assert before == shop.events()


def test_a_command_for_an_outdated_version_of_an_order_is_refused(shop: Shop):
    """
    A command with the current ETag succeeds; one with an old ETag changes nothing.
    """
    placed = shop.client.get(f"/orders/{shop.placed()}")
    path, old = f"/orders/{placed.json['order_id']}", placed.headers["ETag"]
    paying = shop.client.post(f"{path}/pay", headers={"If-Match": old})
    before = shop.events()

    refused = [
        shop.client.post(f"{path}/{name}", headers={"If-Match": old})
        for name in ("pay", "cancel", "return")
    ]
    read = shop.client.get(path)
    cancelled = shop.client.post(
        f"{path}/cancel", headers={"If-Match": f"{old}, {paying.headers['ETag']}"}
    )

    assert [200, 412, 412, 412, 200] == [
        each.status_code for each in (paying, *refused, cancelled)
    ]
    assert paying.headers["ETag"] == read.headers["ETag"] == f'"{read.json["version"]}"'
    assert ["OrderCancelled"] == [type_ for type_, _ in shop.events()[len(before) :]]


def test_an_unreadable_version_is_refused(shop: Shop):
    """
    A tag without quotes does not count as a missing header.
    """
    refused = shop.client.post(
        f"/orders/{shop.placed()}/cancel", headers={"If-Match": "1"}
    )

    assert (400, "If-Match") == (
        refused.status_code,
        refused.json["errors"][0]["field"],
    )


def test_a_repeated_command_with_a_version_gets_the_first_response(shop: Shop):
    """
    The repetition gets the first response and its ETag, although the version is old.
    """
    path = f"/orders/{shop.placed()}/pay"
    headers = {"If-Match": '"1"', "Idempotency-Key": "k"}
    first, again = (shop.client.post(path, headers=headers) for _ in range(2))

    assert [200, 200] == [first.status_code, again.status_code]
    assert "true" == again.headers["Idempotent-Replayed"]
    assert (first.json, first.headers["ETag"]) == (again.json, again.headers["ETag"])


def test_nothing_is_written_without_a_commit(shop: Shop):
    """
    An uncommitted unit of work leaves neither rows nor events.
    """
    sessions = shop.client.application.extensions[EXTENSION].sessions
    command = PlaceOrder.model_validate(
        {"customer_id": uuid.UUID(shop.customer_id), "lines": [_line()]}
    )
    with OrdersUnit(sessions) as unit:
        handlers.place_order(command, unit.store, SystemClock().now())
        unit.session.flush()

    assert shop.counts() == (0, 0, 0, 0)


def test_an_event_that_cannot_be_written_rolls_back_its_order(shop: Shop):
    """
    If the outbox refuses the event, the order is not written either.
    """
    shop.rows("alter table towpath.outbox add check (type <> 'OrderPlaced')")

    response = shop.place(key="k")

    assert (500, (0, 0, 0, 0)) == (response.status_code, shop.counts())


def test_an_order_that_cannot_be_committed_leaves_no_event(shop: Shop):
    """
    If the commit itself fails after all rows have been written, none of them remains.
    """
    shop.rows(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'no'; end $$"
    )
    shop.rows(
        "create constraint trigger refuse after insert on shop.orders"
        " deferrable initially deferred for each row execute function refuse()"
    )

    response = shop.place(key="k")

    assert (500, (0, 0, 0, 0)) == (response.status_code, shop.counts())


def test_a_connection_lost_before_the_commit_leaves_nothing(shop: Shop):
    """
    The response asks the client to retry; the same key then places the order once.
    """
    shop.rows(
        "create function die() returns trigger language plpgsql as"
        " $$ begin perform pg_terminate_backend(pg_backend_pid()); return new; end $$"
    )
    shop.rows(
        "create trigger die after insert on towpath.outbox"
        " for each row execute function die()"
    )
    lost = shop.place(key="k")
    left = shop.counts()
    shop.rows("drop trigger die on towpath.outbox")
    again = shop.place(key="k")

    assert (503, "1") == (lost.status_code, lost.headers["Retry-After"])
    assert (0, 0, 0, 0) == left
    assert (201, (1, 1, 1, 1)) == (again.status_code, shop.counts())


def test_a_repeated_request_is_executed_once(shop: Shop):
    """
    The second response is identical, and a header marks it as replayed.
    """
    first, second = shop.place(key="k"), shop.place(key="k")
    replayed = [r.headers.get("Idempotent-Replayed") for r in (first, second)]

    assert [None, "true"] == replayed
    assert (first.status_code, first.data) == (second.status_code, second.data)
    assert first.headers["Location"] == second.headers["Location"]
    assert shop.counts() == (1, 1, 1, 1)


def test_concurrent_requests_with_one_key_are_executed_once(shop: Shop):
    """
    Eight concurrent requests place one order and get the same response.
    """
    client = shop.client.application.test_client
    body = {"customer_id": shop.customer_id, "lines": [LINE]}
    headers = {"Idempotency-Key": "k"}

    responses = concurrently(
        lambda _: client().post("/orders", json=body, headers=headers)
    )
    distinct = {(a.status_code, a.data) for a in responses}

    assert (1, (1, 1, 1, 1)) == (len(distinct), shop.counts())


def test_a_used_key_with_a_different_request_is_refused(shop: Shop):
    """
    The response has status 422, and names the header.
    """
    shop.place(key="k")

    response = shop.place(key="k", note="Another.")

    assert (422, "Idempotency-Key") == (
        response.status_code,
        response.json["errors"][0]["field"],
    )


@pytest.mark.parametrize("key", ["", " ", "a" * 201, "é"])
def test_an_invalid_key_is_refused(shop: Shop, key: str):
    """
    A key has 1 to 200 visible ASCII characters.
    """
    body = {"customer_id": shop.customer_id, "lines": [LINE]}

    response = shop.client.post("/orders", json=body, headers={"Idempotency-Key": key})

    assert (422, (0, 0, 0, 0)) == (response.status_code, shop.counts())


def test_a_failed_request_does_not_use_up_its_key(shop: Shop):
    """
    A valid order can be placed with the key of a refused one.
    """
    refused = shop.place(key="k", customer_id=str(uuid.uuid4()))
    placed = shop.place(key="k")

    assert [422, 201] == [refused.status_code, placed.status_code]


def test_an_order_paid_and_canceled_concurrently_is_canceled_once(shop: Shop):
    """
    A payment is requested before the cancellation or not at all.
    """
    order_id = shop.placed()
    client = shop.client.application.test_client

    responses = concurrently(
        lambda n: client().post(f"/orders/{order_id}/{'pay' if n % 2 else 'cancel'}")
    )
    paid = [response.status_code for response in responses[1::2]]
    types = ["OrderPlaced", "OrderPaymentRequested", "OrderCancelled"]
    if 200 not in paid:
        types.remove("OrderPaymentRequested")

    assert [200] * 4 == [response.status_code for response in responses[::2]]
    assert {200, 409} >= set(paid)
    assert types == [type_ for type_, _ in shop.events()]


def test_the_newest_event_of_every_order_matches_the_order(shop: Shop):
    """
    After many concurrent requests, some of them refused, events and tables agree.
    """
    client = shop.client.application.test_client

    def shopper(number: int) -> None:
        for step in range(6):
            body = {"customer_id": shop.customer_id, "lines": [LINE] * (1 + step % 4)}
            if step % 3 == 2:
                body["customer_id"] = str(uuid.uuid4())
            order = client().post("/orders", json=body).json.get("order_id", 0)
            for action in ("pay", "cancel")[:: 1 if number % 2 else -1]:
                client().post(f"/orders/{order}/{action}")

    concurrently(shopper)
    differing = shop.rows(
        "select o.id, e.aggregate_id from shop.orders o full join"
        " (select distinct on (aggregate_id) * from towpath.outbox"
        "  where aggregate_type = 'order' order by aggregate_id, occurred_at desc) e"
        " on e.aggregate_id = o.id::text"
        " where (o.status::text, o.total::text)"
        " is distinct from (e.payload->>'status', e.payload->>'total')"
    )
    orders, _, _, events = shop.counts()

    # For half of the orders, a payment is requested before the cancellation.
    assert (THREADS * 4, THREADS * 10, []) == (orders, events, differing)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/orders/1"),
        ("POST", "/orders/1/pay"),
        ("POST", "/orders/1/cancel"),
        ("GET", f"/customers/{PRODUCT}"),
        ("GET", "/orders/9223372036854775807"),
        ("GET", "/orders/9223372036854775808"),
        ("GET", f"/orders/{'9' * 5000}"),
        ("GET", "/orders/-1"),
        ("GET", "/orders/one"),
        ("GET", "/customers/7"),
    ],
)
def test_an_unknown_order_is_not_found(shop: Shop, method: str, path: str):
    """
    Unknown numbers, numbers that Postgres cannot represent, and invalid ones give 404.
    """
    response = shop.client.open(path, method=method)

    assert (404, "application/problem+json") == (
        response.status_code,
        response.mimetype,
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"customer_id": PRODUCT}, "customer_id"),
        (
            {"lines": [LINE | {"unit_price": "9999999999.99"}]},
            "lines",
        ),
        ({"note": "a\0b"}, "note"),
        ({"attributes": {"a\0": 1}}, "attributes.a\0.[key]"),
    ],
)
def test_an_invalid_order_is_refused_with_the_name_of_the_field(
    shop: Shop, change, field: str
):
    """
    Unknown customers, excessive totals and NUL characters are refused, and not stored.
    """
    response = shop.place(**change)

    assert (422, field, (0, 0, 0, 0)) == (
        response.status_code,
        response.json["errors"][0]["field"],
        shop.counts(),
    )


def test_an_invalid_trace_context_is_dropped(shop: Shop):
    """
    The request with the invalid header still succeeds.
    """
    body = {"customer_id": shop.customer_id, "lines": [LINE]}
    shop.client.post("/orders", json=body, headers={"traceparent": "nonsense"})
    kept = shop.rows(
        "select traceparent from towpath.outbox where type = 'OrderPlaced'"
    )

    assert [(None,)] == kept


def test_without_its_outbox_the_service_is_not_ready(bare_shop: Shop):
    """
    The service is live; it refuses writes, names the remedy, and writes nothing.
    """
    customer = {"name": "Ada", "email": "ada@example.org"}
    live = bare_shop.client.get("/health/live")
    ready = bare_shop.client.get("/health/ready")
    refused = bare_shop.client.post("/customers", json=customer)
    left = bare_shop.rows("select count(*) from shop.customers")

    assert [200, 503, 503] == [r.status_code for r in (live, ready, refused)]
    assert "towpath relay init" in refused.json["detail"]
    assert [(0,)] == left


def test_a_service_with_a_complete_database_is_ready(shop: Shop):
    """
    The database can be reached, and has every table.
    """
    assert shop.client.get("/health/ready").json == {"status": "ready"}


def test_a_service_without_its_database_is_unavailable_but_live():
    """
    Every route that needs the database responds with 503.
    """
    client = create_app("postgresql://127.0.0.1:1/shop", threads=1).test_client()
    order = {"customer_id": PRODUCT, "lines": [LINE]}
    responses = [
        client.get("/health/ready"),
        client.get("/orders/1"),
        client.post("/orders", json=order),
        client.post("/orders/1/pay"),
        client.get("/health/live"),
    ]

    assert [503, 503, 503, 503, 200] == [a.status_code for a in responses]


def test_a_locked_order_gives_a_retryable_refusal(shop: Shop):
    """
    A client that waits too long for an order's lock is asked to retry.
    """
    order_id = shop.placed()
    with shop.engine.begin() as connection:
        connection.execute(text("select 1 from shop.orders for update"))
        response = shop.client.post(f"/orders/{order_id}/pay")

    assert (503, "1") == (response.status_code, response.headers["Retry-After"])


def test_the_migrations_create_the_tables_that_the_service_describes(shop: Shop):
    """
    Alembic finds no difference between the migrated tables and their description.

    The inbox library describes its own tables.
    """

    def is_described(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema":
            return name == "shop"
        table = name if kind == "table" else parents.get("table_name")
        return not (table or "").startswith("inbox")

    with shop.engine.connect() as connection:
        options = {
            "include_schemas": True,
            "include_name": is_described,
            "version_table_schema": "shop",
            "compare_server_default": False,
        }
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)

    assert found == []


def test_an_order_of_a_newer_version_is_not_overwritten(shop: Shop):
    """
    If a row has changed since it was read, the command fails.
    """
    order_id = shop.placed()
    sessions = shop.client.application.extensions[EXTENSION].sessions
    with OrdersUnit(sessions) as unit:
        order = unit.store.orders.lock(order_id)
        unit.session.execute(text("update shop.orders set version = version + 1"))
        order.cancel(SystemClock().now(), None)
        with pytest.raises(StaleOrderError):
            unit.store.orders.save(order)

    assert [("OrderPlaced", str(order_id))] == shop.events()


def test_concurrent_starts_migrate_the_database_once(database: str):
    """
    Four concurrent migrations all succeed, but only one does the work.
    """
    # Created one by one: Python 3.11 may fail to parse in two threads at once.
    engines = [create_app(database, threads=1).extensions["engine"] for _ in range(4)]

    def start(number: int) -> None:
        migrate_shop(engines[number])
        engines[number].dispose()

    concurrently(start, 4)
    engine = create_app(database, threads=1).extensions["engine"]
    with engine.connect() as connection:
        versions = connection.execute(text("select * from shop.alembic_version")).all()
    engine.dispose()

    assert [("0007",)] == [tuple(version) for version in versions]


def test_a_seeded_shop_has_correct_totals_and_records_no_event(shop: Shop):
    """
    Each order has one to four lines, and their sum as its total.
    """
    seed_shop(shop.engine, orders=300, customers=20)
    summary = shop.rows(
        "select count(*), count(*) filter (where total = sum and lines <= 4),"
        " count(distinct customer_id), min(status::text), max(status::text)"
        " from shop.orders join (select order_id, sum(quantity * unit_price),"
        " count(*) as lines from shop.order_lines group by 1) l on l.order_id = id"
    )

    assert [(300, 300, 20, "placed", "placed")] == summary
    assert shop.events() == []
    assert shop.placed() == 301


def test_a_shop_with_orders_is_not_seeded_again_with_if_empty(shop: Shop):
    """
    ``seed --if-empty`` can run at every start: it fills only an empty shop.
    """
    command = ["seed", "--dsn", shop.dsn, "--orders", "30", "--customers", "5"]
    codes = [orders.main([*command, "--if-empty"], {}) for _ in range(2)]
    once = shop.rows("select count(*) from shop.orders")
    codes.append(orders.main(command, {}))

    assert [0, 0, 0] == codes
    assert [(30,)] == once
    assert [(60,)] == shop.rows("select count(*) from shop.orders")


def test_the_same_seed_repeats_its_orders_and_customers(shop: Shop):
    """
    A repeated seed adds the same lines for the same customers; a new seed adds others.
    """
    for seed in (1, 1, 2):
        seed_shop(shop.engine, orders=50, customers=5, seed=seed)
    baskets = shop.rows(
        "select string_agg(concat(line_no, product_id, quantity, unit_price), ','"
        " order by order_id, line_no) from shop.order_lines"
        " group by (order_id - 1) / 50 order by (order_id - 1) / 50"
    )
    customers = shop.rows("select count(*) - 1 from shop.customers")[0][0]

    assert (10, True, False) == (
        customers,
        baskets[0] == baskets[1],
        baskets[1] == baskets[2],
    )


def test_an_unforeseen_failure_is_hidden_from_the_caller(shop: Shop):
    """
    The response does not contain the database's message about the row.
    """
    shop.rows("alter table shop.customers add check (name <> 'Eve')")

    response = shop.client.post("/customers", json={"name": "Eve", "email": "e@e"})

    assert response.status_code == 500
    assert "Eve" not in response.text


ODD_ATTRIBUTES = {
    "zz": 'quo"te \\ and\nline \x1f\x7f',
    "a": None,
    "é": True,
    "b": 2**53 - 1,
    "ab": -0,
    "😀": "😀",
}


def test_the_view_has_the_content_of_each_orders_newest_event(shop: Shop):
    """
    As JSON, placed, paying and canceled orders equal their events.

    The database's time zone makes no difference.
    """
    odd = {"note": 'Zürich\n"2" \\', "attributes": ODD_ATTRIBUTES}
    lines = [LINE | {"unit_price": price} for price in ("0.10", "1234567890", "7.5")]
    orders = [shop.place(lines=lines, **odd).json["order_id"] for _ in range(4)]
    orders.append(shop.placed())
    for path in (
        *(f"{orders[1]}/pay", f"{orders[4]}/pay", f"{orders[3]}/cancel"),
        *(f"{orders[0]}/pay", f"{orders[0]}/cancel"),
    ):
        shop.client.post(f"/orders/{path}")
    shop.client.post(f"/orders/{orders[2]}/cancel", json={"reason": 'it\'s "late"'})
    recorded = shop.rows(
        "select distinct on (aggregate_id) aggregate_id, type, payload"
        " from towpath.outbox where aggregate_type = 'order'"
        " order by aggregate_id, occurred_at desc"
    )
    zone = shop.rows(
        "alter database {} set timezone = 'Asia/Kolkata'".format(
            shop.rows("select quote_ident(current_database())")[0][0]
        )
    )
    shop.engine.dispose()
    seen = shop.rows(
        "select aggregate_id::text, type, payload from shop.order_documents order by 1"
    )

    assert (5, []) == (len(seen), zone)
    assert recorded == seen


def test_the_view_shows_a_seeded_order_as_a_valid_event(shop: Shop):
    """
    The view has the event that a seeded order lacks; the event matches its schema.
    """
    seed_shop(shop.engine, orders=200, customers=20)
    documents = shop.rows("select type, payload from shop.order_documents")
    valid = [shop_schemas().check(type_, payload).name for type_, payload in documents]

    assert ["OrderPlaced"] * 200 == valid


def test_a_range_of_the_view_is_read_by_its_key(shop: Shop):
    """
    To return 1,000 documents, the query reads only 1,000 of the 5,000 orders.
    """
    seed_shop(shop.engine, orders=5_000, customers=20)
    ((plan,),) = shop.rows(
        "explain (analyze, format json) select * from shop.order_documents"
        " where aggregate_id > 2000 and aggregate_id <= 4999"
        " order by aggregate_id limit 1000"
    )
    read = [
        (node["Relation Name"], node["Actual Rows"] * node["Actual Loops"])
        for node in _nodes(plan[0]["Plan"])
        if "Relation Name" in node
    ]

    assert {"orders", "order_lines"} == {name for name, _ in read}
    assert 1_000 == next(rows for name, rows in read if name == "orders")
    assert 5_000 > sum(rows for _, rows in read)


def test_the_relay_can_read_the_view(shop: Shop):
    """
    The relay's check of the shop's declared view has no findings.
    """
    view = AggregateView(
        aggregate_type="order",
        view="shop.order_documents",
        id_form=IdForm.INTEGER,
        state_types=("*",),
    )
    with psycopg.connect(shop.dsn) as connection:
        assert view_findings(connection, [view]) == []


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _line() -> dict[str, Any]:
    return {**LINE, "product_id": uuid.UUID(PRODUCT)}
