"""
Stock and reservations: their rules and their events. No I/O, no framework.

::

    order placed --> RESERVED --order completed--> SOLD --order returned--> RETURNED
         |              |
         |              +-----order cancelled----> RELEASED
         +----> REJECTED: a product is unknown, or too few units are on hand

Every unit that was ever received is on hand, reserved or sold; a reservation only moves
units between the three. An order that is cancelled before its stock was reserved gets
a reservation that holds nothing, so that every order has an outcome.
"""

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Final, NamedTuple

from towpath.schemas.clock import time_after


class ReservationStatus(enum.StrEnum):
    """The status of a reservation."""

    RESERVED = "reserved"
    REJECTED = "rejected"
    RELEASED = "released"
    SOLD = "sold"
    RETURNED = "returned"


class Product(NamedTuple):
    """
    A product and its units.

    Attributes:
        product_id: Identifies the product, in orders too.
        name: Its name.
        unit_price: Its price.
        received: All units ever received; the sum of the next three.
        on_hand: Units that can be reserved.
        reserved: Units of orders that are not dispatched yet.
        sold: Units of orders that were dispatched.
        version: Increases with each change.
        updated_at: The time of the last change.
    """

    product_id: uuid.UUID
    name: str
    unit_price: Decimal
    received: int
    on_hand: int
    reserved: int
    sold: int
    version: int
    updated_at: datetime


class ReservedLine(NamedTuple):
    """The units of one product in a reservation."""

    product_id: uuid.UUID
    quantity: int


class Transfer(NamedTuple):
    """The change to each count of a product for one unit of a reservation."""

    on_hand: int
    reserved: int
    sold: int


RESERVE: Final = Transfer(on_hand=-1, reserved=1, sold=0)
TRANSFERS: Final[Mapping[tuple[ReservationStatus, ReservationStatus], Transfer]] = {
    (ReservationStatus.RESERVED, ReservationStatus.RELEASED): Transfer(1, -1, 0),
    (ReservationStatus.RESERVED, ReservationStatus.SOLD): Transfer(0, -1, 1),
    (ReservationStatus.SOLD, ReservationStatus.RETURNED): Transfer(1, 0, -1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationEvent:
    """The whole state of an order's reservation after a change."""

    STATUS: ClassVar[ReservationStatus]

    order_id: int
    status: ReservationStatus
    lines: Sequence[Mapping[str, object]]
    reason: str | None
    updated_at: datetime


class StockReserved(ReservationEvent):
    """All units of an order are reserved."""

    STATUS = ReservationStatus.RESERVED


class StockRejected(ReservationEvent):
    """Nothing is reserved for an order; ``reason`` says why."""

    STATUS = ReservationStatus.REJECTED


class StockReleased(ReservationEvent):
    """The units of a cancelled order are on hand again."""

    STATUS = ReservationStatus.RELEASED


class StockSold(ReservationEvent):
    """The units of an order were dispatched."""

    STATUS = ReservationStatus.SOLD


class StockReturned(ReservationEvent):
    """The units of a returned order are on hand again."""

    STATUS = ReservationStatus.RETURNED


EVENTS: Final[Mapping[ReservationStatus, type[ReservationEvent]]] = {
    cls.STATUS: cls
    for cls in (StockReserved, StockRejected, StockReleased, StockSold, StockReturned)
}


@dataclass(slots=True)
class Reservation:
    """The reservation of an order, and its new events."""

    order_id: int
    status: ReservationStatus
    lines: tuple[ReservedLine, ...]
    reason: str | None
    updated_at: datetime
    events: list[ReservationEvent] = field(default_factory=list)

    @classmethod
    def decide(
        cls,
        order_id: int,
        wanted: Sequence[ReservedLine],
        on_hand: Mapping[uuid.UUID, int],
        at: datetime,
    ) -> "Reservation":
        """
        Reserve all units of an order, or none of them.

        Args:
            order_id: The order.
            wanted: The units of each product, one line per product.
            on_hand: The units on hand of the known products among them.
            at: The current time.
        """
        reason = _refusal(wanted, on_hand)
        status = ReservationStatus.REJECTED if reason else ReservationStatus.RESERVED
        lines = () if reason else tuple(wanted)
        new = cls(order_id, status, lines, reason, at)
        new._record()
        return new

    @classmethod
    def release_nothing(cls, order_id: int, at: datetime) -> "Reservation":
        """Return an empty reservation for an order cancelled before it had one."""
        new = cls(order_id, ReservationStatus.RELEASED, (), None, at)
        new._record()
        return new

    def move(self, status: ReservationStatus, at: datetime) -> Transfer | None:
        """
        Change the status of the reservation; return the transfer of its units.

        Returns:
            None if there is nothing to do: the reservation already has the status, or
            cannot change to it (a rejected reservation cannot be released).
        """
        transfer = TRANSFERS.get((self.status, status))
        if transfer is not None:
            self.status = status
            self.updated_at = time_after(self.updated_at, at)
            self._record()
        return transfer

    def _record(self) -> None:
        event = EVENTS[self.status](
            order_id=self.order_id,
            status=self.status,
            lines=[line._asdict() for line in self.lines],
            reason=self.reason,
            updated_at=self.updated_at,
        )
        self.events.append(event)


def lines_by_product(
    lines: Sequence[Mapping[str, object]],
) -> tuple[ReservedLine, ...]:
    """Return the units of each product in an order's event, sorted by product id."""
    units: dict[uuid.UUID, int] = {}
    for line in lines:
        product_id = uuid.UUID(str(line["product_id"]))
        units[product_id] = units.get(product_id, 0) + int(str(line["quantity"]))
    return tuple(ReservedLine(*one) for one in sorted(units.items()))


def _refusal(
    wanted: Sequence[ReservedLine], on_hand: Mapping[uuid.UUID, int]
) -> str | None:
    for line in wanted:
        if line.product_id not in on_hand:
            return f"product {line.product_id} is unknown"
        if on_hand[line.product_id] < line.quantity:
            left = on_hand[line.product_id]
            return f"product {line.product_id}: {left} on hand, {line.quantity} wanted"
    return None
