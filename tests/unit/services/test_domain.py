"""The rules of an order: its transitions, and its events."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from towpath.services.orders.domain import (
    AmountError,
    Customer,
    CustomerRegistered,
    CustomerState,
    Line,
    Order,
    OrderCancelled,
    OrderPaid,
    OrderPlaced,
    OrderRuleError,
    OrderState,
    OrderStatus,
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
PAID = replace(STATE, status=OrderStatus.PAID, updated_at=LATER)
CANCELLED = replace(STATE, status=OrderStatus.CANCELLED, updated_at=LATER)


def test_placing_an_order_records_an_event():
    """
    A new order's first event carries its whole state.
    """
    assert Order.place(STATE).events == [OrderPlaced(STATE)]


def test_paying_an_order_records_an_event():
    """
    A placed order becomes paid, at the time it was, with one event of the new state.
    """
    order = Order(STATE)

    order.pay(LATER)

    assert (order.state, order.events) == (PAID, [OrderPaid(PAID)])


def test_cancelling_an_order_records_its_reason():
    """
    A placed order becomes cancelled, with one event that has the reason.
    """
    order = Order(STATE)

    order.cancel(LATER, "too late")

    cancelled = replace(CANCELLED, cancel_reason="too late")
    expected = (cancelled, [OrderCancelled(cancelled, "too late")])

    assert expected == (order.state, order.events)


def test_a_repeated_transition_records_no_event():
    """
    Paying a paid order and cancelling a cancelled one change and record nothing.
    """
    paid, cancelled = Order(PAID), Order(CANCELLED)

    paid.pay(LATER + timedelta(days=1))
    cancelled.cancel(LATER + timedelta(days=1), "again")

    expected = [(PAID, []), (CANCELLED, [])]

    assert expected == [(o.state, o.events) for o in (paid, cancelled)]


def test_an_order_has_no_way_back():
    """
    A paid order cannot be cancelled, a cancelled one not paid.

    Neither records an event.
    """
    paid, cancelled = Order(PAID), Order(CANCELLED)

    with pytest.raises(OrderRuleError, match="is paid and cannot become cancelled"):
        paid.cancel(LATER, None)
    with pytest.raises(OrderRuleError, match="is cancelled and cannot become paid"):
        cancelled.pay(LATER)

    assert [[], []] == [paid.events, cancelled.events]


def test_registering_a_customer_records_an_event():
    """
    A new customer's event carries its whole state.
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
    Quantities times prices, in decimals.
    """
    assert total_of([LINE, replace(LINE, quantity=1)]) == Decimal("29.97")


def test_a_total_at_the_bound_is_kept_and_a_cent_more_is_refused():
    """
    The bound is what the column holds.
    """
    largest = replace(LINE, quantity=1, unit_price=Decimal("9999999999.99"))
    cent = replace(LINE, quantity=1, unit_price=Decimal("0.01"))

    assert total_of([largest]) == Decimal("9999999999.99")
    with pytest.raises(AmountError, match=r"more than 9999999999\.99"):
        total_of([largest, cent])
