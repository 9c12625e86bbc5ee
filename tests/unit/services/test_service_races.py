"""Changes in a store between two statements of a service."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import psycopg2
import pytest
from sqlalchemy.exc import IntegrityError

from towpath.services.orders.domain import (
    DEFAULT_WINDOWS,
    Order,
    OrderState,
    OrderStatus,
    deadline_of,
)
from towpath.services.orders.handlers import expire_order
from towpath.services.payments import provider
from towpath.services.payments.domain import (
    MAX_AUTHORIZATION_ATTEMPTS,
    OperationKind,
    Payment,
    PaymentOperation,
    PaymentStatus,
    ProviderAnswer,
)
from towpath.services.payments.handlers import ProviderWorker
from towpath.services.payments.provider import ProviderTimeoutError
from towpath.services.plumbing.database import DatabaseUnavailableError

PLACED_AT = datetime(2026, 1, 2, tzinfo=UTC)
LATE = PLACED_AT + timedelta(minutes=15, seconds=1)


class PaidMeanwhile:
    """The orders of a shop whose only customer pays just before the lock."""

    def __init__(self, order: Order):
        self.saved = order
        self._meanwhile = order

    def lock(self, _order_id: int) -> Order:
        self._meanwhile.request_payment("card", LATE)
        state = self._meanwhile.state
        return Order(state, stored_version=state.version)

    def overdue(self, at: datetime, *, of_order: int) -> list[int]:
        deadline_at = deadline_of(self._meanwhile.state, DEFAULT_WINDOWS)
        return [of_order] if deadline_at is not None and deadline_at < at else []

    def save(self, order: Order) -> None:
        self.saved = order


def test_an_order_paid_at_its_deadline_is_not_cancelled():
    """
    The deadline is read after locking the order, when the payment has set a new one.
    """
    state = OrderState(
        order_id=7,
        customer_id=None,
        status=OrderStatus.PLACED,
        total=Decimal("9.99"),
        currency="EUR",
        lines=(),
        note=None,
        attributes=None,
        placed_at=PLACED_AT,
        updated_at=PLACED_AT,
    )
    orders = PaidMeanwhile(Order(state))
    expire_order(7, SimpleNamespace(orders=orders), LATE)

    assert OrderStatus.PAYING is orders.saved.state.status


class AnsweredMeanwhile:
    """The payments of a shop; a second worker gets the answer during our call."""

    def __init__(self, payment: Payment):
        self.payment = payment
        self.added: list[OperationKind] = []

    def claim_operations(self, _at: datetime, _limit: int) -> list[PaymentOperation]:
        operation = PaymentOperation(
            operation_id=1,
            order_id=7,
            kind=OperationKind.AUTHORIZE,
            attempts=MAX_AUTHORIZATION_ATTEMPTS,
            amount=self.payment.amount,
            currency="EUR",
            method="card",
        )
        return [operation]

    def perform(self, operation: PaymentOperation) -> Sequence[ProviderAnswer]:
        self.payment.apply_answer(ProviderAnswer(PaymentStatus.AUTHORIZED), LATE)
        raise ProviderTimeoutError(operation.idempotency_key)

    def lock(self, _order_id: int) -> Payment:
        return dataclasses.replace(self.payment, events=[])

    def answer_operation(self, _operation: PaymentOperation, _at: datetime) -> None:
        pass

    def add_operation(self, _order_id: int, kind: OperationKind, _at: datetime) -> None:
        self.added.append(kind)


@contextlib.contextmanager
def no_transaction() -> Iterator[None]:
    """Stand in for a transaction of a store that has none."""
    yield


def test_a_late_timeout_does_not_reverse_a_payment_authorized_by_another_worker():
    """
    A worker whose lease has ended gives up, but the order is already confirmed.
    """
    status = PaymentStatus.REQUESTED
    payment = Payment(7, Decimal("9.99"), "EUR", "card", status, None, 1, PLACED_AT)
    store = AnsweredMeanwhile(payment)
    clock = SimpleNamespace(now=lambda: LATE)
    worker = ProviderWorker(no_transaction, store, clock, lambda _session: store)

    assert 1 == worker.run_due()
    assert [] == store.added


class Refusing:
    """Payments with two due operations, and a provider that fails at the first."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.performed: list[int] = []

    def claim_operations(self, _at: datetime, _limit: int) -> list[PaymentOperation]:
        return [
            PaymentOperation(
                operation_id=number,
                order_id=number,
                kind=OperationKind.CAPTURE,
                attempts=1,
                amount=Decimal("9.99"),
                currency="EUR",
                method="card",
            )
            for number in (1, 2)
        ]

    def perform(self, operation: PaymentOperation) -> Sequence[ProviderAnswer]:
        self.performed.append(operation.order_id)
        if operation.order_id == 1:
            raise self.error
        return ()


@pytest.mark.parametrize(
    "error", [ValueError("unforeseen"), DatabaseUnavailableError("a lock is held")]
)
def test_a_failed_operation_does_not_block_the_others(error):
    """
    Otherwise later operations would repeatedly wait for their lease.
    """
    store = Refusing(error)
    clock = SimpleNamespace(now=lambda: LATE)
    worker = ProviderWorker(no_transaction, store, clock, lambda _session: store)

    assert (2, [1, 2]) == (worker.run_due(), store.performed)


class CalledMeanwhile(psycopg2.IntegrityError):
    """The driver's error for a key that a concurrent call has stored."""

    diag = SimpleNamespace(constraint_name="calls_pkey")


def test_a_first_call_concurrent_with_another_gets_its_answer(monkeypatch):
    """
    Two workers may make a key's first call at once if the first one's lease has ended.
    """
    answer = ProviderAnswer(PaymentStatus.AUTHORIZED)
    outcomes = [IntegrityError("insert", {}, CalledMeanwhile()), (2, answer)]
    begun = []

    def call(books, _operation):
        begun.append(books)
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    engine = SimpleNamespace(begin=lambda: contextlib.nullcontext(object()))
    monkeypatch.setattr(provider, "_answer", call)
    (operation, _) = Refusing(ValueError()).claim_operations(LATE, 2)

    assert (answer,) == tuple(provider.SimulatedProvider(engine).perform(operation))
    # The first transaction was rolled back.
    assert 2 == len({id(books) for books in begun})
