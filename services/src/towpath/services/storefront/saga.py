"""
An order's saga as a timeline: what each service did, and when. No I/O, no framework.

Each service has a lane. A moment is a dot in the lane of its service, below the moment
before it, and a line joins them: it shows how the order went from service to service.
Moments that are awaited stand at the end, without a time.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

LANES: Final = ("orders", "inventory", "payments", "shipping")
# Sizes of the drawing, in its own units: the page scales it by its style sheet.
LANE_WIDTH: Final = 28
ROW_HEIGHT: Final = 58


class Happening(NamedTuple):
    """A service, and its deed in words."""

    service: str
    text: str
    is_bad: bool = False


STEPS: Final[Mapping[str, Happening]] = {
    "stock_reserved": Happening("inventory", "Stock reserved"),
    "stock_rejected": Happening("inventory", "Out of stock", is_bad=True),
    "stock_released": Happening("inventory", "Stock released"),
    "stock_sold": Happening("inventory", "Stock sold"),
    "stock_returned": Happening("inventory", "Stock taken back"),
    "payment_authorized": Happening("payments", "Payment authorised"),
    "payment_declined": Happening("payments", "Payment declined", is_bad=True),
    "payment_captured": Happening("payments", "Payment captured"),
    "payment_voided": Happening("payments", "Authorisation given back"),
    "payment_refunded": Happening("payments", "Payment refunded"),
    "shipment_dispatched": Happening("shipping", "Parcel dispatched"),
    "shipment_failed": Happening("shipping", "Parcel undeliverable", is_bad=True),
    "shipment_cancelled": Happening("shipping", "Shipment cancelled"),
}
STATUSES: Final[Mapping[str, Happening]] = {
    "placed": Happening("orders", "Order placed"),
    "paying": Happening("orders", "Payment requested"),
    "confirmed": Happening("orders", "Order confirmed"),
    "paid": Happening("orders", "Order paid"),
    "cancelling": Happening("orders", "Cancellation requested"),
    "cancelled": Happening("orders", "Order cancelled", is_bad=True),
    "completed": Happening("orders", "Order completed"),
    "returned": Happening("orders", "Goods returned"),
}
# For each status, the steps of which one is awaited, and the words for it.
_RESERVED: Final = ({"stock_reserved"}, Happening("inventory", "Reserving stock"))
_AWAITED: Final[Mapping[str, Sequence[tuple[set[str], Happening]]]] = {
    "placed": (_RESERVED,),
    "paying": (
        _RESERVED,
        ({"payment_authorized"}, Happening("payments", "Authorising the payment")),
    ),
    "confirmed": (
        ({"payment_captured"}, Happening("payments", "Capturing the payment")),
    ),
    "paid": (
        ({"shipment_dispatched"}, Happening("shipping", "Handing over the parcel")),
    ),
    "cancelling": (
        (
            {"shipment_dispatched", "shipment_failed", "shipment_cancelled"},
            Happening("shipping", "Recalling the parcel"),
        ),
    ),
    "completed": (({"stock_sold"}, Happening("inventory", "Booking the sale")),),
    "cancelled": (
        (
            {"stock_released", "stock_rejected"},
            Happening("inventory", "Releasing the stock"),
        ),
        (
            {"payment_declined", "payment_voided", "payment_refunded"},
            Happening("payments", "Giving the money back"),
        ),
    ),
    "returned": (
        ({"stock_returned"}, Happening("inventory", "Taking the stock back")),
        ({"payment_refunded"}, Happening("payments", "Refunding the payment")),
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
    A dot of the timeline.

    Attributes:
        service: The service, a lane.
        text: Its deed, in words.
        detail: A remark of the service, such as a reason or a tracking number.
        elapsed: The time since the order was placed, such as ``+0.42 s``; empty if the
            moment is awaited.
        is_bad: Whether the order goes backwards from here.
        x: The centre of the dot, from the left.
        y: The centre of the dot, from the top.
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
        """Whether it has not happened yet."""
        return not self.elapsed


class Timeline(NamedTuple):
    """
    The drawing of a saga.

    Attributes:
        moments: All moments, from the top.
        hops: The lines between moments, as paths of SVG, and whether each leads to an
            awaited moment.
        height: Its height.
    """

    moments: Sequence[Moment]
    hops: Sequence[tuple[str, bool]]
    height: int


def timeline_of(order: Mapping[str, Any]) -> Timeline:
    """Arrange the saga of an order, given as ``GET /orders/{id}`` answers it."""
    start = datetime.fromisoformat(order["placed_at"])
    moments = [
        _moment(row, happening, detail, elapsed_text((at - start).total_seconds()))
        for row, (at, happening, detail) in enumerate(_past(order))
    ]
    moments += [
        _moment(row, happening, "", "")
        for row, happening in enumerate(_awaited(order), start=len(moments))
    ]
    hops = []
    for before, after in pairwise(moments):
        # All awaited moments may come next.
        origin = next(m for m in reversed(moments) if not m.is_awaited)
        hops.append(_hop(origin if after.is_awaited else before, after))
    return Timeline(moments, hops, ROW_HEIGHT * len(moments))


def elapsed_text(elapsed_s: float) -> str:
    """Write a time since the start of a saga; clocks of services may differ."""
    if elapsed_s < 60:  # noqa: PLR2004 - seconds of a minute
        return f"+{max(0.0, elapsed_s):.2f} s"
    minutes, seconds = divmod(round(elapsed_s), 60)
    return f"+{minutes} min {seconds} s"


def _past(order: Mapping[str, Any]) -> list[tuple[datetime, Happening, str]]:
    placed_at = datetime.fromisoformat(order["placed_at"])
    found = [(placed_at, STATUSES["placed"], "")]
    for step in order["saga"]["steps"]:
        at = datetime.fromisoformat(step["at"])
        happening = STEPS.get(step["step"], Happening("orders", step["step"]))
        found.append((at, happening, step["detail"] or ""))
    status = order["status"]
    if status != "placed":
        at = datetime.fromisoformat(order["updated_at"])
        happening = STATUSES.get(status, Happening("orders", status))
        found.append((at, happening, order["reason"] or ""))
    # The order is placed first, whatever the clocks of the other services show.
    return found[:1] + sorted(found[1:], key=lambda moment: moment[0])


def _awaited(order: Mapping[str, Any]) -> list[Happening]:
    if order["saga"]["is_settled"]:
        return []
    taken = {step["step"] for step in order["saga"]["steps"]}
    is_paid_for = order["payment_method"] is not None
    return [
        happening
        for steps, happening in _AWAITED.get(order["status"], ())
        if not steps & taken and (is_paid_for or happening.service != "payments")
    ]


def _moment(row: int, happening: Happening, detail: str, elapsed: str) -> Moment:
    return Moment(
        service=happening.service,
        text=happening.text,
        detail=detail,
        elapsed=elapsed,
        is_bad=happening.is_bad,
        x=LANE_WIDTH * LANES.index(happening.service) + LANE_WIDTH // 2,
        y=ROW_HEIGHT * row + ROW_HEIGHT // 2,
    )


def _hop(before: Moment, after: Moment) -> tuple[str, bool]:
    middle = (before.y + after.y) // 2
    path = f"M{before.x} {before.y}C{before.x} {middle} {after.x} {middle}"
    return f"{path} {after.x} {after.y}", after.is_awaited
