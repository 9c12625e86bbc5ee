"""
Payments and their operations in tables.

A payment that is written is tracked too: its events are recorded in the same
transaction. An operation is claimed for a time: its process may die, and then another
one makes the call again. The migrations create the tables.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
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
    UniqueConstraint,
    exists,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from towpath.outbox.sqlalchemy import track
from towpath.services.payments.domain import (
    LEASE,
    OperationKind,
    Payment,
    PaymentOperation,
    PaymentStatus,
)

SCHEMA: Final = "payments"
metadata = MetaData(schema=SCHEMA)

_instant = DateTime(timezone=True)

payments = Table(
    "payments",
    metadata,
    Column("order_id", BigInteger, primary_key=True, autoincrement=False),
    Column("amount", Numeric(12, 2), nullable=False),
    Column("currency", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("version", Integer, nullable=False),
    Column("updated_at", _instant, nullable=False),
)

operations = Table(
    "operations",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("order_id", BigInteger, ForeignKey(payments.c.order_id), nullable=False),
    Column("kind", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("due_at", _instant, nullable=False),
    Column("answered_at", _instant),
    UniqueConstraint("order_id", "kind", name="operations_order_id_kind_key"),
)
Index(
    "ix_payments_operations_due_at",
    operations.c.due_at,
    postgresql_where=operations.c.answered_at.is_(None),
)


class PaymentRepository:
    """The payments of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, payment: Payment) -> bool:
        """Write a new payment; return False if the order has one."""
        new = upsert(payments).values(_payment_row(payment)).on_conflict_do_nothing()
        inserted = new.returning(payments.c.order_id)
        return self._session.execute(inserted).first() is not None

    def save(self, payment: Payment) -> None:
        """Write the changes of a payment that was locked."""
        track(self._session, payment)
        changed = (
            update(payments)
            .where(payments.c.order_id == payment.order_id)
            .values(_payment_row(payment))
        )
        self._session.execute(changed)

    def lock(self, order_id: int) -> Payment | None:
        """Read an order's payment under its row's lock."""
        return self._payment(select(payments).with_for_update(), order_id)

    def find(self, order_id: int) -> Payment | None:
        """Read an order's payment."""
        return self._payment(select(payments), order_id)

    def add_operation(self, order_id: int, kind: OperationKind, at: datetime) -> None:
        """Write an operation down, unless the payment has one of its kind."""
        row = {"order_id": order_id, "kind": kind.value, "due_at": at}
        self._session.execute(upsert(operations).values(row).on_conflict_do_nothing())

    def claim_operations(self, at: datetime, limit: int) -> Sequence[PaymentOperation]:
        """
        Claim operations that are due, for ``LEASE``; of each payment only the first.

        Args:
            at: The present time.
            limit: The highest number of operations.
        """
        earlier = operations.alias("earlier")
        is_not_first = exists(
            select(earlier.c.id)
            .where(earlier.c.order_id == operations.c.order_id)
            .where(earlier.c.id < operations.c.id)
            .where(earlier.c.answered_at.is_(None))
        )
        due = (
            select(operations.c.id)
            .where(operations.c.answered_at.is_(None), operations.c.due_at <= at)
            .where(~is_not_first)
            .order_by(operations.c.due_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        claimed = (
            update(operations)
            .where(operations.c.id.in_(due.scalar_subquery()))
            .where(payments.c.order_id == operations.c.order_id)
            .values(attempts=operations.c.attempts + 1, due_at=at + LEASE)
            .returning(
                operations.c.id,
                operations.c.order_id,
                operations.c.kind,
                operations.c.attempts,
                payments.c.amount,
                payments.c.currency,
                payments.c.method,
            )
        )
        rows = self._session.execute(claimed).all()
        return sorted(map(_operation, rows), key=lambda one: one.operation_id)

    def answer_operation(self, operation: PaymentOperation, at: datetime) -> None:
        """Write down that an operation has its answer."""
        answered = (
            update(operations)
            .where(operations.c.id == operation.operation_id)
            .values(answered_at=at)
        )
        self._session.execute(answered)

    def postpone_operation(self, operation: PaymentOperation, due_at: datetime) -> None:
        """Write down when an operation is due again."""
        postponed = (
            update(operations)
            .where(operations.c.id == operation.operation_id)
            .where(operations.c.answered_at.is_(None))
            .values(due_at=due_at)
        )
        self._session.execute(postponed)

    def _payment(self, query: Select[Any], order_id: int) -> Payment | None:
        of_order = query.where(payments.c.order_id == order_id)
        row = self._session.execute(of_order).one_or_none()
        return None if row is None else _payment(row)


def _payment(row: Row[Any]) -> Payment:
    return Payment(
        order_id=row.order_id,
        amount=row.amount,
        currency=row.currency,
        method=row.method,
        status=PaymentStatus(row.status),
        reason=row.reason,
        version=row.version,
        updated_at=row.updated_at,
    )


def _payment_row(payment: Payment) -> dict[str, object]:
    return {
        "order_id": payment.order_id,
        "amount": payment.amount,
        "currency": payment.currency,
        "method": payment.method,
        "status": payment.status.value,
        "reason": payment.reason,
        "version": payment.version,
        "updated_at": payment.updated_at,
    }


def _operation(row: Row[Any]) -> PaymentOperation:
    return PaymentOperation(
        operation_id=row.id,
        order_id=row.order_id,
        kind=OperationKind(row.kind),
        attempts=row.attempts,
        amount=row.amount,
        currency=row.currency,
        method=row.method,
    )
