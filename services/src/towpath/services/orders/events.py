"""
The mapping of domain events to outbox events: names, keys and payloads.

An order's event carries the order's whole state, so that a reader of the topic needs no
other data. ``GET`` returns the same state, its version and its saga. The view
``shop.order_documents`` builds the payload of each order's newest event in SQL: a
change to the payload here needs the same change to the view.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from importlib import resources
from typing import Any, Final, get_args

from sqlalchemy.orm import Session

from towpath.outbox import Events, OutboxEvent
from towpath.schemas.events import EventSchemas
from towpath.services.orders.domain import (
    AttributeValue,
    CustomerRegistered,
    CustomerState,
    DomainEvent,
    Order,
    OrderCancellationRequested,
    OrderCancelled,
    OrderCompleted,
    OrderConfirmed,
    OrderEvent,
    OrderPaid,
    OrderPaymentRequested,
    OrderReturned,
    OrderState,
    is_settled,
)
from towpath.services.plumbing.database import TRACEPARENT

SCHEMAS: Final = "towpath.services.orders.schemas"
ORDER: Final = "order"
CUSTOMER: Final = "customer"

# The field with the time of an event, for readers that get only its payload.
_MOMENTS: Final[Mapping[type[OrderEvent], str]] = {
    OrderConfirmed: "confirmed_at",
    OrderPaid: "paid_at",
    OrderCancelled: "cancelled_at",
    OrderCompleted: "completed_at",
    OrderReturned: "returned_at",
}


@functools.cache
def shop_schemas() -> EventSchemas:
    """Return the schemas of the shop's events."""
    return EventSchemas.from_folder(resources.files(SCHEMAS))


@functools.cache
def shop_events() -> Events:
    """Return the shop's event types, bound to its domain events and schemas."""
    events = Events(shop_schemas())
    events.event(
        aggregate_type=CUSTOMER,
        key="customer.customer_id",
        payload=lambda event: customer_document(event.customer),
    )(CustomerRegistered)
    for cls in get_args(OrderEvent):
        events.event(aggregate_type=ORDER, key="order.order_id", payload=_order_event)(
            cls
        )
    return events


def outbox_event(event: DomainEvent, session: Session) -> OutboxEvent:
    """Turn a domain event into an outbox event, within the request's trace."""
    return replace(
        shop_events().convert(event),
        occurred_at=_occurred_at(event),
        traceparent=session.info.get(TRACEPARENT),
    )


def order_document(order: OrderState) -> dict[str, Any]:
    """Return an order's whole state as a document; values keep their types."""
    return {
        "order_id": order.order_id,
        "customer_id": order.customer_id,
        "status": order.status,
        "total": order.total,
        "currency": order.currency,
        "lines": [
            {
                "line_no": line.line_no,
                "product_id": line.product_id,
                "quantity": line.quantity,
                "unit_price": line.unit_price,
            }
            for line in order.lines
        ],
        "note": order.note,
        "attributes": order.attributes,
        "placed_at": order.placed_at,
        "updated_at": order.updated_at,
    }


def order_view(order: Order) -> dict[str, Any]:
    """Return an order's state with its version and its saga, as ``GET`` returns it."""
    steps = sorted(order.steps.items(), key=lambda item: item[1].at)
    return order_document(order.state) | {
        "version": order.state.version,
        "payment_method": order.state.payment_method,
        "reason": order.state.cancel_reason,
        "saga": {
            "is_settled": is_settled(order),
            "steps": [
                {"step": step, "at": record.at, "detail": record.detail}
                for step, record in steps
            ],
        },
    }


def customer_document(customer: CustomerState) -> dict[str, Any]:
    """Return a customer's whole state as a document; values keep their types."""
    return {
        "customer_id": customer.customer_id,
        "name": customer.name,
        "email": customer.email,
        "active": customer.active,
        "created_at": customer.created_at,
        "updated_at": customer.updated_at,
    }


def _occurred_at(event: DomainEvent) -> datetime:
    if isinstance(event, CustomerRegistered):
        return event.customer.created_at
    return event.order.updated_at


def _order_event(event: OrderEvent) -> dict[str, Any]:
    order = event.order
    payload = order_document(order)
    payload["attributes"] = _json_text(order.attributes)
    return payload | _details(event, order.updated_at)


def _details(event: OrderEvent, at: datetime) -> dict[str, Any]:
    """Return the fields of an event's payload besides the order's state."""
    details: dict[str, Any] = {}
    if (moment := _MOMENTS.get(type(event))) is not None:
        details[moment] = at
    match event:
        case OrderPaymentRequested():
            details["payment_method"] = event.order.payment_method
        case OrderCancellationRequested() | OrderCancelled() | OrderReturned():
            details["reason"] = event.reason
        case _:
            pass
    return details


def _json_text(attributes: Mapping[str, AttributeValue] | None) -> str | None:
    """Return attributes as ``jsonb`` prints them: names by length, then by bytes."""
    if attributes is None:
        return None
    names = sorted(attributes, key=lambda name: (len(name.encode()), name.encode()))
    return json.dumps({name: attributes[name] for name in names}, ensure_ascii=False)
