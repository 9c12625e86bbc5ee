"""
Customers and orders in their tables, one method per operation that a command needs.

Writing an aggregate also tracks it: its events are recorded in the same transaction. An
order is changed only under its row's lock. The tables are only declared here, for
SQLAlchemy; the migrations create them.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, Field
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Row,
    Select,
    Table,
    Text,
    Uuid,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox.sqlalchemy import track
from towpath.schemas.failure import DataError
from towpath.services.orders.domain import (
    DEFAULT_WINDOWS,
    UNFINISHED,
    Customer,
    CustomerState,
    Line,
    Order,
    OrderState,
    OrderStatus,
    Step,
    StepRecord,
    Windows,
    deadline_of,
)
from towpath.services.plumbing.database import UnitOfWork, constraint_of
from towpath.services.plumbing.idempotency import idempotency_table
from towpath.services.plumbing.pagination import Keyset, PageQuery

SCHEMA = "shop"
metadata = MetaData(schema=SCHEMA)

_instant = DateTime(timezone=True)
_amount = Numeric(12, 2)
_status = Enum(
    OrderStatus,
    name="order_status",
    schema=SCHEMA,
    values_callable=lambda statuses: [status.value for status in statuses],
)

customers = Table(
    "customers",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False),
    Column("active", Boolean, nullable=False, server_default=true()),
    Column("created_at", _instant, nullable=False, server_default=func.now()),
    Column("updated_at", _instant, nullable=False, server_default=func.now()),
)

orders = Table(
    "orders",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("customer_id", Uuid, ForeignKey(customers.c.id), nullable=False, index=True),
    Column("status", _status, nullable=False),
    Column("total", _amount, nullable=False),
    Column("currency", Text, nullable=False),
    Column("attributes", JSONB(none_as_null=True)),
    Column("note", Text),
    Column("placed_at", _instant, nullable=False, server_default=func.now()),
    Column("updated_at", _instant, nullable=False, server_default=func.now()),
    Column("cancel_reason", Text),
    Column("payment_method", Text),
    Column("version", Integer, nullable=False, server_default="1"),
)

order_lines = Table(
    "order_lines",
    metadata,
    Column("order_id", BigInteger, ForeignKey(orders.c.id), primary_key=True),
    Column("line_no", Integer, primary_key=True),
    Column("product_id", Uuid, nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("unit_price", _amount, nullable=False),
)

# The steps of each order's saga.
order_steps = Table(
    "order_steps",
    metadata,
    Column("order_id", BigInteger, ForeignKey(orders.c.id), primary_key=True),
    Column("step", Text, primary_key=True),
    Column("at", _instant, nullable=False),
    Column("detail", Text),
)

# The time by which the status of an order must have changed.
order_deadlines = Table(
    "order_deadlines",
    metadata,
    Column("order_id", BigInteger, ForeignKey(orders.c.id), primary_key=True),
    Column("deadline_at", _instant, nullable=False, index=True),
)

idempotency = idempotency_table(metadata)

Index("ix_shop_customers_created_at_id", customers.c.created_at, customers.c.id)
Index("ix_shop_orders_status_id", orders.c.status, orders.c.id)

_NEWEST_CUSTOMERS: Final = Keyset(
    tuple[AwareDatetime, uuid.UUID], customers.c.created_at, customers.c.id
)
_NEWEST_ORDERS: Final = Keyset(
    tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]], orders.c.id
)


# The statements that events and requests execute are built once: building a statement
# takes SQLAlchemy longer than executing it.
_ORDER_ID: Final[BindParameter[int]] = bindparam("of_order")
_FIND_ORDER: Final = select(orders).where(orders.c.id == _ORDER_ID)
_LOCK_ORDER: Final = _FIND_ORDER.with_for_update()
_FIND_LINES: Final = (
    select(order_lines)
    .where(order_lines.c.order_id == _ORDER_ID)
    .order_by(order_lines.c.line_no)
)
_FIND_STEPS: Final = select(order_steps).where(order_steps.c.order_id == _ORDER_ID)
_NEXT_ID: Final = text("select nextval(pg_get_serial_sequence('shop.orders', 'id'))")
_ADD_ORDER: Final = insert(orders)
_ADD_LINES: Final = insert(order_lines)
_ADD_STEP: Final = insert(order_steps)
_SAVE_ORDER: Final = (
    update(orders)
    .where(orders.c.id == _ORDER_ID, orders.c.version == bindparam("stored_version"))
    .returning(orders.c.id)
)
_ADD_DEADLINE: Final = upsert(order_deadlines)
_SET_DEADLINE: Final = _ADD_DEADLINE.on_conflict_do_update(
    index_elements=["order_id"],
    set_={"deadline_at": _ADD_DEADLINE.excluded.deadline_at},
)
_DELETE_DEADLINE: Final = delete(order_deadlines).where(
    order_deadlines.c.order_id == _ORDER_ID
)

OVERDUE_AT_ONCE: Final = 100
_CUSTOMER_EXISTS = "orders_customer_id_fkey"


class UnknownCustomerError(DataError):
    """The order refers to a customer that does not exist."""

    remedy = "Register the customer first."


class StaleOrderError(DataError):
    """An order was changed between its read and its write."""

    remedy = "Read the order again, and repeat the change."


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
        return None if row is None else _customer_state(row)

    def page(self, wanted: PageQuery) -> tuple[list[CustomerState], str | None]:
        """
        Read a page of customers, newest first, and the cursor of the next page.

        Raises:
            MalformedError: The cursor does not belong to this listing.
        """
        rows, cursor = _NEWEST_CUSTOMERS.page(self._session, select(customers), wanted)
        return [_customer_state(row) for row in rows], cursor


class OrderRepository:
    """The orders of one transaction."""

    def __init__(self, session: Session, windows: Windows) -> None:
        self._session = session
        self._windows = windows

    def next_id(self) -> int:
        """Return the next order's number; numbers of failed orders are not reused."""
        return int(self._session.execute(_NEXT_ID).scalar_one())

    def add(self, order: Order) -> None:
        """
        Write a new order and its lines.

        Raises:
            UnknownCustomerError: Its customer does not exist.
        """
        track(self._session, order)
        try:
            self._session.execute(_ADD_ORDER, _order_row(order.state))
        except IntegrityError as error:
            if constraint_of(error) == _CUSTOMER_EXISTS:
                raise UnknownCustomerError from error
            raise
        self._session.execute(_ADD_LINES, _line_rows(order.state))
        self._set_deadline(order.state)

    def save(self, order: Order) -> None:
        """
        Write the changes to an order that ``lock`` returned.

        Raises:
            StaleOrderError: The row no longer has the version that was locked.
        """
        track(self._session, order)
        row = {
            "of_order": order.state.order_id,
            "stored_version": order.stored_version,
            "status": order.state.status,
            "updated_at": order.state.updated_at,
            "cancel_reason": order.state.cancel_reason,
            "payment_method": order.state.payment_method,
            "version": order.state.version,
        }
        if self._session.scalar(_SAVE_ORDER, row) is None:
            message = f"Order {order.state.order_id} was changed by somebody else."
            raise StaleOrderError(message)
        self._set_deadline(order.state)

    def add_step(self, order_id: int, step: Step, record: StepRecord) -> None:
        """Write a step of an order that ``lock`` returned."""
        row = {
            "order_id": order_id,
            "step": step.value,
            "at": record.at,
            "detail": record.detail,
        }
        self._session.execute(_ADD_STEP, row)

    def overdue(
        self, at: datetime, *, skipped: int = 0, of_order: int | None = None
    ) -> Sequence[int]:
        """
        Return the numbers of up to ``OVERDUE_AT_ONCE`` overdue orders.

        The earliest deadlines come first.

        Args:
            at: The current time.
            skipped: The number of orders to skip, from the earliest deadline on.
            of_order: Only this order, if its deadline has passed.
        """
        query = select(order_deadlines.c.order_id).where(
            order_deadlines.c.deadline_at < at
        )
        if of_order is not None:
            query = query.where(order_deadlines.c.order_id == of_order)
        in_turn = query.order_by(
            order_deadlines.c.deadline_at, order_deadlines.c.order_id
        )
        some = in_turn.offset(skipped).limit(OVERDUE_AT_ONCE)
        return self._session.scalars(some).all()

    def lock(self, order_id: int) -> Order | None:
        """Lock an order's row for a change, and return the order with its steps."""
        state = self._read(_LOCK_ORDER, order_id)
        if state is None:
            return None
        return Order(state, self._steps(order_id), state.version)

    def find(self, order_id: int) -> Order | None:
        """Read an order with its steps."""
        state = self._read(_FIND_ORDER, order_id)
        return None if state is None else Order(state, self._steps(order_id))

    def _set_deadline(self, state: OrderState) -> None:
        deadline_at = deadline_of(state, self._windows)
        if deadline_at is None:
            self._session.execute(_DELETE_DEADLINE, {"of_order": state.order_id})
            return
        row = {"order_id": state.order_id, "deadline_at": deadline_at}
        self._session.execute(_SET_DEADLINE, row)

    def _steps(self, order_id: int) -> dict[Step, StepRecord]:
        rows = self._session.execute(_FIND_STEPS, {"of_order": order_id}).all()
        return {Step(row.step): StepRecord(row.at, row.detail) for row in rows}

    def _read(self, query: Select[Any], order_id: int) -> OrderState | None:
        of_order = {"of_order": order_id}
        row = self._session.execute(query, of_order).one_or_none()
        if row is None:
            return None
        return _state(row, self._session.execute(_FIND_LINES, of_order).all())

    def page(
        self,
        wanted: PageQuery,
        *,
        customer_id: uuid.UUID | None = None,
        status: OrderStatus | None = None,
    ) -> tuple[list[OrderState], str | None]:
        """
        Read a page of orders, newest first, and the cursor of the next page.

        Args:
            wanted: The cursor and the limit.
            customer_id: Only orders of this customer.
            status: Only orders with this status.

        Raises:
            MalformedError: The cursor does not belong to this listing.
        """
        query = select(orders)
        if customer_id is not None:
            query = query.where(orders.c.customer_id == customer_id)
        if status is not None:
            query = query.where(orders.c.status == status)
        rows, cursor = _NEWEST_ORDERS.page(self._session, query, wanted)
        of_page = order_lines.c.order_id.in_([row.id for row in rows])
        lines = select(order_lines).where(of_page).order_by(order_lines.c.line_no)
        by_order: dict[int, list[Row[Any]]] = {row.id: [] for row in rows}
        for line in self._session.execute(lines):
            by_order[line.order_id].append(line)
        return [_state(row, by_order[row.id]) for row in rows], cursor


def _customer_state(row: Row[Any]) -> CustomerState:
    return CustomerState(
        customer_id=row.id,
        name=row.name,
        email=row.email,
        active=row.active,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


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
        "payment_method": state.payment_method,
        "version": state.version,
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
        payment_method=row.payment_method,
        cancel_reason=row.cancel_reason,
        version=row.version,
    )


def count_unfinished(session: Session) -> Mapping[str, int]:
    """Count the orders with an unfinished saga by status, using only an index."""
    is_unfinished = orders.c.status.in_(UNFINISHED)
    query = select(orders.c.status, func.count()).where(is_unfinished)
    counts: dict[str, int] = dict.fromkeys(UNFINISHED, 0)
    counts.update(session.execute(query.group_by(orders.c.status)).tuples().all())
    return counts


class OrdersStore:
    """The customers and orders of one transaction."""

    def __init__(self, session: Session, windows: Windows) -> None:
        self.customers = CustomerRepository(session)
        self.orders = OrderRepository(session, windows)


class OrdersUnit(UnitOfWork):
    """One transaction over customers and orders."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        traceparent: str | None = None,
        windows: Windows = DEFAULT_WINDOWS,
    ) -> None:
        super().__init__(sessions, traceparent)
        self._windows = windows

    @cached_property
    def store(self) -> OrdersStore:
        """The customers and orders in this transaction."""
        return OrdersStore(self.session, self._windows)
