"""
Shipments: their rules and their events. No I/O, no framework.

::

    order paid --> PENDING --> DISPATCHED
                      |
                      +------> FAILED: the address is undeliverable
                      |
                      +------> CANCELLED: a cancellation arrived before the parcel left

A confirmed order can be cancelled before it is paid, and so before it has a shipment.
The cancellation then creates a shipment that is cancelled from the beginning.
"""

import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final

from towpath.schemas.clock import time_after


class ShipmentStatus(enum.StrEnum):
    """The status of a shipment."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    FAILED = "failed"
    CANCELLED = "cancelled"


# The order's attribute that decides how the simulated carrier behaves, and its values.
CARRIER: Final = "carrier"
UNDELIVERABLE: Final = "undeliverable"
SILENT: Final = "silent"

NO_ADDRESS: Final = "the address is undeliverable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipmentEvent:
    """The whole state of an order's shipment after a change."""

    STATUS: ClassVar[ShipmentStatus]

    order_id: int
    status: ShipmentStatus
    customer_id: str
    tracking_number: str | None
    reason: str | None
    updated_at: datetime


class ShipmentDispatched(ShipmentEvent):
    """The parcel is on its way."""

    STATUS = ShipmentStatus.DISPATCHED


class ShipmentFailed(ShipmentEvent):
    """The parcel cannot be delivered."""

    STATUS = ShipmentStatus.FAILED


class ShipmentCancelled(ShipmentEvent):
    """The parcel will not be sent."""

    STATUS = ShipmentStatus.CANCELLED


EVENTS: Final[Mapping[ShipmentStatus, type[ShipmentEvent]]] = {
    cls.STATUS: cls for cls in (ShipmentDispatched, ShipmentFailed, ShipmentCancelled)
}


@dataclass(slots=True)
class Shipment:
    """The shipment of an order, and its new events."""

    order_id: int
    customer_id: str
    status: ShipmentStatus
    tracking_number: str | None
    reason: str | None
    version: int
    updated_at: datetime
    events: list[ShipmentEvent] = field(default_factory=list)

    @classmethod
    def prepare(cls, order: Mapping[str, Any], at: datetime) -> "Shipment":
        """Prepare the shipment of an order."""
        status = ShipmentStatus.PENDING
        return cls(order["order_id"], order["customer_id"], status, None, None, 1, at)

    def hand_over(self, carrier: str | None, at: datetime) -> None:
        """Give the parcel to the carrier, who may refuse it, or never answer."""
        if self.status is not ShipmentStatus.PENDING or carrier == SILENT:
            return
        if carrier == UNDELIVERABLE:
            self._end(ShipmentStatus.FAILED, at, reason=NO_ADDRESS)
        else:
            number = uuid.uuid5(uuid.NAMESPACE_URL, f"shipment:{self.order_id}").hex
            self._end(ShipmentStatus.DISPATCHED, at, tracking_number=number)

    def cancel(self, at: datetime) -> None:
        """Cancel the shipment, unless it has been dispatched or has failed."""
        if self.status is ShipmentStatus.PENDING:
            self._end(ShipmentStatus.CANCELLED, at)

    def _end(
        self,
        status: ShipmentStatus,
        at: datetime,
        *,
        tracking_number: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.status = status
        self.updated_at = time_after(self.updated_at, at)
        self.tracking_number, self.reason = tracking_number, reason
        self.version += 1
        event = EVENTS[status](
            order_id=self.order_id,
            status=status,
            customer_id=self.customer_id,
            tracking_number=tracking_number,
            reason=reason,
            updated_at=self.updated_at,
        )
        self.events.append(event)


def carrier_of(order: Mapping[str, Any]) -> str | None:
    """Return how the simulated carrier should behave for an order."""
    attributes = json.loads(order["attributes"] or "{}")
    carrier = attributes.get(CARRIER)
    return carrier if isinstance(carrier, str) else None
