"""
Customers and orders in their tables, one method for each thing the commands need.

Writing an aggregate also has it tracked: what it says is recorded in the same
transaction. An order is changed only under its row's lock.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from towpath.outbox import track
from towpath.schemas.failure import DataError
from towpath.services.orders.domain import (
    Customer,
    CustomerState,
    Line,
    Order,
    OrderState,
)
from towpath.services.orders.tables import customers, order_lines, orders
from towpath.services.plumbing.database import constraint_of

_CUSTOMER_EXISTS = "orders_customer_id_fkey"


class UnknownCustomerError(DataError):
    """The order names a customer that does not exist."""

    remedy = "Register the customer first."


class CustomerRepository:
    """The customers of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, customer: Customer) -> None:
        """Write a new customer."""
        track(self._session, customer)
        state = customer.state
        row = {
            "id": state.customer_id,
            "name": state.name,
            "email": state.email,
            "active": state.active,
            "created_at": state.created_at,
            "updated_at": state.updated_at,
        }
        self._session.execute(insert(customers), row)

    def find(self, customer_id: uuid.UUID) -> CustomerState | None:
        """Read a customer."""
        query = select(customers).where(customers.c.id == customer_id)
        row = self._session.execute(query).one_or_none()
        if row is None:
            return None
        return CustomerState(
            customer_id=row.id,
            name=row.name,
            email=row.email,
            active=row.active,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


class OrderRepository:
    """The orders of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def next_id(self) -> int:
        """Take the next order's number; numbers of failed orders are not used again."""
        sequence = "nextval(pg_get_serial_sequence('shop.orders', 'id'))"
        return int(self._session.execute(text(f"select {sequence}")).scalar_one())

    def add(self, order: Order) -> None:
        """
        Write a new order and its lines.

        Raises:
            UnknownCustomerError: Its customer does not exist.
        """
        track(self._session, order)
        try:
            self._session.execute(insert(orders), _order_row(order.state))
        except IntegrityError as error:
            if constraint_of(error) == _CUSTOMER_EXISTS:
                raise UnknownCustomerError from error
            raise
        self._session.execute(insert(order_lines), _line_rows(order.state))

    def save(self, order: Order) -> None:
        """Write what may change of an order that ``lock`` gave."""
        track(self._session, order)
        changed = (
            update(orders)
            .where(orders.c.id == order.state.order_id)
            .values(
                status=order.state.status,
                updated_at=order.state.updated_at,
                cancel_reason=order.state.cancel_reason,
            )
        )
        self._session.execute(changed)

    def lock(self, order_id: int) -> Order | None:
        """Read an order to change it; others who want to change it wait."""
        state = self._read(select(orders).with_for_update(), order_id)
        return None if state is None else Order(state)

    def find(self, order_id: int) -> OrderState | None:
        """Read an order."""
        return self._read(select(orders), order_id)

    def _read(self, query: Select[Any], order_id: int) -> OrderState | None:
        row = self._session.execute(query.where(orders.c.id == order_id)).one_or_none()
        if row is None:
            return None
        of_order = order_lines.c.order_id == order_id
        lines = select(order_lines).where(of_order).order_by(order_lines.c.line_no)
        return _state(row, self._session.execute(lines).all())


def _order_row(state: OrderState) -> dict[str, Any]:
    return {
        "id": state.order_id,
        "customer_id": state.customer_id,
        "status": state.status,
        "total": state.total,
        "currency": state.currency,
        "attributes": None if state.attributes is None else dict(state.attributes),
        "note": state.note,
        "placed_at": state.placed_at,
        "updated_at": state.updated_at,
    }


def _line_rows(state: OrderState) -> list[dict[str, Any]]:
    return [
        {
            "order_id": state.order_id,
            "line_no": line.line_no,
            "product_id": line.product_id,
            "quantity": line.quantity,
            "unit_price": line.unit_price,
        }
        for line in state.lines
    ]


def _state(row: Row[Any], lines: Sequence[Row[Any]]) -> OrderState:
    return OrderState(
        order_id=row.id,
        customer_id=row.customer_id,
        status=row.status,
        total=row.total,
        currency=row.currency,
        lines=tuple(
            Line(
                line_no=line.line_no,
                product_id=line.product_id,
                quantity=line.quantity,
                unit_price=line.unit_price,
            )
            for line in lines
        ),
        note=row.note,
        attributes=row.attributes,
        placed_at=row.placed_at,
        updated_at=row.updated_at,
        cancel_reason=row.cancel_reason,
    )
