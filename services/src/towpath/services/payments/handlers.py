"""
One function per order event, and the worker that calls the provider.

The functions for events do not commit: the inbox does, with its record of the event.
The worker claims operations in one transaction, calls the provider outside any
transaction, and records each answer in another transaction: no row is locked during a
call.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import structlog
from sqlalchemy.orm import Session

from towpath.schemas.clock import Clock
from towpath.schemas.failure import log_failure
from towpath.services.payments.domain import (
    MAX_AUTHORIZATION_ATTEMPTS,
    NO_ANSWER,
    OperationKind,
    Payment,
    PaymentOperation,
    PaymentStatus,
    ProviderAnswer,
    pause_after,
)
from towpath.services.payments.provider import Provider, ProviderTimeoutError
from towpath.services.payments.repository import PaymentRepository

# Few enough that the last operation is answered long before the leases expire.
_CLAIMED_AT_ONCE: Final = 20

log = structlog.get_logger(__name__)


def request(
    order: Mapping[str, Any], payments: PaymentRepository, at: datetime
) -> None:
    """Request the payment of an order, unless the order already has one."""
    payment = Payment.request(
        order["order_id"],
        Decimal(order["total"]),
        order["currency"],
        order["payment_method"],
        at,
    )
    if payments.add(payment):
        payments.add_operation(payment.order_id, OperationKind.AUTHORIZE, at)


def capture(
    order: Mapping[str, Any], payments: PaymentRepository, at: datetime
) -> None:
    """Capture the payment of a confirmed order."""
    payments.add_operation(order["order_id"], OperationKind.CAPTURE, at)


def reverse(
    order: Mapping[str, Any], payments: PaymentRepository, at: datetime
) -> None:
    """Void or refund the payment of an order that is cancelled or returned."""
    payment = payments.lock(order["order_id"])
    if payment is not None and payment.status is not PaymentStatus.DECLINED:
        payments.add_operation(payment.order_id, OperationKind.REVERSE, at)


Handler = Callable[[Mapping[str, Any], PaymentRepository, datetime], None]

# The order events that concern payments.
ORDER_EVENTS: Final[Mapping[str, Handler]] = {
    "OrderPaymentRequested": request,
    "OrderConfirmed": capture,
    "OrderCancelled": reverse,
    "OrderReturned": reverse,
}

Begin = Callable[[], AbstractContextManager[Session]]


class ProviderWorker:
    """Calls the provider for operations that are due; workers may run in parallel."""

    def __init__(
        self,
        begin: Begin,
        provider: Provider,
        clock: Clock,
        store: Callable[[Session], PaymentRepository] = PaymentRepository,
    ) -> None:
        """
        Store the parameters.

        Args:
            begin: Opens a transaction, yields its session, and commits at the end.
            provider: The provider.
            clock: Gives the time of claims, changes and pauses.
            store: Makes the repository of a transaction.
        """
        self._begin = begin
        self._provider = provider
        self._clock = clock
        self._store = store

    def run_due(self) -> int:
        """
        Call the provider for operations that are due; return how many there were.

        An operation that fails is due again after its lease.

        Raises:
            UnavailableError: No operations could be claimed.
        """
        with self._begin() as session:
            now = self._clock.now()
            due = self._store(session).claim_operations(now, _CLAIMED_AT_ONCE)
        for operation in due:
            # An operation that always fails must not block the others.
            try:
                self._perform(operation)
            except Exception as error:  # noqa: BLE001 - including the driver's own
                log_failure(
                    log,
                    "payment operation not performed",
                    error,
                    order_id=operation.order_id,
                    operation=operation.kind.value,
                )
        return len(due)

    def _perform(self, operation: PaymentOperation) -> None:
        try:
            answers = self._provider.perform(operation)
        except ProviderTimeoutError as error:
            log.info(
                "payment operation not answered",
                order_id=operation.order_id,
                operation=operation.kind.value,
                attempts=operation.attempts,
                reason=str(error),
            )
            self._take_timeout(operation)
            return
        for answer in answers:
            self._take(operation, answer)

    def _take_timeout(self, operation: PaymentOperation) -> None:
        """Postpone an operation; decline an authorization after its last attempt."""
        is_authorization = operation.kind is OperationKind.AUTHORIZE
        if is_authorization and operation.attempts >= MAX_AUTHORIZATION_ATTEMPTS:
            self._take(operation, ProviderAnswer(PaymentStatus.DECLINED, NO_ANSWER))
            return
        with self._begin() as session:
            due_at = self._clock.now() + pause_after(operation.attempts)
            self._store(session).postpone_operation(operation, due_at)

    def _take(self, operation: PaymentOperation, answer: ProviderAnswer) -> None:
        """Record an answer; reverse an authorization that was given up."""
        with self._begin() as session:
            payments, now = self._store(session), self._clock.now()
            payment = payments.lock(operation.order_id)
            # After the lease, another worker may have recorded the provider's answer.
            if payment is not None and payment.apply_answer(answer, now):
                payments.save(payment)
                if answer.reason == NO_ANSWER:
                    kind = OperationKind.REVERSE
                    payments.add_operation(operation.order_id, kind, now)
            payments.answer_operation(operation, now)
