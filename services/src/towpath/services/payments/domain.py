"""
Payments and the provider's operations: their rules and events. No I/O.

::

    payment requested --> REQUESTED --authorized--> AUTHORIZED --captured--> CAPTURED
                              |                         |                        |
                              | declined                | order cancelled        |
                              v                         v        order cancelled |
                          DECLINED                   VOIDED        or returned   v
                                                                             REFUNDED

The payment of a cancelled order may also go from REQUESTED to VOIDED.

An operation is one request to the provider. The operations of a payment are performed
one after the other, in the order in which they were recorded. A reversal undoes what
the provider did: it voids an authorization and refunds a capture. An authorization that
was never answered is reversed too, because the provider may have carried it out.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Final, NamedTuple

from towpath.schemas.clock import Backoff, time_after


class PaymentStatus(enum.StrEnum):
    """The status of a payment."""

    REQUESTED = "requested"
    AUTHORIZED = "authorized"
    DECLINED = "declined"
    CAPTURED = "captured"
    VOIDED = "voided"
    REFUNDED = "refunded"


class OperationKind(enum.StrEnum):
    """The request that an operation makes to the provider."""

    AUTHORIZE = "authorize"
    CAPTURE = "capture"
    REVERSE = "reverse"


class ProviderAnswer(NamedTuple):
    """
    The provider's answer to an operation.

    Attributes:
        status: The status of the payment at the provider.
        reason: The reason for a refusal.
    """

    status: PaymentStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOperation:
    """
    An operation that has not been answered yet.

    ``attempts`` counts the calls that were started, including the current one.
    """

    operation_id: int
    order_id: int
    kind: OperationKind
    attempts: int
    amount: Decimal
    currency: str
    method: str

    @property
    def idempotency_key(self) -> str:
        """The key by which the provider recognizes a repeated call."""
        return f"{self.order_id}-{self.kind.value}"


# An authorization without an answer after this many attempts is declined and reversed.
# Other operations are retried without a limit: money is at stake.
MAX_AUTHORIZATION_ATTEMPTS: Final = 5
NO_ANSWER: Final = "the provider did not answer"

# A call whose process died is repeated after this time.
LEASE: Final = timedelta(seconds=10)
_PAUSES: Final = Backoff(first_s=0.2, ceiling_s=30.0)


def pause_after(attempts: int) -> timedelta:
    """Return the time until an operation without an answer is tried again."""
    return timedelta(seconds=_PAUSES.bound_s(attempts - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentEvent:
    """The whole state of an order's payment after a change."""

    STATUS: ClassVar[PaymentStatus]

    order_id: int
    status: PaymentStatus
    amount: Decimal
    currency: str
    method: str
    reason: str | None
    updated_at: datetime


class PaymentAuthorized(PaymentEvent):
    """The provider holds the amount for the shop."""

    STATUS = PaymentStatus.AUTHORIZED


class PaymentDeclined(PaymentEvent):
    """The provider refused the amount, or did not answer."""

    STATUS = PaymentStatus.DECLINED


class PaymentCaptured(PaymentEvent):
    """The amount was transferred to the shop."""

    STATUS = PaymentStatus.CAPTURED


class PaymentVoided(PaymentEvent):
    """The amount is no longer held; nothing was transferred."""

    STATUS = PaymentStatus.VOIDED


class PaymentRefunded(PaymentEvent):
    """The amount was transferred back to the customer."""

    STATUS = PaymentStatus.REFUNDED


EVENTS: Final[Mapping[PaymentStatus, type[PaymentEvent]]] = {
    cls.STATUS: cls
    for cls in (
        PaymentAuthorized,
        PaymentDeclined,
        PaymentCaptured,
        PaymentVoided,
        PaymentRefunded,
    )
}

_NEXT: Final[Mapping[PaymentStatus, frozenset[PaymentStatus]]] = {
    PaymentStatus.REQUESTED: frozenset(
        {PaymentStatus.AUTHORIZED, PaymentStatus.DECLINED, PaymentStatus.VOIDED}
    ),
    PaymentStatus.AUTHORIZED: frozenset({PaymentStatus.CAPTURED, PaymentStatus.VOIDED}),
    PaymentStatus.CAPTURED: frozenset({PaymentStatus.REFUNDED}),
}


@dataclass(slots=True)
class Payment:
    """The payment of an order, and its new events."""

    order_id: int
    amount: Decimal
    currency: str
    method: str
    status: PaymentStatus
    reason: str | None
    version: int
    updated_at: datetime
    events: list[PaymentEvent] = field(default_factory=list)

    @classmethod
    def request(
        cls, order_id: int, amount: Decimal, currency: str, method: str, at: datetime
    ) -> "Payment":
        """Request a payment; the provider has not been called yet."""
        status = PaymentStatus.REQUESTED
        return cls(order_id, amount, currency, method, status, None, 1, at)

    def apply_answer(self, answer: ProviderAnswer, at: datetime) -> bool:
        """
        Apply an answer from the provider; return whether it changed the payment.

        A repeated or late answer changes nothing: the provider may give an answer more
        than once.
        """
        if answer.status not in _NEXT.get(self.status, ()):
            return False
        self.status, self.reason = answer.status, answer.reason
        self.updated_at = time_after(self.updated_at, at)
        self.version += 1
        event = EVENTS[self.status](
            order_id=self.order_id,
            status=self.status,
            amount=self.amount,
            currency=self.currency,
            method=self.method,
            reason=self.reason,
            updated_at=self.updated_at,
        )
        self.events.append(event)
        return True
