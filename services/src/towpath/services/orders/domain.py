"""
Customers and orders: their state, their rules and their events. No I/O, no framework.

::

    place --> PLACED --pay--> PAID
                 |
                 +---cancel--> CANCELLED

An order's ``state`` is a value that each change replaces as a whole; the change is
recorded in ``events``. A repeated change has no effect and records no event.
"""

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from towpath.schemas.failure import DataError

# The largest numeric(12,2).
MAX_AMOUNT: Final = Decimal("9999999999.99")

AttributeValue = str | int | bool | None


class OrderStatus(enum.StrEnum):
    """The status of an order."""

    PLACED = "placed"
    PAID = "paid"
    CANCELLED = "cancelled"


class OrderRuleError(DataError):
    """The order's state does not allow the change."""

    remedy = "Read the order again: its status has changed."


class AmountError(DataError):
    """The order's total is more than its column holds."""

    remedy = "Place several smaller orders."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One product of an order; ``line_no`` counts from 1."""

    line_no: int
    product_id: uuid.UUID
    quantity: int
    unit_price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderState:
    """The whole state of an order at one moment."""

    order_id: int
    customer_id: uuid.UUID
    status: OrderStatus
    total: Decimal
    currency: str
    lines: tuple[Line, ...]
    note: str | None
    attributes: Mapping[str, AttributeValue] | None
    placed_at: datetime
    updated_at: datetime
    cancel_reason: str | None = None


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """An order was placed."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderPaid:
    """An order was paid."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderCancelled:
    """An order was cancelled; the customer wrote the ``reason``."""

    order: OrderState
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerState:
    """The whole state of a customer at one moment."""

    customer_id: uuid.UUID
    name: str
    email: str
    active: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class CustomerRegistered:
    """A customer was registered."""

    customer: CustomerState


DomainEvent = OrderPlaced | OrderPaid | OrderCancelled | CustomerRegistered


@dataclass(slots=True)
class Customer:
    """A customer and its new events."""

    state: CustomerState
    events: list[DomainEvent] = field(default_factory=list)

    @classmethod
    def register(cls, state: CustomerState) -> "Customer":
        """Register a new customer."""
        return cls(state, [CustomerRegistered(state)])


@dataclass(slots=True)
class Order:
    """An order, its rules, and its new events."""

    state: OrderState
    events: list[DomainEvent] = field(default_factory=list)

    @classmethod
    def place(cls, state: OrderState) -> "Order":
        """Place a new order."""
        return cls(state, [OrderPlaced(state)])

    def pay(self, at: datetime) -> None:
        """
        Pay the order; a paid one stays as it is.

        Raises:
            OrderRuleError: It is cancelled.
        """
        if self._move(OrderStatus.PAID, at):
            self.events.append(OrderPaid(self.state))

    def cancel(self, at: datetime, reason: str | None) -> None:
        """
        Cancel the order; a cancelled one stays as it is.

        Raises:
            OrderRuleError: It is paid.
        """
        if self._move(OrderStatus.CANCELLED, at):
            self.state = replace(self.state, cancel_reason=reason)
            self.events.append(OrderCancelled(self.state, reason))

    def _move(self, status: OrderStatus, at: datetime) -> bool:
        if self.state.status is status:
            return False
        if self.state.status is not OrderStatus.PLACED:
            message = (
                f"Order {self.state.order_id} is {self.state.status.value} and"
                f" cannot become {status.value}."
            )
            raise OrderRuleError(message)
        self.state = replace(self.state, status=status, updated_at=at)
        return True


def total_of(lines: Sequence[Line]) -> Decimal:
    """
    Add up the lines.

    Raises:
        AmountError: The sum is more than an order may cost.
    """
    total = sum((line.quantity * line.unit_price for line in lines), Decimal("0.00"))
    if total > MAX_AMOUNT:
        message = f"The lines add up to more than {MAX_AMOUNT}."
        raise AmountError(message)
    return total
