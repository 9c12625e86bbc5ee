"""The rules of an order: its transitions, and its events."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from towpath.services.orders.domain import (
    DECLINED,
    OUT_OF_STOCK,
    TIMED_OUT,
    UNDELIVERABLE,
    AmountError,
    Customer,
    CustomerRegistered,
    CustomerState,
    Line,
    Order,
    OrderCancellationRequested,
    OrderCancelled,
    OrderCompleted,
    OrderConfirmed,
    OrderPaid,
    OrderPaymentRequested,
    OrderPlaced,
    OrderRuleError,
    OrderState,
    OrderStatus,
    Step,
    StepRecord,
    Windows,
    deadline_of,
    total_of,
)

AT = datetime(2026, 1, 2, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)
LINE = Line(
    line_no=1, product_id=uuid.UUID(int=1), quantity=2, unit_price=Decimal("9.99")
)
STATE = OrderState(
    order_id=7,
    customer_id=uuid.UUID(int=2),
    status=OrderStatus.PLACED,
    total=Decimal("19.98"),
    currency="EUR",
    lines=(LINE,),
    note=None,
    attributes=None,
    placed_at=AT,
    updated_at=AT,
)
PAYING = replace(
    STATE, status=OrderStatus.PAYING, updated_at=LATER, payment_method="card", version=2
)
CANCELLED = replace(STATE, status=OrderStatus.CANCELLED, updated_at=LATER, version=2)
RECORD = StepRecord(AT, None)


def test_placing_an_order_records_an_event():
    """
    A new order's first event has its whole state.
    """
    assert Order.place(STATE).events == [OrderPlaced(STATE)]


def test_requesting_a_payment_records_an_event():
    """
    A placed order becomes paying, with one event of the new state.
    """
    order = Order(STATE)

    order.request_payment("card", LATER)

    assert (PAYING, [OrderPaymentRequested(PAYING)]) == (order.state, order.events)


def test_a_change_is_later_than_the_previous_one():
    """
    A request may wait longer for the order's row than a later request does.
    """
    order = Order(replace(PAYING, updated_at=LATER))

    order.cancel(AT, None)

    assert order.state.updated_at == LATER + timedelta(microseconds=1)


def test_cancelling_an_open_order_records_its_reason():
    """
    A placed order becomes cancelled, with one event that has the reason.
    """
    order = Order(STATE)

    order.cancel(LATER, "too late")

    cancelled = replace(CANCELLED, cancel_reason="too late")
    expected = (cancelled, [OrderCancelled(cancelled, "too late")])

    assert expected == (order.state, order.events)


@pytest.mark.parametrize("status", [OrderStatus.CONFIRMED, OrderStatus.PAID])
def test_cancelling_an_order_in_delivery_first_asks_shipping(status):
    """
    Only shipping knows whether the parcel has left; meanwhile the order is cancelling.
    """
    order = Order(replace(PAYING, status=status))

    order.cancel(LATER, "too late")

    assert OrderStatus.CANCELLING == order.state.status
    assert [OrderCancellationRequested(order.state, "too late")] == order.events


def test_a_repeated_transition_records_no_event():
    """
    Paying a paying order and cancelling a cancelled one change nothing.
    """
    paying, cancelled = Order(PAYING), Order(CANCELLED)

    paying.request_payment("card", LATER + timedelta(days=1))
    cancelled.cancel(LATER + timedelta(days=1), "again")

    expected = [(PAYING, []), (CANCELLED, [])]

    assert expected == [(o.state, o.events) for o in (paying, cancelled)]


def test_an_order_cannot_go_back():
    """
    Completed orders cannot be cancelled, cancelled ones paid, or placed ones returned.

    None of these attempts records an event.
    """
    completed = Order(replace(STATE, status=OrderStatus.COMPLETED))
    cancelled, placed = Order(CANCELLED), Order(STATE)

    with pytest.raises(OrderRuleError, match="is completed and cannot be cancelled"):
        completed.cancel(LATER, None)
    with pytest.raises(OrderRuleError, match="is cancelled and cannot be paid"):
        cancelled.request_payment("card", LATER)
    with pytest.raises(OrderRuleError, match="is placed and cannot be returned"):
        placed.return_goods(LATER, None)

    assert [[], [], []] == [each.events for each in (completed, cancelled, placed)]


@pytest.mark.parametrize("step", [Step.STOCK_RESERVED, Step.PAYMENT_AUTHORIZED])
def test_an_order_is_not_confirmed_by_one_of_two_steps(step):
    """
    Stock without an authorized payment, or the reverse, leaves the order paying.
    """
    order = Order(PAYING)
    order.record_step(step, RECORD, LATER)

    assert (OrderStatus.PAYING, []) == (order.state.status, order.events)


@pytest.mark.parametrize(
    "steps",
    [
        (Step.STOCK_RESERVED, Step.PAYMENT_AUTHORIZED),
        (Step.PAYMENT_AUTHORIZED, Step.STOCK_RESERVED),
    ],
)
def test_an_order_is_confirmed_once_stock_and_payment_are_ready(steps):
    """
    The order of the two steps does not matter; a repeated step changes nothing.
    """
    order = Order(PAYING)
    recorded = [order.record_step(step, RECORD, LATER) for step in (*steps, steps[0])]

    assert [True, True, False] == recorded
    assert [OrderConfirmed(order.state)] == order.events


def test_a_step_that_arrives_early_takes_effect_later():
    """
    Steps arrive in separate topics: the end of a delivery may precede its beginning.
    """
    order = Order(PAYING)
    for step in (Step.SHIPMENT_DISPATCHED, Step.PAYMENT_CAPTURED):
        order.record_step(step, RECORD, LATER)
    assert [] == order.events
    for step in (Step.PAYMENT_AUTHORIZED, Step.STOCK_RESERVED):
        order.record_step(step, RECORD, LATER)

    types = [type(event) for event in order.events]

    assert [OrderConfirmed, OrderPaid, OrderCompleted] == types


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step.STOCK_REJECTED, OUT_OF_STOCK),
        (Step.PAYMENT_DECLINED, DECLINED),
    ],
)
def test_a_refusal_of_stock_or_payment_cancels_an_open_order(step, reason):
    """
    The reason names the service that refused.
    """
    order = Order(PAYING)
    order.record_step(step, RECORD, LATER)

    assert [OrderCancelled(order.state, reason)] == order.events


@pytest.mark.parametrize(
    ("step", "status", "reason"),
    [
        (Step.SHIPMENT_DISPATCHED, OrderStatus.COMPLETED, "too late"),
        (Step.SHIPMENT_CANCELLED, OrderStatus.CANCELLED, "too late"),
        (Step.SHIPMENT_FAILED, OrderStatus.CANCELLED, UNDELIVERABLE),
    ],
)
def test_shipping_decides_the_outcome_of_a_cancelling_order(step, status, reason):
    """
    A parcel that has left completes the order; any other answer cancels it.
    """
    order = Order(replace(PAYING, status=OrderStatus.PAID))
    order.cancel(LATER, "too late")
    order.record_step(step, RECORD, LATER)

    assert (status, reason) == (order.state.status, order.state.cancel_reason)


@pytest.mark.parametrize(
    ("status", "deadline"),
    [
        (OrderStatus.PLACED, AT + timedelta(seconds=1)),
        (OrderStatus.PAYING, AT + timedelta(seconds=2)),
        (OrderStatus.CONFIRMED, AT + timedelta(seconds=3)),
        (OrderStatus.PAID, AT + timedelta(seconds=3)),
        (OrderStatus.CANCELLING, None),
        (OrderStatus.COMPLETED, None),
        (OrderStatus.CANCELLED, None),
        (OrderStatus.RETURNED, None),
    ],
)
def test_only_an_order_that_waits_for_a_step_has_a_deadline(status, deadline):
    """
    Payment, confirmation and delivery each have a deadline.
    """
    one, two, three = (timedelta(seconds=n) for n in (1, 2, 3))
    windows = Windows(payment=one, confirmation=two, delivery=three)

    assert deadline == deadline_of(replace(STATE, status=status), windows)


def test_an_overdue_order_is_cancelled_or_recalled_once():
    """
    Final and cancelling orders are left as they are.
    """
    open_order = Order(PAYING)
    in_delivery = Order(replace(PAYING, status=OrderStatus.PAID))
    completed = Order(replace(PAYING, status=OrderStatus.COMPLETED))
    for order in (open_order, in_delivery, completed):
        order.expire(LATER)
        order.expire(LATER)

    assert [OrderCancelled(open_order.state, TIMED_OUT)] == open_order.events
    assert [
        OrderCancellationRequested(in_delivery.state, TIMED_OUT)
    ] == in_delivery.events
    assert [] == completed.events


def test_registering_a_customer_records_an_event():
    """
    A new customer's event has its whole state.
    """
    state = CustomerState(
        customer_id=uuid.UUID(int=3),
        name="Ada",
        email="ada@example.org",
        active=True,
        created_at=AT,
        updated_at=AT,
    )

    assert Customer.register(state).events == [CustomerRegistered(state)]


def test_the_total_is_the_sum_of_the_lines():
    """
    Quantities times prices are added up as decimals.
    """
    assert total_of([LINE, replace(LINE, quantity=1)]) == Decimal("29.97")


def test_a_total_at_the_limit_is_accepted_and_a_cent_more_is_refused():
    """
    The limit is the column's largest value.
    """
    largest = replace(LINE, quantity=1, unit_price=Decimal("9999999999.99"))
    cent = replace(LINE, quantity=1, unit_price=Decimal("0.01"))

    assert total_of([largest]) == Decimal("9999999999.99")
    with pytest.raises(AmountError, match=r"more than 9999999999\.99"):
        total_of([largest, cent])
