"""
The service as an application and as a consumer: the only module that joins its parts.

Its protocol is ``GET /shipments/{order_id}``, 200 or 404. It has a function for each
event of an order; none commits: the inbox does, with its record of the event.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from importlib import resources
from typing import Any, Final

from flask import Blueprint, Flask, Response, current_app
from pydantic import AwareDatetime
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox import Events, plain
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.events import EventSchemas
from towpath.services.plumbing.consumer import (
    Consuming,
    EventConsumer,
    make_collector,
    make_sessions,
)
from towpath.services.plumbing.database import UnitOfWork, make_engine, migrate
from towpath.services.plumbing.http import NotFoundError, json_answer
from towpath.services.plumbing.openapi import (
    Document,
    Operation,
    Operations,
    install_openapi,
)
from towpath.services.plumbing.service import DEFAULT_THREADS, base_app
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
EXTENSION: Final = "towpath.shipping"

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
@operations.add(Operation(answer=ShipmentDocument))
def find_shipment(order_id: int) -> Response:
    """Read the shipment of an order."""
    sessions: sessionmaker[Session] = current_app.extensions[EXTENSION]
    with UnitOfWork(sessions) as unit:
        shipment = ShipmentRepository(unit.session).find(order_id)
    if shipment is None:
        message = f"There is no shipment of order {order_id}."
        raise NotFoundError(message)
    document: dict[str, Any] = dataclasses.asdict(shipment)
    del document["events"]
    return json_answer(HTTPStatus.OK, plain(document))


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


@functools.cache
def event_schemas() -> EventSchemas:
    """Return the schemas of the service's events."""
    return EventSchemas.from_folder(resources.files(SCHEMAS))


def collector(clock: Clock) -> Collector:
    """Make the collector of the events of shipments."""
    events = Events(event_schemas())
    for cls in EVENTS.values():
        events.event(aggregate_type=SHIPMENT, key="order_id")(cls)
    return make_collector(events, clock)


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


def create_app(
    dsn: str, *, threads: int = DEFAULT_THREADS, clock: Clock | None = None
) -> Flask:
    """
    Wire the service to a database; no connection is opened before a request.

    Args:
        dsn: The service's database, as a libpq URI or keywords.
        threads: The number of requests served at once; each has a connection.
        clock: The time of changes.
    """
    engine = make_engine(dsn, pool_size=threads)
    app = base_app("towpath-shipping", engine, NEEDED_TABLES)
    app.extensions[EXTENSION] = make_sessions(engine, collector(clock or SystemClock()))
    app.register_blueprint(blueprint)
    install_openapi(app, "Shipping", operations)
    return app


def migrate_shipping(engine: Engine) -> None:
    """
    Create or update the service's tables.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    migrate(engine, package=MIGRATIONS, schema=SCHEMA)
