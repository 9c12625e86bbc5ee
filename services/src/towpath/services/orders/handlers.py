"""
One function per command, without HTTP and without SQL.

A handler refuses a command by raising a problem from ``plumbing.http``. It does not
commit: its caller does, so that the command and its idempotency key are in the same
transaction.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from towpath.services.orders.commands import (
    CancelOrder,
    PayOrder,
    PlaceOrder,
    RegisterCustomer,
    ReturnOrder,
)
from towpath.services.orders.domain import (
    AmountError,
    Customer,
    CustomerState,
    Line,
    Order,
    OrderRuleError,
    OrderState,
    OrderStatus,
    Step,
    StepRecord,
    total_of,
)
from towpath.services.orders.repository import OrdersStore, UnknownCustomerError
from towpath.services.plumbing.http import (
    ConflictError,
    FieldError,
    IfMatch,
    InvalidInputError,
    NotFoundError,
)

ANY_VERSION: Final = IfMatch()


def register_customer(
    command: RegisterCustomer, store: OrdersStore, at: datetime
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
    store.customers.add(Customer.register(state))
    return state


def place_order(command: PlaceOrder, store: OrdersStore, at: datetime) -> Order:
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
            order_id=store.orders.next_id(),
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
        order = Order.place(state)
        if command.payment_method is not None:
            order.request_payment(command.payment_method, at)
        store.orders.add(order)
    except AmountError as error:
        reason = str(error)
        raise InvalidInputError(reason, [FieldError("lines", reason)]) from error
    except UnknownCustomerError as error:
        reason = "There is no such customer."
        errors = [FieldError("customer_id", reason)]
        raise InvalidInputError(reason, errors) from error
    return order


def pay_order(
    order_id: int,
    command: PayOrder,
    store: OrdersStore,
    at: datetime,
    expected: IfMatch = ANY_VERSION,
) -> Order:
    """
    Request the payment of an order; requesting it again changes nothing.

    Raises:
        NotFoundError: There is no such order.
        ConflictError: It is cancelled, being cancelled, or returned.
        PreconditionFailedError: Its version is not one of the expected ones.
    """
    with _changing(order_id, store, expected) as order:
        order.request_payment(command.payment_method, at)
    return order


def cancel_order(
    order_id: int,
    command: CancelOrder,
    store: OrdersStore,
    at: datetime,
    expected: IfMatch = ANY_VERSION,
) -> Order:
    """
    Cancel an order, or begin to; cancelling again changes nothing.

    Raises:
        NotFoundError: There is no such order.
        ConflictError: It is completed or returned.
        PreconditionFailedError: Its version is not one of the expected ones.
    """
    with _changing(order_id, store, expected) as order:
        order.cancel(at, command.reason)
    return order


def return_order(
    order_id: int,
    command: ReturnOrder,
    store: OrdersStore,
    at: datetime,
    expected: IfMatch = ANY_VERSION,
) -> Order:
    """
    Return the goods of an order; returning them again changes nothing.

    Raises:
        NotFoundError: There is no such order.
        ConflictError: It is neither completed nor returned.
        PreconditionFailedError: Its version is not one of the expected ones.
    """
    with _changing(order_id, store, expected) as order:
        order.return_goods(at, command.reason)
    return order


def record_step(
    order_id: int, step: Step, record: StepRecord, store: OrdersStore, at: datetime
) -> None:
    """
    Record a step that another service reports, and advance the order.

    Raises:
        NotFoundError: There is no such order.
    """
    with _changing(order_id, store) as order:
        if order.record_step(step, record, at):
            store.orders.add_step(order_id, step, record)


def expire_order(order_id: int, store: OrdersStore, at: datetime) -> None:
    """
    Cancel an order whose deadline has passed; leave any other unchanged.

    Raises:
        NotFoundError: There is no such order.
    """
    with _changing(order_id, store) as order:
        # Checked under the lock: a concurrent change may have moved the deadline.
        if order_id in store.orders.overdue(at, of_order=order_id):
            order.expire(at)


def find_order(order_id: int, store: OrdersStore) -> Order:
    """
    Read an order.

    Raises:
        NotFoundError: There is no such order.
    """
    order = store.orders.find(order_id)
    if order is None:
        raise _no_order(order_id)
    return order


def find_customer(customer_id: uuid.UUID, store: OrdersStore) -> CustomerState:
    """
    Read a customer.

    Raises:
        NotFoundError: There is no such customer.
    """
    state = store.customers.find(customer_id)
    if state is None:
        message = f"There is no customer {customer_id}."
        raise NotFoundError(message)
    return state


@contextmanager
def _changing(
    order_id: int, store: OrdersStore, expected: IfMatch = ANY_VERSION
) -> Iterator[Order]:
    """Lock an order during the block, and save its changes at the end."""
    order = store.orders.lock(order_id)
    if order is None:
        raise _no_order(order_id)
    expected.check(order.state.version)
    try:
        yield order
    except OrderRuleError as error:
        raise ConflictError(str(error)) from error
    if order.events:
        store.orders.save(order)


def _no_order(order_id: int) -> NotFoundError:
    return NotFoundError(f"There is no order {order_id}.")
