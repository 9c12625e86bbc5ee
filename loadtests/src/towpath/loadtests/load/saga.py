"""
The saga of an order as its customer sees it, and the totals of a run.

Some customers read their order until it is settled: its status is final, and stock and
payment have caught up with it. The services record the times, so these do not depend
on how often a customer reads. Each time is measured from the customer's last command:
the checkout with a payment method, the payment, the cancellation or the return.

A watched order becomes entries in Locust's statistics, as requests do, so that the
counts of several processes add up: entries such as ``SAGA completed`` hold the time
until the order was settled, and entries such as ``STEP stock_reserved`` the time until
the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from towpath.loadtests.load.samples import Latency
from towpath.loadtests.load.series import Row, Totals

SAGA: Final = "SAGA"
STEP: Final = "STEP"

# Names of entries that are not outcomes.
PAID_AT_CHECKOUT: Final = "paid at checkout"
FROM_CHECKOUT: Final = "checkout to settled"
NOT_SETTLED: Final = "not settled"
NOT_WATCHED: Final = "not watched"
_OTHERS: Final = (PAID_AT_CHECKOUT, FROM_CHECKOUT, NOT_SETTLED, NOT_WATCHED)

COMPLETED: Final = "completed"
DECLINED: Final = "cancelled: payment declined"
BY_CUSTOMER: Final = "cancelled: by the customer"
# Other reasons are free text from customers.
_REASONS: Final = ("out of stock", "payment declined", "undeliverable", "timed out")

# The steps that undo an earlier one.
COMPENSATIONS: Final = (
    "stock_released",
    "stock_returned",
    "payment_voided",
    "payment_refunded",
    "shipment_cancelled",
)

_SECOND_MS: Final = 1_000.0


class SettledOrder(NamedTuple):
    """
    The outcome and the times of a settled order.

    Attributes:
        outcome: The status; for a cancelled order also the reason.
        took_ms: Milliseconds from the customer's command to the last step or update.
        steps: Milliseconds from the command to each step that followed it.
    """

    outcome: str
    took_ms: float
    steps: Mapping[str, float]


def updated_at(order: Mapping[str, Any]) -> datetime:
    """Return the time of an order's last update."""
    return datetime.fromisoformat(order["updated_at"])


def settled(order: Mapping[str, Any], since: datetime) -> SettledOrder | None:
    """Return how an order was settled after a command; None if it is not settled."""
    saga = order["saga"]
    if not saga["is_settled"]:
        return None
    times = {
        one["step"]: _ms_between(since, datetime.fromisoformat(one["at"]))
        for one in saga["steps"]
    }
    # A step before the command belongs to an earlier command.
    steps = {name: time_ms for name, time_ms in times.items() if time_ms >= 0}
    moved_ms = _ms_between(since, updated_at(order))
    return SettledOrder(_outcome(order), max(moved_ms, 0.0, *steps.values()), steps)


def _ms_between(since: datetime, at: datetime) -> float:
    return (at - since).total_seconds() * _SECOND_MS


def _outcome(order: Mapping[str, Any]) -> str:
    status, reason = str(order["status"]), order["reason"]
    if status != "cancelled":
        return status
    return f"{status}: {reason}" if reason in _REASONS else BY_CUSTOMER


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaReport:
    """
    The watched orders of a run.

    Attributes:
        watched: Orders that customers read, whether or not they were settled in time.
        not_settled: Orders that were not settled when the customer stopped reading.
        not_watched: Orders that were not read because too many others were.
        from_checkout: The time from a checkout with a payment method until the order
            was settled.
        outcomes: The time from the last command until an order was settled, by status
            and reason.
        steps: The time from the last command to each step of the settled orders.
        compensations: The number of steps that undid an earlier one.
    """

    watched: int
    not_settled: int
    not_watched: int
    from_checkout: Latency
    outcomes: dict[str, Latency]
    steps: dict[str, Latency]
    compensations: dict[str, int]


def saga_report(rows: Mapping[Row, Totals]) -> SagaReport:
    """Sum up the watched orders of all processes, from the rows of the statistics."""
    sagas, steps = _rows_of_kind(rows, SAGA), _rows_of_kind(rows, STEP)
    outcomes = {n: latency_of(one) for n, one in sagas.items() if n not in _OTHERS}
    not_settled = _count(sagas.get(NOT_SETTLED))
    from_checkout = sagas.get(FROM_CHECKOUT)
    return SagaReport(
        watched=sum(one.count for one in outcomes.values()) + not_settled,
        not_settled=not_settled,
        not_watched=_count(sagas.get(NOT_WATCHED)),
        from_checkout=latency_of(from_checkout),
        outcomes=outcomes,
        steps={name: latency_of(one) for name, one in steps.items()},
        compensations={n: _count(steps.get(n)) for n in COMPENSATIONS if n in steps},
    )


def paid_at_checkout(rows: Mapping[Row, Totals]) -> int:
    """Count the orders that were placed with a payment method."""
    return _count(rows.get((PAID_AT_CHECKOUT, SAGA)))


def _rows_of_kind(rows: Mapping[Row, Totals], kind: str) -> dict[str, Totals]:
    return {n: one for (n, own), one in sorted(rows.items()) if own == kind}


def _count(entry: Totals | None) -> int:
    return entry.requests if entry else 0


def latency_of(row: Totals | None) -> Latency:
    """Summarize the times of a row, if there is one."""
    times_ms = row.times_ms if row else {}
    return Latency.of(
        float(time_ms) for time_ms, count in times_ms.items() for _ in range(count)
    )
