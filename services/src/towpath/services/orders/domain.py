"""
Customers and orders: their state, their rules and their events. No I/O, no framework.

::

    place --> PLACED --pay--> PAYING --> CONFIRMED --> PAID --> COMPLETED --> RETURNED
                 |              |            |          |           ^
                 +------+-------+            +----+-----+           |
                        | cancelled,              | cancelled,      | dispatched
                        | refused, timed out      | timed out       |
                        v                         v                 |
                    CANCELLED <--recalled--- CANCELLING ------------+

The other services report what they did as steps: stock reserved, payment authorized,
shipment dispatched. A step is recorded once, in whatever order the steps arrive;
then the order advances as far as its steps allow. After the order is confirmed, the
parcel may already be on its way: only shipping knows whether it can be recalled, so the
order is CANCELLING until shipping has reported the outcome. A failed shipment cancels
the order.

An order's ``state`` is a value that each change replaces as a whole; the change is
recorded in ``events``. A repeated change has no effect and records no event. Each
change is later than the previous one, by at least a microsecond.
"""

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple, NoReturn

from towpath.schemas.clock import time_after
from towpath.schemas.failure import DataError

# The largest numeric(12,2).
MAX_AMOUNT: Final = Decimal("9999999999.99")

AttributeValue = str | int | bool | None


class OrderStatus(enum.StrEnum):
    """The status of an order."""

    PLACED = "placed"
    PAYING = "paying"
    CONFIRMED = "confirmed"
    PAID = "paid"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    RETURNED = "returned"


class Step(enum.StrEnum):
    """A step of an order's saga, as another service reported it."""

    STOCK_RESERVED = "stock_reserved"
    STOCK_REJECTED = "stock_rejected"
    STOCK_RELEASED = "stock_released"
    STOCK_SOLD = "stock_sold"
    STOCK_RETURNED = "stock_returned"
    PAYMENT_AUTHORIZED = "payment_authorized"
    PAYMENT_DECLINED = "payment_declined"
    PAYMENT_CAPTURED = "payment_captured"
    PAYMENT_VOIDED = "payment_voided"
    PAYMENT_REFUNDED = "payment_refunded"
    SHIPMENT_DISPATCHED = "shipment_dispatched"
    SHIPMENT_FAILED = "shipment_failed"
    SHIPMENT_CANCELLED = "shipment_cancelled"


class StepRecord(NamedTuple):
    """The time of a step by the clock of its service, and a remark such as a reason."""

    at: datetime
    detail: str | None


# The cancellation reasons that the service itself gives.
OUT_OF_STOCK: Final = "out of stock"
DECLINED: Final = "payment declined"
UNDELIVERABLE: Final = "undeliverable"
TIMED_OUT: Final = "timed out"

_OPEN: Final = (OrderStatus.PLACED, OrderStatus.PAYING)
_IN_DELIVERY: Final = (OrderStatus.CONFIRMED, OrderStatus.PAID)
# The saga of an order with one of these statuses has not ended.
UNFINISHED: Final = (*_OPEN, *_IN_DELIVERY, OrderStatus.CANCELLING)


class OrderRuleError(DataError):
    """The order's state does not allow the change."""

    remedy = "Read the order again: its status has changed."


class AmountError(DataError):
    """The order's total is more than its column can hold."""

    remedy = "Place several smaller orders."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of an order; ``line_no`` counts from 1."""

    line_no: int
    product_id: uuid.UUID
    quantity: int
    unit_price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderState:
    """The whole state of an order at one point in time."""

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
    payment_method: str | None = None
    cancel_reason: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """An order was placed."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderPaymentRequested:
    """The customer chose a payment method: the order's amount is to be authorized."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderConfirmed:
    """Stock is reserved; the authorized amount is to be captured."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderPaid:
    """The amount was captured: the order is to be shipped."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderCancellationRequested:
    """The shipment is to be cancelled unless it is already on its way."""

    order: OrderState
    reason: str | None


@dataclass(frozen=True, slots=True)
class OrderCancelled:
    """An order was cancelled: its stock is to be released and its payment reversed."""

    order: OrderState
    reason: str | None


@dataclass(frozen=True, slots=True)
class OrderCompleted:
    """The order was dispatched: its stock is sold."""

    order: OrderState


@dataclass(frozen=True, slots=True)
class OrderReturned:
    """The customer returned the goods: the amount is to be refunded."""

    order: OrderState
    reason: str | None


OrderEvent = (
    OrderPlaced
    | OrderPaymentRequested
    | OrderConfirmed
    | OrderPaid
    | OrderCancellationRequested
    | OrderCancelled
    | OrderCompleted
    | OrderReturned
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerState:
    """The whole state of a customer at one point in time."""

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


DomainEvent = OrderEvent | CustomerRegistered


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
    """
    An order, the steps of its saga, its rules, and its new events.

    ``stored_version`` is the version of the locked row; 0 if no row was locked.
    """

    state: OrderState
    steps: dict[Step, StepRecord] = field(default_factory=dict)
    stored_version: int = 0
    events: list[DomainEvent] = field(default_factory=list)

    @classmethod
    def place(cls, state: OrderState) -> "Order":
        """Place a new order."""
        return cls(state, events=[OrderPlaced(state)])

    def request_payment(self, method: str, at: datetime) -> None:
        """
        Request payment by a method; a repeated request changes nothing.

        Raises:
            OrderRuleError: The order is cancelled, being cancelled, or returned.
        """
        if self.state.status is OrderStatus.PLACED:
            self.state = replace(self.state, payment_method=method)
            self._move(OrderStatus.PAYING, at)
            self.events.append(OrderPaymentRequested(self.state))
            self._advance(at)
        elif self.state.status in (
            OrderStatus.CANCELLING,
            OrderStatus.CANCELLED,
            OrderStatus.RETURNED,
        ):
            self._refuse("be paid")

    def cancel(self, at: datetime, reason: str | None) -> None:
        """
        Cancel the order, or begin to; a repeated cancellation changes nothing.

        Raises:
            OrderRuleError: The order is completed or returned.
        """
        if self.state.status in _OPEN:
            self._cancel(at, reason)
        elif self.state.status in _IN_DELIVERY:
            self.state = replace(self.state, cancel_reason=reason)
            self._move(OrderStatus.CANCELLING, at)
            self.events.append(OrderCancellationRequested(self.state, reason))
            self._advance(at)
        elif self.state.status in (OrderStatus.COMPLETED, OrderStatus.RETURNED):
            self._refuse("be cancelled")

    def expire(self, at: datetime) -> None:
        """
        Cancel the order because a step is late.

        An order that is final or CANCELLING does not change.
        """
        if self.state.status in (*_OPEN, *_IN_DELIVERY):
            self.cancel(at, TIMED_OUT)

    def return_goods(self, at: datetime, reason: str | None) -> None:
        """
        Return the goods of a completed order; a returned order does not change.

        Raises:
            OrderRuleError: The order is not completed.
        """
        if self.state.status is OrderStatus.RETURNED:
            return
        if self.state.status is not OrderStatus.COMPLETED:
            self._refuse("be returned")
        self.state = replace(self.state, cancel_reason=reason)
        self._move(OrderStatus.RETURNED, at)
        self.events.append(OrderReturned(self.state, reason))

    def record_step(self, step: Step, record: StepRecord, at: datetime) -> bool:
        """Record a step and advance the order; return False for a repeated step."""
        if step in self.steps:
            return False
        self.steps[step] = record
        self._advance(at)
        return True

    def _advance(self, at: datetime) -> None:
        """Move the order as far as its steps allow."""
        while self._advance_once(at):
            pass

    def _advance_once(self, at: datetime) -> bool:
        steps = self.steps
        match self.state.status:
            case OrderStatus.PLACED | OrderStatus.PAYING:
                if Step.STOCK_REJECTED in steps:
                    return self._cancel(at, OUT_OF_STOCK)
                if Step.PAYMENT_DECLINED in steps:
                    return self._cancel(at, DECLINED)
                if {Step.STOCK_RESERVED, Step.PAYMENT_AUTHORIZED} <= steps.keys():
                    self._move(OrderStatus.CONFIRMED, at)
                    self.events.append(OrderConfirmed(self.state))
                    return True
            case OrderStatus.CONFIRMED if Step.PAYMENT_CAPTURED in steps:
                self._move(OrderStatus.PAID, at)
                self.events.append(OrderPaid(self.state))
                return True
            case OrderStatus.PAID | OrderStatus.CANCELLING:
                return self._end_delivery(at)
            case _:
                pass
        return False

    def _end_delivery(self, at: datetime) -> bool:
        if Step.SHIPMENT_DISPATCHED in self.steps:
            self._move(OrderStatus.COMPLETED, at)
            self.events.append(OrderCompleted(self.state))
            return True
        if Step.SHIPMENT_FAILED in self.steps:
            return self._cancel(at, UNDELIVERABLE)
        if Step.SHIPMENT_CANCELLED in self.steps:
            return self._cancel(at, self.state.cancel_reason)
        return False

    def _cancel(self, at: datetime, reason: str | None) -> bool:
        self.state = replace(self.state, cancel_reason=reason)
        self._move(OrderStatus.CANCELLED, at)
        self.events.append(OrderCancelled(self.state, reason))
        return True

    def _move(self, status: OrderStatus, at: datetime) -> None:
        at = time_after(self.state.updated_at, at)
        version = self.state.version + 1
        self.state = replace(self.state, status=status, updated_at=at, version=version)

    def _refuse(self, verb: str) -> NoReturn:
        number, status = self.state.order_id, self.state.status.value
        message = f"Order {number} is {status} and cannot {verb}."
        raise OrderRuleError(message)


class Windows(NamedTuple):
    """
    The longest time that an order may wait in each stage.

    Attributes:
        payment: From placement until a payment is requested.
        confirmation: From that request until stock and payment are confirmed.
        delivery: From confirmation until capture, then from capture until dispatch.
    """

    payment: timedelta = timedelta(minutes=15)
    confirmation: timedelta = timedelta(minutes=15)
    delivery: timedelta = timedelta(minutes=15)


DEFAULT_WINDOWS: Final = Windows()


def deadline_of(state: OrderState, windows: Windows) -> datetime | None:
    """Return the time by which an order's status must have changed, if there is one."""
    match state.status:
        case OrderStatus.PLACED:
            return state.updated_at + windows.payment
        case OrderStatus.PAYING:
            return state.updated_at + windows.confirmation
        case OrderStatus.CONFIRMED | OrderStatus.PAID:
            return state.updated_at + windows.delivery
        case _:
            return None


_STOCK_ENDS: Final = {
    OrderStatus.COMPLETED: {Step.STOCK_SOLD},
    OrderStatus.CANCELLED: {Step.STOCK_REJECTED, Step.STOCK_RELEASED},
    OrderStatus.RETURNED: {Step.STOCK_RETURNED},
}
_PAYMENT_ENDS: Final = {
    OrderStatus.COMPLETED: {Step.PAYMENT_CAPTURED},
    OrderStatus.CANCELLED: {
        Step.PAYMENT_DECLINED,
        Step.PAYMENT_VOIDED,
        Step.PAYMENT_REFUNDED,
    },
    OrderStatus.RETURNED: {Step.PAYMENT_REFUNDED},
}


def is_settled(order: Order) -> bool:
    """Return whether an order, its stock and its payment are all final."""
    status, steps = order.state.status, order.steps.keys()
    if status not in _STOCK_ENDS or not _STOCK_ENDS[status] & steps:
        return False
    was_to_be_paid = order.state.payment_method is not None
    return not was_to_be_paid or bool(_PAYMENT_ENDS[status] & steps)


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
