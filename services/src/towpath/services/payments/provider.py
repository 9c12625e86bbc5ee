"""
A simulated payment provider that declines, times out, and repeats its answers.

It represents an external system: it has its own schema, ``payment_provider``, and
commits on its own connections, so that its books do not change when a caller dies or
rolls back. The payment method, a token, decides how it behaves:

==================  ================================================================
card                it answers immediately
card-declined       it refuses
card-timeout        it carries out each operation, but its first answer is lost
card-unreachable    it never answers an authorization, and does not carry it out
card-silent         it never answers an authorization, but carries it out
card-repeats        it gives each answer twice
==================  ================================================================

A call whose idempotency key was used before is answered from the books.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    MetaData,
    Numeric,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError

from towpath.schemas.failure import UnavailableError
from towpath.services.payments.domain import (
    OperationKind,
    PaymentOperation,
    PaymentStatus,
    ProviderAnswer,
)
from towpath.services.plumbing.database import constraint_of, translated

DECLINED: Final = "card-declined"
TIMEOUT: Final = "card-timeout"
UNREACHABLE: Final = "card-unreachable"
SILENT: Final = "card-silent"
REPEATS: Final = "card-repeats"

REFUSAL: Final = "the card was declined"

SCHEMA: Final = "payment_provider"
metadata = MetaData(schema=SCHEMA)

# One row for each order: the money that the provider holds or has transferred.
accounts = Table(
    "accounts",
    metadata,
    Column("order_id", BigInteger, primary_key=True, autoincrement=False),
    Column("status", Text, nullable=False),
    Column("amount", Numeric(12, 2), nullable=False),
    Column("currency", Text, nullable=False),
)

# One row for each idempotency key: the answer, and the number of calls.
calls = Table(
    "calls",
    metadata,
    Column("idempotency_key", Text, primary_key=True),
    Column("order_id", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("calls", BigInteger, nullable=False, server_default="1"),
    Column(
        "made_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
)


_KEY_EXISTS: Final = "calls_pkey"


class ProviderTimeoutError(UnavailableError):
    """The provider has not answered; it may have carried out the operation."""

    remedy = "Do nothing: the call is repeated under its idempotency key."


class Provider(Protocol):
    """A payment provider."""

    def perform(self, operation: PaymentOperation) -> Sequence[ProviderAnswer]:
        """
        Perform an operation; return each answer that the provider gave.

        Raises:
            ProviderTimeoutError: There was no answer.
        """


class SimulatedProvider:
    """Implements ``Provider`` with tables in the database of an engine."""

    def __init__(self, engine: Engine) -> None:
        """Store the engine; no connection is opened."""
        self._engine = engine

    def perform(self, operation: PaymentOperation) -> Sequence[ProviderAnswer]:
        is_authorization = operation.kind is OperationKind.AUTHORIZE
        if is_authorization and operation.method == UNREACHABLE:
            raise _timeout(operation)
        with translated():
            count, answer = self._call(operation)
        if is_authorization and operation.method == SILENT:
            raise _timeout(operation)
        if count == 1 and operation.method == TIMEOUT:
            raise _timeout(operation)
        return (answer,) * (2 if operation.method == REPEATS else 1)

    def _call(self, operation: PaymentOperation) -> tuple[int, ProviderAnswer]:
        """Enter a call in the books; return the number of calls, and the answer."""
        try:
            with self._engine.begin() as books:
                return _answer(books, operation)
        except IntegrityError as error:
            if constraint_of(error) != _KEY_EXISTS:
                raise
        # After the lease, another worker may make the first call at the same time. It
        # has committed, so the books have its answer.
        with self._engine.begin() as books:
            return _answer(books, operation)


def _timeout(operation: PaymentOperation) -> ProviderTimeoutError:
    key = operation.idempotency_key
    return ProviderTimeoutError(
        f"The payment provider has not answered the call {key}."
    )


def _answer(
    books: Connection, operation: PaymentOperation
) -> tuple[int, ProviderAnswer]:
    """Carry out a key's first call; return the number of calls, and the answer."""
    again = (
        update(calls)
        .where(calls.c.idempotency_key == operation.idempotency_key)
        .values(calls=calls.c.calls + 1)
        .returning(calls.c.calls, calls.c.status, calls.c.reason)
    )
    row = books.execute(again).one_or_none()
    if row is not None:
        return row.calls, ProviderAnswer(PaymentStatus(row.status), row.reason)
    answer = _carry_out(books, operation)
    new = {
        "idempotency_key": operation.idempotency_key,
        "order_id": operation.order_id,
        "status": answer.status.value,
        "reason": answer.reason,
    }
    books.execute(insert(calls), new)
    return 1, answer


_REACHED: Final = {
    OperationKind.AUTHORIZE: PaymentStatus.AUTHORIZED,
    OperationKind.CAPTURE: PaymentStatus.CAPTURED,
    OperationKind.REVERSE: PaymentStatus.VOIDED,
}


def _carry_out(books: Connection, operation: PaymentOperation) -> ProviderAnswer:
    account = select(accounts.c.status).where(accounts.c.order_id == operation.order_id)
    held = books.scalar(account.with_for_update())
    answer = ProviderAnswer(_REACHED[operation.kind])
    if operation.kind is OperationKind.AUTHORIZE and operation.method == DECLINED:
        answer = ProviderAnswer(PaymentStatus.DECLINED, REFUSAL)
    elif operation.kind is OperationKind.REVERSE and held == PaymentStatus.CAPTURED:
        answer = ProviderAnswer(PaymentStatus.REFUNDED)
    row = {
        "order_id": operation.order_id,
        "status": answer.status.value,
        "amount": operation.amount,
        "currency": operation.currency,
    }
    written = upsert(accounts).values(row)
    status = {"status": answer.status.value}
    books.execute(
        written.on_conflict_do_update(index_elements=["order_id"], set_=status)
    )
    return answer
