"""The storefront over the whole shop: own writes read, and pages without scripts."""

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
    """Provide the shop; reads wait for one second at most."""
    stack.up("postgres", "kafka", "redis", "opensearch")
    name = f"t_{uuid.uuid4().hex[:12]}"
    with databases.fresh_database(stack, name) as dsn:
        rig = Rig(dsn, stack.kafka, name, tmp_path_factory.mktemp("store"))
        with whole_store(rig, stack, **{"--wait-seconds": "1"}) as made:
            # The sinks have met all topics, so that they lag by what a test makes.
            write(made)
            until(lambda: own_orders(made), "the first order is read")
            yield made
        rig.close()


def write(store):
    """Place an order; return its number, and the LSN of the answer."""
    line = {"product_id": str(PRODUCT), "quantity": 1, "unit_price": "12.50"}
    body = {"customer_id": store.saga.customer, "lines": [line]}
    response = store.saga.client.post("/orders", json=body)
    return response.json["order_id"], response.headers["Towpath-Lsn"]


def own_orders(store, lsn=None):
    """Return the numbers of the customer's orders on the first page."""
    answer = store.get(f"/customers/{store.saga.customer}/orders", lsn)
    items = answer.json()["items"] if answer.ok else []
    return [order["order_id"] for order in items]


@pytest.mark.parametrize("held", ["cache", "search"])
def test_a_read_with_an_lsn_waits_for_every_sink_that_serves_it(store, held):
    """
    While a sink lags, the read is refused, never old; then it has the write.
    """
    path = f"/customers/{store.saga.customer}/orders"
    with store.sinks[held].held():
        number, lsn = write(store)
        reason = f"the sink {held} has"
        until(lambda: reason in store.get(path, lsn).text, "the sink alone lags")
        refused = store.get(path, lsn)
    until(lambda: store.get(path, lsn).ok, "the sink has caught up")
    answer = store.get(path, lsn)
    newest = answer.json()["items"][0]
    freshness = answer.json()["freshness"]

    assert (503, True) == (refused.status_code, int(refused.headers["Retry-After"]) > 0)
    assert (number, "cache") == (newest["order_id"], newest["served_from"])
    assert (lsn, {"cache", "search"}) == (
        *(freshness["lsn"], set(freshness["waited_ms"])),
    )


def test_a_search_waits_for_the_index_alone(store):
    """A cache that lags does not delay what it does not serve."""
    with store.sinks["cache"].held():
        number, lsn = write(store)
        until(lambda: store.get("/search", lsn, q=number).ok, "the index has it")
        found = store.get("/search", lsn, q=number).json()

    assert [number] == [order["order_id"] for order in found["orders"]]
    assert {"search"} == set(found["freshness"]["waited_ms"])


@pytest.mark.parametrize("lsn", ["0/1", "FFFFFFFF/0"])
def test_an_lsn_of_another_history_is_refused(store, lsn):
    """Nobody can wait for it: it lies before the relay's start, or behind the log."""
    answer = store.get("/search", lsn, q="1")

    assert (400, "Towpath-Lsn") == (
        *(answer.status_code, answer.json()["errors"][0]["field"]),
    )


@pytest.fixture
def visitor(store):
    """Provide a browser without scripts, whose requests keep cookies."""
    with requests.Session() as session:
        session.get(store.address).raise_for_status()
        yield session


def post(store, visitor, path, **fields):
    """Send a form."""
    return visitor.post(store.address + path, data=fields, timeout=30)


def hidden_key(page):
    """Return the key of a checkout's form."""
    return re.search(r'name="key" value="([0-9a-f]{32})"', page)[1]


def test_a_check_out_that_is_sent_twice_places_one_order(store, visitor):
    """
    The form's key is the idempotency key; prices come from inventory.
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


def test_a_first_check_out_that_is_sent_twice_registers_one_customer(store):
    """
    Neither answer has set the customer's cookie when the other form is sent.
    """
    count = "select count(*) from shop.customers"
    ((before,),) = store.saga.rig.execute(count)
    form = {"key": uuid.uuid4().hex, "name": "Ada", "email": "ada@example.org"}
    answers = [
        requests.post(
            f"{store.address}/checkout",
            data=form,
            cookies={"basket": f"{PRODUCT}*1"},
            allow_redirects=False,
            timeout=30,
        )
        for _ in range(2)
    ]
    places = {answer.headers["Location"].partition("?")[0] for answer in answers}

    assert ([303, 303], 1) == ([answer.status_code for answer in answers], len(places))
    assert [(before + 1,)] == store.saga.rig.execute(count)


def test_my_orders_show_the_last_write(store, visitor):
    """
    The page waits for the LSN of the checkout, and reports how long.
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

    until(lambda: "Your last change is in these copies" in page(), "the page has it")
    assert f"Order {number}<" in page()


def test_an_order_is_paid_cancelled_and_refused_on_its_page(store, visitor):
    """
    A declined payment cancels the order, which then cannot be returned.
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
    The time is measured from the write; a read of another target is refused.
    """
    number, lsn = write(store)
    path = f"{store.address}/orders/{number}/read"
    given = {"lsn": lsn, "written": "1"}

    def read(target):
        return visitor.get(path, params={"from": target, **given}, timeout=30)

    for target in ("cache", "search"):
        until(lambda target=target: read(target).ok, f"the {target} has it")
        found = read(target).json()
        assert ("placed", True) == (found["status"], found["after_ms"] > 1_000_000)
    assert 422 == read("warehouse").status_code


def test_garbage_in_forms_cookies_and_addresses_is_refused(store, visitor):
    """
    None of it is a failure, and nothing is ordered.
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


def test_a_form_of_another_site_is_refused(store, visitor):
    """A browser names the origin of a request; what may be read stays readable."""
    number, _ = write(store)
    forged = {"Sec-Fetch-Site": "cross-site"}
    path = f"{store.address}/orders/{number}"
    refused = visitor.post(f"{path}/cancel", headers=forged)

    assert (403, 200) == (
        refused.status_code,
        visitor.get(path, headers=forged).status_code,
    )
    assert "placed" == store.saga.order(number)["status"]


def test_every_page_and_file_comes_with_the_policy(store, visitor):
    """
    Nothing is loaded from elsewhere, and no page has a script or a style of its own.
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


def test_more_than_there_is_can_be_ordered_and_is_cancelled(store, visitor):
    """The page of the order shows why."""
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


def test_the_storefront_waits_without_the_engine():
    """
    Its process never loads Spark, whose start takes seconds and memory.
    """
    program = (
        "import sys, towpath.services.storefront.__main__;"
        " sys.exit('pyspark' in sys.modules)"
    )

    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode
