"""
Payments and their operations in tables.

A saved payment is tracked: its events are recorded in the same transaction. A process
claims an operation for a limited time; if the process dies, another process calls
the provider again. The tables are only declared here; the migrations create them.
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
    Update,
    bindparam,
    exists,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
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

_SAME_ORDER: Final = payments.c.order_id == bindparam("of_order")
_FIND: Final = select(payments).where(_SAME_ORDER)
_LOCK: Final = _FIND.with_for_update()
_ADD: Final = insert(payments).on_conflict_do_nothing().returning(payments.c.order_id)
_SAVE: Final = update(payments).where(_SAME_ORDER)
_ADD_OPERATION: Final = insert(operations).on_conflict_do_nothing()
_ANSWER: Final = update(operations).where(operations.c.id == bindparam("operation"))
_POSTPONE: Final = _ANSWER.where(operations.c.answered_at.is_(None))


def _claim() -> Update:
    """Return the statement that claims due operations, one per payment."""
    earlier = operations.alias("earlier")
    is_not_first = exists(
        select(earlier.c.id)
        .where(earlier.c.order_id == operations.c.order_id)
        .where(earlier.c.id < operations.c.id)
        .where(earlier.c.answered_at.is_(None))
    )
    due = (
        select(operations.c.id)
        .where(operations.c.answered_at.is_(None))
        .where(operations.c.due_at <= bindparam("at"))
        .where(~is_not_first)
        .order_by(operations.c.due_at)
        .limit(bindparam("most"))
        .with_for_update(skip_locked=True)
        # Evaluated once: a subquery that a join scans again would claim further rows.
        .cte("due")
    )
    return (
        update(operations)
        .where(operations.c.id == due.c.id)
        .where(payments.c.order_id == operations.c.order_id)
        .values(attempts=operations.c.attempts + 1, due_at=bindparam("lease_until"))
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


_CLAIM: Final = _claim()


class PaymentRepository:
    """The payments of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, payment: Payment) -> bool:
        """Write a new payment; return False if the order already has one."""
        return self._session.execute(_ADD, _payment_row(payment)).first() is not None

    def save(self, payment: Payment) -> None:
        """Write the changes to a payment that was locked."""
        track(self._session, payment)
        of_order = {"of_order": payment.order_id}
        self._session.execute(_SAVE, of_order | _payment_row(payment))

    def lock(self, order_id: int) -> Payment | None:
        """Lock the row of an order's payment, and read it."""
        return self._payment(_LOCK, order_id)

    def find(self, order_id: int) -> Payment | None:
        """Read an order's payment."""
        return self._payment(_FIND, order_id)

    def add_operation(self, order_id: int, kind: OperationKind, at: datetime) -> None:
        """Record an operation, unless the payment already has one of this kind."""
        row = {"order_id": order_id, "kind": kind.value, "due_at": at}
        self._session.execute(_ADD_OPERATION, row)

    def claim_operations(self, at: datetime, limit: int) -> Sequence[PaymentOperation]:
        """
        Claim due operations for ``LEASE``; per payment, only the first unanswered one.

        Args:
            at: The current time.
            limit: The maximum number of operations to claim.
        """
        values = {"at": at, "lease_until": at + LEASE, "most": limit}
        rows = self._session.execute(_CLAIM, values).all()
        return sorted(map(_operation, rows), key=lambda one: one.operation_id)

    def answer_operation(self, operation: PaymentOperation, at: datetime) -> None:
        """Record that an operation has been answered."""
        row = {"operation": operation.operation_id, "answered_at": at}
        self._session.execute(_ANSWER, row)

    def postpone_operation(self, operation: PaymentOperation, due_at: datetime) -> None:
        """Record when an unanswered operation is due again."""
        row = {"operation": operation.operation_id, "due_at": due_at}
        self._session.execute(_POSTPONE, row)

    def _payment(self, query: Select[Any], order_id: int) -> Payment | None:
        row = self._session.execute(query, {"of_order": order_id}).one_or_none()
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
