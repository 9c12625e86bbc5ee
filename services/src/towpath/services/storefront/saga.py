"""
An order's saga as a timeline: what each service did, and when. No I/O, no framework.

Each service has a lane. A moment is a dot in the lane of its service, below the
previous moment, and a line joins the two. The lines show how the order moves between
services. Awaited moments are at the end, without a time.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

LANES: Final = ("orders", "inventory", "payments", "shipping")
# Sizes of the drawing, in its own units; the page's style sheet scales it.
LANE_WIDTH: Final = 28
ROW_HEIGHT: Final = 58


class SagaEvent(NamedTuple):
    """A service's action, in words."""

    service: str
    text: str
    is_bad: bool = False


STEPS: Final[Mapping[str, SagaEvent]] = {
    "stock_reserved": SagaEvent("inventory", "Stock reserved"),
    "stock_rejected": SagaEvent("inventory", "Out of stock", is_bad=True),
    "stock_released": SagaEvent("inventory", "Stock released"),
    "stock_sold": SagaEvent("inventory", "Stock sold"),
    "stock_returned": SagaEvent("inventory", "Stock taken back"),
    "payment_authorized": SagaEvent("payments", "Payment authorized"),
    "payment_declined": SagaEvent("payments", "Payment declined", is_bad=True),
    "payment_captured": SagaEvent("payments", "Payment captured"),
    "payment_voided": SagaEvent("payments", "Authorization voided"),
    "payment_refunded": SagaEvent("payments", "Payment refunded"),
    "shipment_dispatched": SagaEvent("shipping", "Parcel dispatched"),
    "shipment_failed": SagaEvent("shipping", "Parcel undeliverable", is_bad=True),
    "shipment_cancelled": SagaEvent("shipping", "Shipment cancelled"),
}
STATUSES: Final[Mapping[str, SagaEvent]] = {
    "placed": SagaEvent("orders", "Order placed"),
    "paying": SagaEvent("orders", "Payment requested"),
    "confirmed": SagaEvent("orders", "Order confirmed"),
    "paid": SagaEvent("orders", "Order paid"),
    "cancelling": SagaEvent("orders", "Cancellation requested"),
    "cancelled": SagaEvent("orders", "Order cancelled", is_bad=True),
    "completed": SagaEvent("orders", "Order completed"),
    "returned": SagaEvent("orders", "Goods returned"),
}
# By status: sets of steps, each with a label. A set is awaited until one of its steps
# is taken.
_RESERVED: Final = ({"stock_reserved"}, SagaEvent("inventory", "Reserving stock"))
_AWAITED: Final[Mapping[str, Sequence[tuple[set[str], SagaEvent]]]] = {
    "placed": (_RESERVED,),
    "paying": (
        _RESERVED,
        ({"payment_authorized"}, SagaEvent("payments", "Authorizing the payment")),
    ),
    "confirmed": (
        ({"payment_captured"}, SagaEvent("payments", "Capturing the payment")),
    ),
    "paid": (
        ({"shipment_dispatched"}, SagaEvent("shipping", "Handing over the parcel")),
    ),
    "cancelling": (
        (
            {"shipment_dispatched", "shipment_failed", "shipment_cancelled"},
            SagaEvent("shipping", "Recalling the parcel"),
        ),
    ),
    "completed": (({"stock_sold"}, SagaEvent("inventory", "Booking the sale")),),
    "cancelled": (
        (
            {"stock_released", "stock_rejected"},
            SagaEvent("inventory", "Releasing the stock"),
        ),
        (
            {"payment_declined", "payment_voided", "payment_refunded"},
            SagaEvent("payments", "Voiding or refunding the payment"),
        ),
    ),
    "returned": (
        ({"stock_returned"}, SagaEvent("inventory", "Taking the stock back")),
        ({"payment_refunded"}, SagaEvent("payments", "Refunding the payment")),
    ),
}
# The actions that each status allows.
ACTIONS: Final[Mapping[str, Sequence[str]]] = {
    "placed": ("pay", "cancel"),
    "paying": ("cancel",),
    "confirmed": ("cancel",),
    "paid": ("cancel",),
    "completed": ("return",),
}


class Moment(NamedTuple):
    """
    A dot on the timeline.

    Attributes:
        service: The service whose lane has the dot.
        text: The service's action, in words.
        detail: The service's remark, such as a reason or a tracking number.
        elapsed: The time since the order was placed, such as ``+0.42 s``; empty if the
            moment is awaited.
        is_bad: Whether the step failed, or the order was cancelled.
        x: The center of the dot, from the left.
        y: The center of the dot, from the top.
    """

    service: str
    text: str
    detail: str
    elapsed: str
    is_bad: bool
    x: int
    y: int

    @property
    def is_awaited(self) -> bool:
        """Whether the moment has not happened yet."""
        return not self.elapsed


class Timeline(NamedTuple):
    """
    The drawing of a saga.

    Attributes:
        moments: All moments, from the top.
        hops: The lines between moments, as SVG paths, and whether each leads to an
            awaited moment.
        height: The height of the drawing.
    """

    moments: Sequence[Moment]
    hops: Sequence[tuple[str, bool]]
    height: int


def timeline_of(order: Mapping[str, Any]) -> Timeline:
    """Arrange the saga of an order, as returned by ``GET /orders/{id}``."""
    start = datetime.fromisoformat(order["placed_at"])
    moments = [
        _moment(row, event, detail, elapsed_text((at - start).total_seconds()))
        for row, (at, event, detail) in enumerate(_past(order))
    ]
    moments += [
        _moment(row, event, "", "")
        for row, event in enumerate(_awaited(order), start=len(moments))
    ]
    hops = []
    for before, after in pairwise(moments):
        # Any awaited moment can come next.
        origin = next(m for m in reversed(moments) if not m.is_awaited)
        hops.append(_hop(origin if after.is_awaited else before, after))
    return Timeline(moments, hops, ROW_HEIGHT * len(moments))


def elapsed_text(elapsed_s: float) -> str:
    """Format the time since the start of a saga; a negative time counts as 0."""
    if round(elapsed_s, 2) < 60:  # noqa: PLR2004 - seconds of a minute
        return f"+{max(0.0, elapsed_s):.2f} s"
    minutes, seconds = divmod(round(elapsed_s), 60)
    return f"+{minutes} min {seconds} s"


def _past(order: Mapping[str, Any]) -> list[tuple[datetime, SagaEvent, str]]:
    placed_at = datetime.fromisoformat(order["placed_at"])
    found = [(placed_at, STATUSES["placed"], "")]
    for step in order["saga"]["steps"]:
        at = datetime.fromisoformat(step["at"])
        event = STEPS.get(step["step"], SagaEvent("orders", step["step"]))
        found.append((at, event, step["detail"] or ""))
    status = order["status"]
    if status != "placed":
        at = datetime.fromisoformat(order["updated_at"])
        event = STATUSES.get(status, SagaEvent("orders", status))
        found.append((at, event, order["reason"] or ""))
    # The order is placed first, whatever the clocks of the other services show.
    return found[:1] + sorted(found[1:], key=lambda moment: moment[0])


def _awaited(order: Mapping[str, Any]) -> list[SagaEvent]:
    if order["saga"]["is_settled"]:
        return []
    taken = {step["step"] for step in order["saga"]["steps"]}
    has_payment_method = order["payment_method"] is not None
    return [
        event
        for steps, event in _AWAITED.get(order["status"], ())
        if not steps & taken and (has_payment_method or event.service != "payments")
    ]


def _moment(row: int, event: SagaEvent, detail: str, elapsed: str) -> Moment:
    return Moment(
        service=event.service,
        text=event.text,
        detail=detail,
        elapsed=elapsed,
        is_bad=event.is_bad,
        x=LANE_WIDTH * LANES.index(event.service) + LANE_WIDTH // 2,
        y=ROW_HEIGHT * row + ROW_HEIGHT // 2,
    )


def _hop(before: Moment, after: Moment) -> tuple[str, bool]:
    middle = (before.y + after.y) // 2
    path = f"M{before.x} {before.y}C{before.x} {middle} {after.x} {middle}"
    return f"{path} {after.x} {after.y}", after.is_awaited
