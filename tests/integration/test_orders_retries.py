"""
Repeated requests to a running orders service, and its stop with requests in progress.

The tests count the orders in the database, so they detect a repeated execution even
if the response hides it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from sqlalchemy import event

from support.interrupted_orders import KILL
from support.orders_service import (
    STOP_TIMEOUT_S,
    Service,
    orders_service,
    running_service,
)
from support.waiting import until
from towpath.services.orders.app import create_app, migrate_shop
from towpath.services.plumbing.server import LIFECYCLE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

LINE = {
    "product_id": "0af76519-16cd-43dd-8448-eb211c80319c",
    "quantity": 1,
    "unit_price": "1.00",
}
TRACE = "0af7651916cd43dd8448eb211c80319c"
CONCURRENT = 50


class Shop:
    """A running service, with one customer, and its database."""

    def __init__(self, service: Service, dsn: str) -> None:
        self.service = service
        self.dsn = dsn
        customer = {"name": "Ada", "email": "ada@example.org"}
        response = service.post("/customers", customer)
        self.customer_id = response.json()["customer_id"]

    def place(self, key: str, note: str = "a", **headers: str) -> requests.Response:
        """Place an order with an idempotency key."""
        body = {"customer_id": self.customer_id, "lines": [LINE], "note": note}
        return requests.post(
            self.service.url + "/orders",
            json=body,
            headers={"Idempotency-Key": key, **headers},
            timeout=30,
        )

    def rows(self, query: str) -> list[Any]:
        """Run a statement, and return its rows."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    def counts(self) -> tuple[int, int]:
        """Count orders, and their events."""
        return self.rows(
            "select (select count(*) from shop.orders), (select count(*)"
            " from towpath.outbox where type = 'OrderPlaced')"
        )[0]

    def age_keys(self) -> None:
        """Make every key older than a day."""
        self.rows("update shop.idempotency set created_at = now() - interval '25 h'")

    def is_waiting(self) -> bool:
        """Return whether a statement of the service is waiting for a lock."""
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock'"
        )
        return self.rows(waiting)[0][0] > 0


@pytest.fixture
def shop(database: str, tmp_path: Path) -> Iterator[Shop]:
    """Provide the service as a process."""
    with orders_service(database, tmp_path) as service:
        yield Shop(service, database)


@pytest.fixture
def draining_shop(database: str, tmp_path: Path) -> Iterator[Shop]:
    """Provide the service as a process that accepts requests while it is stopping."""
    options = {"--drain-seconds": "3"}
    module = "towpath.services.orders"
    with running_service(module, database, tmp_path, options) as service:
        yield Shop(service, database)


@pytest.fixture
def interrupted_shop(database: str, tmp_path: Path) -> Iterator[Shop]:
    """Provide the service as a process that a request can kill."""
    with running_service("support.interrupted_orders", database, tmp_path) as service:
        yield Shop(service, database)


def concurrently(do: Callable[[int], Any]) -> list[Any]:
    """Call a function many times concurrently; return the results."""
    barrier = threading.Barrier(CONCURRENT)

    def call(number: int) -> Any:
        barrier.wait(timeout=30)
        return do(number)

    with ThreadPoolExecutor(CONCURRENT) as pool:
        return list(pool.map(call, range(CONCURRENT)))


@pytest.mark.parametrize("is_expired", [False, True])
def test_many_requests_with_one_key_place_one_order(shop: Shop, is_expired: bool):
    """
    All requests get the same response, and all but one are marked as replayed.
    """
    if is_expired:
        shop.place("k", "an earlier order")
        shop.age_keys()
    before = shop.counts()[0]
    responses = concurrently(lambda _: shop.place("k"))
    distinct = {(response.status_code, response.content) for response in responses}
    replayed = [response.headers.get("Idempotent-Replayed") for response in responses]

    assert (1, 201) == (len(distinct), responses[0].status_code)
    assert CONCURRENT - 1 == replayed.count("true")
    assert (before + 1, before + 1) == shop.counts()


def test_a_worker_killed_between_commit_and_response_leaves_one_order(
    interrupted_shop: Shop,
):
    """
    The client gets no response; a retry with the same key returns the committed order.
    """
    with pytest.raises(requests.ConnectionError):
        interrupted_shop.place("k", **{KILL: "1"})
    interrupted_shop.service.wait_until_live()
    committed = interrupted_shop.counts()
    retried, again = interrupted_shop.place("k"), interrupted_shop.place("k")

    assert ((1, 1), (1, 1)) == (committed, interrupted_shop.counts())
    assert [201, "true"] == [
        retried.status_code,
        retried.headers["Idempotent-Replayed"],
    ]
    assert retried.content == again.content


def test_a_key_with_a_different_body_is_refused_until_it_expires(shop: Shop):
    """
    A day later, the key can be used for a new request, whose response is then repeated.
    """
    first, refused = shop.place("k"), shop.place("k", "b")
    shop.age_keys()
    second, repeated, late = (shop.place("k", note) for note in ("b", "b", "a"))

    assert [201, 422, 201, 201, 422] == [
        response.status_code for response in (first, refused, second, repeated, late)
    ]
    assert first.json()["order_id"] != second.json()["order_id"]
    assert second.content == repeated.content
    assert (2, 2) == shop.counts()


def test_a_key_in_progress_gives_a_retryable_refusal_that_is_logged(shop: Shop):
    """
    The wait for the first request is bounded; once that has ended, the key is free.
    """
    with psycopg.connect(shop.dsn) as first:
        first.execute(
            "insert into shop.idempotency (key, request_hash) values ('k', '')"
        )
        trace = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        refused = shop.place("k", **trace, **{"X-Request-Id": "r-1"})
        first.rollback()
    placed = shop.place("k")
    (record,) = [r for r in shop.service.records() if r["level"] == "warning"][-1:]

    assert [503, "1", "r-1"] == [
        refused.status_code,
        refused.headers["Retry-After"],
        refused.headers["X-Request-Id"],
    ]
    assert ("request refused: unavailable", "r-1", TRACE) == (
        record["event"],
        record["request_id"],
        record["trace_id"],
    )
    assert (201, None) == (
        placed.status_code,
        placed.headers.get("Idempotent-Replayed"),
    )


def test_the_service_deletes_expired_keys_in_the_background(interrupted_shop: Shop):
    """
    The row of an old key is deleted without a further request; a new key's row is kept.
    """
    interrupted_shop.place("old")
    interrupted_shop.age_keys()
    interrupted_shop.place("new")
    keys = "select key from shop.idempotency"

    until(lambda: [("new",)] == interrupted_shop.rows(keys), "the old key is deleted")


def test_expired_keys_are_deleted_in_batches_despite_a_locked_one(database: str):
    """
    Batches are bounded; a locked key is skipped without waiting for its lock.
    """
    app = create_app(database, threads=1)
    engine = app.extensions["engine"]
    migrate_shop(engine)
    deleted = []

    @event.listens_for(engine, "after_cursor_execute")
    def count(_connection, cursor, statement, *_rest):
        if "DELETE FROM" in statement:
            deleted.append(cursor.rowcount)

    task, _counts_of_sagas = app.extensions[LIFECYCLE].tasks
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "insert into shop.idempotency (key, request_hash, created_at)"
            " select n, '', now() - n * interval '1 min'"
            " from generate_series(1, 1440 + 1201) as n"
        )
        with psycopg.connect(database) as holder:
            holder.execute(
                "select 1 from shop.idempotency where key = '2641' for update"
            )
            task.run()
            first = list(deleted)
        task.run()
        left = connection.execute(
            "select count(*), max(key::int) from shop.idempotency"
        ).fetchone()
    engine.dispose()

    # By now, the key that was 1440 minutes old at its insertion has expired, too.
    assert ([500, 500, 201], [1]) == (first, deleted[3:])
    assert (1439, 1439) == left


def test_a_stopping_service_is_not_ready_and_finishes_requests(draining_shop: Shop):
    """
    After SIGTERM, the readiness check fails, but other requests are still served.
    """
    shop = draining_shop
    order_id = shop.place("k").json()["order_id"]
    url = shop.service.url
    with ThreadPoolExecutor(1) as pool, psycopg.connect(shop.dsn) as holder:
        holder.execute("select 1 from shop.orders for update")
        pay = f"{url}/orders/{order_id}/pay"
        paying = pool.submit(requests.post, pay, timeout=30)
        until(shop.is_waiting, "the request waits for the order's lock")
        shop.service.process.send_signal(signal.SIGTERM)
        ready = f"{url}/health/ready"
        until(
            lambda: requests.get(ready, timeout=5).status_code == 503,
            "the service is not ready",
        )
        served = requests.get(f"{url}/orders/{order_id}", timeout=5)
        holder.rollback()
        paid = paying.result(timeout=30)
    code = shop.service.process.wait(STOP_TIMEOUT_S)

    assert [200, 200, "paying"] == [
        served.status_code,
        paid.status_code,
        paid.json()["status"],
    ]
    assert 0 == code
