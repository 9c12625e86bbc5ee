"""Shipping as a consumer: the events of orders that concern shipments."""

import functools
from importlib import resources
from typing import Final

from towpath.outbox import Events
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock
from towpath.schemas.events import EventSchemas
from towpath.services.plumbing.consumer import (
    Consuming,
    EventConsumer,
    make_collector,
)
from towpath.services.shipping.domain import EVENTS
from towpath.services.shipping.handlers import ORDER_EVENTS
from towpath.services.shipping.repository import SCHEMA, ShipmentRepository

SCHEMAS: Final = "towpath.services.shipping.schemas"
SHIPMENT: Final = "shipment"


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
