"""
One function per command, in one unit of work: no protocol, no SQL.

A handler does not commit: its caller does, so that the command and its idempotency key
are in the same transaction.
"""

import uuid
from datetime import datetime

from towpath.services.orders.commands import CancelOrder, PlaceOrder, RegisterCustomer
from towpath.services.orders.domain import (
    AmountError,
    Customer,
    CustomerState,
    Line,
    Order,
    OrderRuleError,
    OrderState,
    OrderStatus,
    total_of,
)
from towpath.services.orders.repository import OrdersUnit, UnknownCustomerError
from towpath.services.plumbing.http import (
    ConflictError,
    FieldError,
    InvalidInputError,
    NotFoundError,
)


def register_customer(
    command: RegisterCustomer, unit: OrdersUnit, at: datetime
) -> CustomerState:
    """Register a customer under a new id."""
    state = CustomerState(
        customer_id=uuid.uuid4(),
        name=command.name,
        email=command.email,
        active=True,
        created_at=at,
        updated_at=at,
    )
    unit.customers.add(Customer.register(state))
    return state


def place_order(command: PlaceOrder, unit: OrdersUnit, at: datetime) -> OrderState:
    """
    Place an order with its lines.

    Raises:
        InvalidInputError: The customer does not exist, or the total is too large.
    """
    lines = tuple(
        Line(
            line_no=number,
            product_id=line.product_id,
            quantity=line.quantity,
            unit_price=line.unit_price,
        )
        for number, line in enumerate(command.lines, start=1)
    )
    try:
        state = OrderState(
            order_id=unit.orders.next_id(),
            customer_id=command.customer_id,
            status=OrderStatus.PLACED,
            total=total_of(lines),
            currency=command.currency,
            lines=lines,
            note=command.note,
            attributes=command.attributes,
            placed_at=at,
            updated_at=at,
        )
        unit.orders.add(Order.place(state))
    except AmountError as error:
        reason = str(error)
        raise InvalidInputError(reason, [FieldError("lines", reason)]) from error
    except UnknownCustomerError as error:
        reason = "There is no such customer."
        errors = [FieldError("customer_id", reason)]
        raise InvalidInputError(reason, errors) from error
    return state


def pay_order(order_id: int, unit: OrdersUnit, at: datetime) -> OrderState:
    """
    Pay an order; paying again changes nothing.

    Raises:
        NotFoundError: There is no such order.
        ConflictError: It is cancelled.
    """
    order = _locked(order_id, unit)
    try:
        order.pay(at)
    except OrderRuleError as error:
        raise ConflictError(str(error)) from error
    return _saved(order, unit)


def cancel_order(
    order_id: int, command: CancelOrder, unit: OrdersUnit, at: datetime
) -> OrderState:
    """
    Cancel an order; cancelling again changes nothing.

    Raises:
        NotFoundError: There is no such order.
        ConflictError: It is paid.
    """
    order = _locked(order_id, unit)
    try:
        order.cancel(at, command.reason)
    except OrderRuleError as error:
        raise ConflictError(str(error)) from error
    return _saved(order, unit)


def find_order(order_id: int, unit: OrdersUnit) -> OrderState:
    """
    Read an order.

    Raises:
        NotFoundError: There is no such order.
    """
    state = unit.orders.find(order_id)
    if state is None:
        raise _no_order(order_id)
    return state


def find_customer(customer_id: uuid.UUID, unit: OrdersUnit) -> CustomerState:
    """
    Read a customer.

    Raises:
        NotFoundError: There is no such customer.
    """
    state = unit.customers.find(customer_id)
    if state is None:
        message = f"There is no customer {customer_id}."
        raise NotFoundError(message)
    return state


def _locked(order_id: int, unit: OrdersUnit) -> Order:
    order = unit.orders.lock(order_id)
    if order is None:
        raise _no_order(order_id)
    return order


def _saved(order: Order, unit: OrdersUnit) -> OrderState:
    if order.events:
        unit.orders.save(order)
    return order.state


def _no_order(order_id: int) -> NotFoundError:
    return NotFoundError(f"There is no order {order_id}.")
