"""The storefront of the whole shop: read-your-writes, and pages without scripts."""

import re
import subprocess
import sys
import uuid

import pytest
import requests

from support import databases
from support.rig import Rig
from support.saga import PRODUCT, SCARCE
from support.storefront import whole_store
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def store(stack, tmp_path_factory):
    """Provide the shop; reads wait for at most one second."""
    stack.up("postgres", "kafka", "redis", "opensearch")
    name = f"t_{uuid.uuid4().hex[:12]}"
    with databases.fresh_database(stack, name) as dsn:
        rig = Rig(dsn, stack.kafka, name, tmp_path_factory.mktemp("store"))
        with whole_store(rig, stack, **{"--wait-seconds": "1"}) as store:
            # All topics exist and are read, so only a test can cause lag later.
            write(store)
            until(lambda: own_orders(store), "the first order is read")
            yield store
        rig.close()


def write(store):
    """Place an order; return its number, and the LSN of the response."""
    line = {"product_id": str(PRODUCT), "quantity": 1, "unit_price": "12.50"}
    body = {"customer_id": store.saga.customer, "lines": [line]}
    response = store.saga.client.post("/orders", json=body)
    return response.json["order_id"], response.headers["Towpath-Lsn"]


def own_orders(store, lsn=None):
    """Return the numbers of the customer's orders on the first page."""
    response = store.get(f"/customers/{store.saga.customer}/orders", lsn)
    items = response.json()["items"] if response.ok else []
    return [order["order_id"] for order in items]


@pytest.mark.parametrize("held", ["cache", "search"])
def test_a_read_with_an_lsn_waits_for_every_sink_that_serves_it(store, held):
    """
    While a sink lags, the read is refused; once it has caught up, the write is read.
    """
    path = f"/customers/{store.saga.customer}/orders"
    with store.sinks[held].held():
        number, lsn = write(store)
        reason = f"the sink {held} has"
        until(lambda: reason in store.get(path, lsn).text, "the sink alone lags")
        refused = store.get(path, lsn)
    until(lambda: store.get(path, lsn).ok, "the sink has caught up")
    response = store.get(path, lsn)
    newest = response.json()["items"][0]
    freshness = response.json()["freshness"]

    assert (503, True) == (refused.status_code, int(refused.headers["Retry-After"]) > 0)
    assert (number, "cache") == (newest["order_id"], newest["served_from"])
    assert (lsn, {"cache", "search"}) == (
        *(freshness["lsn"], set(freshness["waited_ms"])),
    )


def test_a_search_waits_only_for_the_index(store):
    """A cache that lags does not delay reads that it does not serve."""
    with store.sinks["cache"].held():
        number, lsn = write(store)
        until(lambda: store.get("/search", lsn, q=number).ok, "the index has the order")
        found = store.get("/search", lsn, q=number).json()

    assert [number] == [order["order_id"] for order in found["orders"]]
    assert {"search"} == set(found["freshness"]["waited_ms"])


@pytest.mark.parametrize("lsn", ["0/1", "FFFFFFFF/0"])
def test_an_lsn_of_a_different_history_is_refused(store, lsn):
    """
    The LSN precedes the relay's start or is past the end of the WAL: no wait can end.
    """
    response = store.get("/search", lsn, q="1")

    assert (400, "Towpath-Lsn") == (
        *(response.status_code, response.json()["errors"][0]["field"]),
    )


@pytest.fixture
def visitor(store):
    """Provide a browser without scripts, which keeps cookies."""
    with requests.Session() as session:
        session.get(store.address).raise_for_status()
        yield session


def post(store, visitor, path, **fields):
    """Submit a form."""
    return visitor.post(store.address + path, data=fields, timeout=30)


def hidden_key(page):
    """Return the idempotency key in a checkout form."""
    return re.search(r'name="key" value="([0-9a-f]{32})"', page)[1]


def test_a_checkout_submitted_twice_places_one_order(store, visitor):
    """
    The form has an idempotency key; prices are read from the inventory.
    """
    post(store, visitor, "/basket", product_id=PRODUCT, unit_price="0.01")
    basket = visitor.cookies["basket"]
    page = post(store, visitor, "/basket/lines", product_id=PRODUCT, quantity=3).text
    form = {"key": hidden_key(page), "name": "Eve", "email": "eve@example.org"}
    first = post(store, visitor, "/checkout", **form, payment_method="card")
    visitor.cookies.set("basket", f"{PRODUCT}*3")
    second = post(store, visitor, "/checkout", **form, payment_method="card")
    number = int(re.search(r"/orders/(\d+)", first.url)[1])

    assert f'"{PRODUCT}*1"'.strip('"') == basket.strip('"')
    assert f"/orders/{number}?" in second.url
    assert "37.50" == store.saga.order(number)["total"]


def test_a_first_checkout_submitted_twice_registers_one_customer(store):
    """
    The second form is submitted without the customer cookie of the first response.
    """
    count = "select count(*) from shop.customers"
    ((before,),) = store.saga.rig.execute(count)
    form = {"key": uuid.uuid4().hex, "name": "Ada", "email": "ada@example.org"}
    responses = [
        requests.post(
            f"{store.address}/checkout",
            data=form,
            cookies={"basket": f"{PRODUCT}*1"},
            allow_redirects=False,
            timeout=30,
        )
        for _ in range(2)
    ]
    orders = {each.headers["Location"].partition("?")[0] for each in responses}

    assert ([303, 303], 1) == ([each.status_code for each in responses], len(orders))
    assert [(before + 1,)] == store.saga.rig.execute(count)


def test_my_orders_show_the_last_write(store, visitor):
    """
    The page waits for the LSN of the checkout, and reports the wait.
    """
    post(store, visitor, "/basket", product_id=PRODUCT)
    placed = post(
        *(store, visitor, "/checkout"),
        name="Eve",
        email="eve@example.org",
        payment_method="",
    )
    number = int(re.search(r"/orders/(\d+)", placed.url)[1])

    def page():
        return visitor.get(f"{store.address}/orders", timeout=30).text

    until(
        lambda: "Your last change is in these copies" in page(),
        "the page has the order",
    )
    assert f"Order {number}<" in page()


def test_an_order_whose_payment_is_declined_cannot_be_returned(store, visitor):
    """
    The declined payment cancels the order and releases its stock; the page shows both.
    """
    number, _ = write(store)
    pay = post(
        *(store, visitor, f"/orders/{number}/pay"), payment_method="card-declined"
    )
    store.saga.settled(number, "cancelled")
    page = visitor.get(f"{store.address}/orders/{number}").text
    refused = post(store, visitor, f"/orders/{number}/return")

    assert (200, 409) == (pay.status_code, refused.status_code)
    assert "Payment declined" in page
    assert "Stock released" in page
    assert f"Order {number} is cancelled and cannot be returned." in refused.text


def test_an_order_is_read_from_each_target_with_the_time_it_took(store, visitor):
    """
    The time is measured from the write; a read from an unknown target is refused.
    """
    number, lsn = write(store)
    path = f"{store.address}/orders/{number}/read"
    query = {"lsn": lsn, "written": "1"}

    def read(target):
        return visitor.get(path, params={"from": target, **query}, timeout=30)

    for target in ("cache", "search"):
        until(lambda target=target: read(target).ok, f"the {target} has the order")
        found = read(target).json()
        assert ("placed", True) == (found["status"], found["after_ms"] > 1_000_000)
    assert 422 == read("warehouse").status_code


def test_garbage_in_forms_cookies_and_addresses_is_refused(store, visitor):
    """
    None of it causes a server error, and nothing is ordered.
    """
    codes = [
        post(store, visitor, path, **fields).status_code
        for path, fields in (
            ("/basket", {}),
            ("/basket", {"product_id": "x"}),
            ("/basket/lines", {"product_id": str(PRODUCT), "quantity": "-1"}),
            ("/basket/lines", {"product_id": str(PRODUCT), "quantity": "9" * 5000}),
            ("/orders/1/burn", {}),
            ("/orders/99999999/cancel", {}),
        )
    ]
    for cookie in ("~~", "*", "x*1", f"{PRODUCT}*x", f"{PRODUCT}*", "x" * 3000):
        visitor.cookies.set("basket", cookie)
        page = visitor.get(f"{store.address}/basket")
        assert (200, True) == (page.status_code, "Your basket is empty" in page.text)
    visitor.cookies.set("customer", "nobody")
    pages = [
        visitor.get(f"{store.address}{path}").status_code
        for path in (
            "/?after=x",
            "/orders",
            "/find?q=%00",
            "/orders/999999999999999999",
        )
    ]

    assert [422, 422, 422, 422, 404, 404] == codes
    assert [200, 200, 200, 404] == pages


def test_a_form_from_another_site_is_refused(store, visitor):
    """Browsers state the origin of a request; reads are allowed from any site."""
    number, _ = write(store)
    forged = {"Sec-Fetch-Site": "cross-site"}
    path = f"{store.address}/orders/{number}"
    refused = visitor.post(f"{path}/cancel", headers=forged)

    assert (403, 200) == (
        refused.status_code,
        visitor.get(path, headers=forged).status_code,
    )
    assert "placed" == store.saga.order(number)["status"]


def test_every_page_has_a_content_security_policy(store, visitor):
    """
    Pages load nothing from other hosts, and have no inline script or style.
    """
    for path in (
        "/",
        "/basket",
        "/orders",
        "/find?q=a",
        "/orders/1",
        "/orders/9999999",
    ):
        page = visitor.get(store.address + path)
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert not re.search(r"<style|style=|<script>|\son\w+=|https?://", page.text)
    for name in ("store.css", "store.js", "icon.svg"):
        assert visitor.get(f"{store.address}/static/{name}").ok


def test_an_order_for_more_units_than_are_in_stock_is_canceled(store, visitor):
    """The page of the order shows the reason."""
    post(store, visitor, "/basket", product_id=SCARCE)
    post(store, visitor, "/basket/lines", product_id=SCARCE, quantity=9)
    placed = post(
        *(store, visitor, "/checkout"),
        name="Eve",
        email="eve@example.org",
        payment_method="card",
    )
    number = int(re.search(r"/orders/(\d+)", placed.url)[1])
    store.saga.settled(number, "cancelled")
    page = visitor.get(f"{store.address}/orders/{number}").text

    assert "Out of stock" in page
    assert "Order cancelled" in page


def test_the_storefront_does_not_load_spark():
    """
    Loading Spark would take seconds and memory.
    """
    program = (
        "import sys, towpath.services.storefront.__main__;"
        " sys.exit('pyspark' in sys.modules)"
    )

    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode
