"""One function per event of an order; none commits: the inbox does, with its record."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from towpath.services.shipping.domain import Shipment, carrier_of
from towpath.services.shipping.repository import ShipmentRepository


def ship(order: Mapping[str, Any], shipments: ShipmentRepository, at: datetime) -> None:
    """Ship a paid order, unless it has a shipment, which may be cancelled."""
    if shipments.lock(order["order_id"]) is None:
        shipment = Shipment.prepare(order, at)
        shipment.hand_over(carrier_of(order), at)
        shipments.add(shipment)


def cancel(
    order: Mapping[str, Any], shipments: ShipmentRepository, at: datetime
) -> None:
    """Cancel the shipment of an order, if it has not left."""
    shipment = shipments.lock(order["order_id"])
    if shipment is None:
        shipment = Shipment.prepare(order, at)
        shipment.cancel(at)
        shipments.add(shipment)
    else:
        shipment.cancel(at)
        shipments.save(shipment)


Handler = Callable[[Mapping[str, Any], ShipmentRepository, datetime], None]

# The events of orders that concern shipments.
ORDER_EVENTS: Final[Mapping[str, Handler]] = {
    "OrderPaid": ship,
    "OrderCancellationRequested": cancel,
}
