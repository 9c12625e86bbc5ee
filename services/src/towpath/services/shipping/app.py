"""
The service as an application and as a consumer: the only module that joins its parts.

Its one route is ``GET /shipments/{order_id}``, which responds with 200 or 404. Each
order event that concerns shipments has a handler. No handler commits: the inbox commits
the changes of a handler together with its record of the event.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from flask import Blueprint, Flask, Response
from pydantic import AwareDatetime

from towpath.services.plumbing.consumer import (
    Consuming,
    EventConsumer,
    event_schemas_in,
    events_by_order,
    make_collector,
)
from towpath.services.plumbing.database import make_engine, migrate
from towpath.services.plumbing.openapi import (
    Document,
    Operation,
    Operations,
    install_openapi,
)
from towpath.services.plumbing.service import (
    DEFAULT_THREADS,
    base_app,
    response_by_order,
)
from towpath.services.shipping.domain import (
    EVENTS,
    Shipment,
    ShipmentStatus,
    carrier_of,
)
from towpath.services.shipping.repository import SCHEMA, ShipmentRepository

SCHEMAS: Final = "towpath.services.shipping.schemas"
MIGRATIONS: Final = "towpath.services.shipping.migrations"
NEEDED_TABLES: Final = ("shipping.shipments", "towpath.outbox")
SHIPMENT: Final = "shipment"

blueprint = Blueprint("shipping", __name__)
operations = Operations("shipping")


class ShipmentDocument(Document):
    """The shipment of an order."""

    order_id: int
    customer_id: str
    status: ShipmentStatus
    tracking_number: str | None
    reason: str | None
    version: int
    updated_at: AwareDatetime


@blueprint.get("/shipments/<bigint:order_id>")
@operations.add(Operation(response=ShipmentDocument))
def find_shipment(order_id: int) -> Response:
    """Read the shipment of an order."""
    return response_by_order(ShipmentRepository, "shipment", order_id)


def ship(order: Mapping[str, Any], shipments: ShipmentRepository, at: datetime) -> None:
    """Ship a paid order, unless it already has a shipment, even a cancelled one."""
    if shipments.lock(order["order_id"]) is None:
        shipment = Shipment.prepare(order, at)
        shipment.hand_over(carrier_of(order), at)
        shipments.add(shipment)


def cancel(
    order: Mapping[str, Any], shipments: ShipmentRepository, at: datetime
) -> None:
    """Cancel a pending shipment; if the order has none yet, add a cancelled one."""
    shipment = shipments.lock(order["order_id"])
    if shipment is None:
        shipment = Shipment.prepare(order, at)
        shipment.cancel(at)
        shipments.add(shipment)
    else:
        shipment.cancel(at)
        shipments.save(shipment)


Handler = Callable[[Mapping[str, Any], ShipmentRepository, datetime], None]

# The order events that concern shipments.
ORDER_EVENTS: Final[Mapping[str, Handler]] = {
    "OrderPaid": ship,
    "OrderCancellationRequested": cancel,
}


event_schemas: Final = partial(event_schemas_in, SCHEMAS)
shipment_events: Final = partial(events_by_order, SCHEMAS, SHIPMENT, EVENTS.values())
collector: Final = partial(make_collector, shipment_events)
migrate_shipping: Final = partial(migrate, package=MIGRATIONS, schema=SCHEMA)


CONSUMING: Final = Consuming(
    consumer=EventConsumer(
        name="shipping",
        schema=SCHEMA,
        aggregates=("order",),
        handlers=ORDER_EVENTS,
        store=ShipmentRepository,
    ),
    collector=collector,
)


def create_app(dsn: str, *, threads: int = DEFAULT_THREADS) -> Flask:
    """
    Wire the service to a database; this opens no connection.

    Args:
        dsn: The service's database, as a libpq URI or keyword/value string.
        threads: The number of concurrent requests; each has a connection.
    """
    engine = make_engine(dsn, pool_size=threads)
    app = base_app("towpath-shipping", engine, NEEDED_TABLES)
    app.register_blueprint(blueprint)
    install_openapi(app, "Shipping", operations)
    return app
