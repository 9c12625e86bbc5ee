"""The saga of an order across four services, and its failures."""

import uuid

import pytest
import requests

from support import databases
from support.rig import Rig
from support.saga import PRODUCT, SCARCE, Saga
from towpath.deploy.local import ports

METRICS_PORT = ports.any_free()

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def saga(stack, tmp_path_factory):
    """Provide the services, shared by all tests; each test uses its own orders."""
    stack.up("postgres", "kafka")
    name = f"t_{uuid.uuid4().hex[:12]}"
    with databases.fresh_database(stack, name) as dsn:
        rig = Rig(dsn, stack.kafka, name, tmp_path_factory.mktemp("saga"))
        rig.configure(rig.outbox)
        rig.init()
        saga = Saga(rig, {"payments": ("--metrics-port", str(METRICS_PORT))})
        saga.start()
        yield saga
        saga.close()
        rig.close()


def test_an_order_is_reserved_paid_and_shipped(saga):
    """
    After a checkout with a payment method, the services do the rest.
    """
    order = saga.settled(saga.check_out(), "completed")

    assert {
        "stock_reserved",
        "payment_authorized",
        "payment_captured",
        "shipment_dispatched",
        "stock_sold",
    } == saga.steps(order["order_id"])
    tracking = saga.rig.one(
        "select tracking_number from shipping.shipments where order_id = %s",
        order["order_id"],
    )
    details = {one["step"]: one["detail"] for one in order["saga"]["steps"]}
    assert tracking == details["shipment_dispatched"]


def test_the_metrics_of_a_consumer_count_applied_and_written_events(saga):
    """
    A process without an API has metrics for its inbox and its outbox.
    """
    saga.settled(saga.check_out(), "completed")
    page = requests.get(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=5).text
    counts = dict(line.rsplit(" ", 1) for line in page.splitlines())
    topic = saga.rig.topic("event.order")
    applied = f'towpath_inbox_applied_total{{consumer="payments",topic="{topic}"}}'
    authorized = 'towpath_service_outbox_rows_total{event="PaymentAuthorized"}'

    assert float(counts[applied]) >= 2
    assert float(counts[authorized]) >= 1


def test_an_order_without_a_payment_method_waits_for_its_payment(saga):
    """Stock is reserved immediately; the remaining steps follow the payment."""
    number = saga.check_out(None)
    saga.reached(number, lambda o: o["saga"]["steps"])
    before = saga.order(number)["status"], saga.steps(number)
    saga.post(f"/orders/{number}/pay", {})
    saga.settled(number, "completed")

    assert ("placed", {"stock_reserved"}) == before


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("card-declined", "the card was declined"),
        ("card-unreachable", "the provider did not answer"),
        ("card-silent", "the provider did not answer"),
    ],
)
def test_an_order_that_is_not_paid_releases_its_stock(saga, method, reason):
    """
    If a silent provider has authorized the payment, the authorization is reversed.
    """
    order = saga.settled(saga.check_out(method), "cancelled")
    number = order["order_id"]
    details = {one["step"]: one["detail"] for one in order["saga"]["steps"]}
    held = "select status from payment_provider.accounts where order_id = %s"
    saga.rig.wait_for(lambda: saga.rig.one(held, number) != "authorized")

    assert (reason, "payment declined") == (
        details["payment_declined"],
        order["reason"],
    )
    assert {"payment_declined", "stock_reserved", "stock_released"} == {*details}


@pytest.mark.parametrize("method", ["card-timeout", "card-repeats"])
def test_a_repeated_call_charges_once(saga, method):
    """
    A call is repeated if its response is lost, and a repeated response is applied once.
    """
    number = saga.settled(saga.check_out(method), "completed")["order_id"]
    calls = saga.rig.execute(
        "select idempotency_key, calls from payment_provider.calls"
        " where order_id = %s order by 1",
        number,
    )
    events = saga.rig.one(
        "select version from payments.payments where order_id = %s", number
    )
    times = 2 if method == "card-timeout" else 1

    assert [(f"{number}-authorize", times), (f"{number}-capture", times)] == calls
    assert 3 == events


def test_an_order_for_a_sold_out_product_is_canceled(saga):
    """
    Each unit of a scarce product is sold once; the other orders are canceled.
    """
    numbers = [saga.check_out(product=SCARCE) for _ in range(5)]
    final = ("completed", "cancelled")
    for number in numbers:
        saga.reached(number, lambda o: o["status"] in final and o["saga"]["is_settled"])
    orders = [saga.order(number) for number in numbers]
    stock = saga.rig.execute(
        "select on_hand, reserved, sold from inventory.products where id = %s", SCARCE
    )

    assert [(0, 0, 3)] == stock
    reasons = sorted(str(order["reason"]) for order in orders)
    assert ["None"] * 3 + ["out of stock"] * 2 == reasons


def test_an_order_that_cannot_be_delivered_is_refunded(saga):
    """The payment was captured before the shipment failed."""
    order = saga.settled(saga.check_out(carrier="undeliverable"), "cancelled")

    assert "undeliverable" == order["reason"]
    assert {
        "stock_reserved",
        "payment_authorized",
        "payment_captured",
        "shipment_failed",
        "payment_refunded",
        "stock_released",
    } == saga.steps(order["order_id"])


def test_a_customer_cancels_before_the_parcel_leaves(saga):
    """
    The carrier is silent, so the paid order is not dispatched, and can be canceled.
    """
    number = saga.check_out(carrier="silent")
    saga.reached(number, lambda o: o["status"] == "paid")
    during = saga.post(f"/orders/{number}/cancel", {"reason": "too slow"})["status"]
    order = saga.settled(number, "cancelled")

    assert ("cancelling", "too slow") == (during, order["reason"])
    assert {"shipment_cancelled", "payment_refunded", "stock_released"} <= saga.steps(
        number
    )


def test_a_returned_order_is_refunded_and_its_units_are_on_hand_again(saga):
    """The returned units count as on hand, and no longer as sold."""
    units = "select on_hand, sold from inventory.products where id = %s"
    number = saga.check_out(quantity=7)
    saga.settled(number, "completed")
    on_hand, sold = saga.rig.execute(units, PRODUCT)[0]
    saga.post(f"/orders/{number}/return", {"reason": "wrong colour"})
    order = saga.settled(number, "returned")

    assert "wrong colour" == order["reason"]
    assert {"payment_refunded", "stock_returned"} <= saga.steps(number)
    assert (on_hand + 7, sold - 7) == saga.rig.execute(units, PRODUCT)[0]


def test_money_stock_and_shipments_agree_with_the_orders(saga):
    """
    After orders of each kind, money, stock and shipments agree with the orders.
    """
    methods = ("card", "card-declined", "card-repeats", "card-timeout")
    for number in range(20):
        saga.check_out(methods[number % 4])
    saga.wait_until_all_settled()

    assert [] == saga.findings()


@pytest.mark.parametrize("carrier", [None, "silent"])
def test_an_order_that_exceeds_its_deadline_is_canceled(saga, carrier):
    """
    If it is not paid or not shipped, its stock is released and any payment refunded.
    """
    number = saga.check_out("card" if carrier else None, carrier=carrier)
    waits_in = "paid" if carrier else "placed"
    saga.reached(number, lambda o: o["status"] == waits_in and o["saga"]["steps"])
    saga.rig.execute(
        "update shop.order_deadlines set deadline_at = now() - interval '1 s'"
        " where order_id = %s",
        number,
    )
    order = saga.settled(number, "cancelled")
    compensations = {"stock_released"} | ({"payment_refunded"} if carrier else set())

    assert "timed out" == order["reason"]
    assert compensations <= saga.steps(number)


def test_an_order_that_cannot_be_canceled_does_not_stop_later_ones(saga):
    """
    Each check retries the order until its cancellation succeeds.
    """
    numbers = [saga.check_out(None) for _ in range(2)]
    for number in numbers:
        saga.reached(number, lambda o: o["saga"]["steps"])
    constraint = f"check (id <> {numbers[0]} or status = 'placed') not valid"
    saga.rig.execute(f"alter table shop.orders add constraint it {constraint}")
    saga.rig.execute(
        "update shop.order_deadlines set deadline_at = now() - interval '1 h'"
        " where order_id = any(%s)",
        numbers,
    )
    saga.settled(numbers[1], "cancelled")
    before = saga.rig.execute(
        "select status from shop.orders where id = %s", numbers[0]
    )
    saga.rig.execute("alter table shop.orders drop constraint it")
    saga.settled(numbers[0], "cancelled")

    assert [("placed",)] == before


def test_orders_of_a_seeded_shop_have_stock_and_are_paid_or_canceled(saga):
    """
    Orders and reservations are seeded by separate commands; each unit is reserved once.
    """
    saga.run("orders", "seed", "--orders", "20", "--customers", "5")
    rows = saga.rig.execute(
        "select id from shop.orders left join shop.order_deadlines on order_id = id"
        " where status = 'placed' and deadline_at is null order by id"
    )
    seeded = [row[0] for row in rows]
    for _ in range(2):
        first = ("--first-order", str(seeded[0]))
        saga.run("inventory", "seed", "--orders", "20", *first)
    # With --if-empty, a shop with orders gets no more, and no stock is reserved.
    more = ("--orders", "1000", "--if-empty")
    saga.run("orders", "seed", *more)
    saga.run("inventory", "seed", *more)
    as_seeded = saga.findings(first_order=seeded[-1] + 1)
    saga.post(f"/orders/{seeded[0]}/pay", {})
    saga.settled(seeded[0], "completed")
    for number in seeded[1:]:
        saga.post(f"/orders/{number}/cancel", {})
    saga.wait_until_all_settled()

    assert 20 == len(seeded)
    assert [] == as_seeded
    assert [] == saga.findings()
    assert "stock_sold" in saga.steps(seeded[0])


def test_the_view_of_unsettled_orders_follows_the_rule_of_the_service(saga):
    """
    The demo and the load test use the view; customers see what the service computes.
    """
    number = saga.check_out(carrier="silent")
    saga.reached(number, lambda o: o["status"] == "paid")
    saga.rig.wait_for(lambda: saga.unsettled() == [number])
    ids = [row[0] for row in saga.rig.execute("select id from shop.orders")]
    open_orders = [n for n in ids if not saga.order(n)["saga"]["is_settled"]]
    saga.post(f"/orders/{number}/cancel", {})
    saga.settled(number, "cancelled")

    assert [number] == open_orders
    assert [] == saga.unsettled()
