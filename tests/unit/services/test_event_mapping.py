"""From domain events to outbox events: every event fits its schema."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from towpath.outbox import plain
from towpath.services.orders.domain import (
    CustomerRegistered,
    CustomerState,
    DomainEvent,
    Line,
    OrderCancellationRequested,
    OrderCancelled,
    OrderCompleted,
    OrderConfirmed,
    OrderPaid,
    OrderPaymentRequested,
    OrderPlaced,
    OrderReturned,
    OrderState,
    OrderStatus,
)
from towpath.services.orders.events import outbox_event, shop_schemas

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_AMOUNT = st.decimals(0, Decimal("9999999999.99"), places=2)
_AT = st.datetimes(timezones=st.just(UTC))
_ATTRIBUTES = st.dictionaries(
    _TEXT, st.one_of(_TEXT, st.integers(), st.booleans(), st.none()), max_size=3
)
_LINE = st.builds(
    Line,
    line_no=st.integers(1, 100),
    product_id=st.uuids(),
    quantity=st.integers(1, 1_000_000),
    unit_price=_AMOUNT,
)
_ORDER = st.builds(
    OrderState,
    order_id=st.integers(1, 2**63 - 1),
    customer_id=st.uuids(),
    status=st.sampled_from(OrderStatus),
    total=_AMOUNT,
    currency=st.sampled_from(["EUR", "USD"]),
    lines=st.lists(_LINE, max_size=3).map(tuple),
    note=st.none() | _TEXT,
    attributes=st.none() | _ATTRIBUTES,
    placed_at=_AT,
    updated_at=_AT,
    payment_method=_TEXT,
)
_CUSTOMER = st.builds(
    CustomerState,
    customer_id=st.uuids(),
    name=_TEXT,
    email=_TEXT,
    active=st.booleans(),
    created_at=_AT,
    updated_at=_AT,
)
_EVENT = st.one_of(
    *(
        st.builds(cls, _ORDER)
        for cls in (
            OrderPlaced,
            OrderPaymentRequested,
            OrderConfirmed,
            OrderPaid,
            OrderCompleted,
        )
    ),
    *(
        st.builds(cls, _ORDER, st.none() | _TEXT)
        for cls in (OrderCancellationRequested, OrderCancelled, OrderReturned)
    ),
    st.builds(CustomerRegistered, _CUSTOMER),
)
ORDER = OrderState(
    order_id=7,
    customer_id=uuid.UUID(int=2),
    status=OrderStatus.CANCELLED,
    total=Decimal("19.98"),
    currency="EUR",
    lines=(
        Line(
            line_no=1,
            product_id=uuid.UUID(int=1),
            quantity=2,
            unit_price=Decimal("9.99"),
        ),
    ),
    note="Ring twice.",
    attributes={"gift": True},
    placed_at=datetime(2026, 1, 2, tzinfo=UTC),
    updated_at=datetime(2026, 1, 3, tzinfo=UTC),
)


def test_every_domain_event_has_a_schema_and_vice_versa():
    """
    No domain event lacks a schema, and no schema is unused.
    """
    assert {e.__name__ for e in get_args(DomainEvent)} == set(shop_schemas().newest)


@given(_EVENT)
def test_every_domain_event_fits_its_schema(domain_event):
    """
    No reachable state of the domain yields an event that would be refused.
    """
    event = outbox_event(domain_event, Session())

    schema = shop_schemas().check(event.type, plain(event.payload))

    assert type(domain_event).__name__ == schema.name


def test_the_event_of_a_cancelled_order_has_its_whole_state():
    """
    The event has the order's number as its key and its whole state as its payload.
    """
    session = Session()
    session.info["traceparent"] = "00-1-2-3"

    event = outbox_event(OrderCancelled(ORDER, "late"), session)

    expected = {
        "order_id": 7,
        "customer_id": "00000000-0000-0000-0000-000000000002",
        "status": "cancelled",
        "total": "19.98",
        "currency": "EUR",
        "lines": [
            {
                "line_no": 1,
                "product_id": "00000000-0000-0000-0000-000000000001",
                "quantity": 2,
                "unit_price": "9.99",
            }
        ],
        "note": "Ring twice.",
        "attributes": '{"gift": true}',
        "placed_at": "2026-01-02T00:00:00.000000Z",
        "updated_at": "2026-01-03T00:00:00.000000Z",
        "cancelled_at": "2026-01-03T00:00:00.000000Z",
        "reason": "late",
    }
    found = (event.aggregate_type, event.aggregate_id, event.traceparent)

    assert ("order", "7", "00-1-2-3") == found
    assert expected == plain(event.payload)


def test_an_event_occurred_when_its_order_changed():
    """
    The event's time is that of the state's change, not the time of writing.
    """
    paid = replace(ORDER, status=OrderStatus.PAID)

    event = outbox_event(OrderPaid(paid), Session())

    assert paid.updated_at == event.occurred_at
