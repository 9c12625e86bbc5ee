"""Inventory as a consumer: the events of orders that concern the stock."""

import functools
from importlib import resources
from typing import Final

from towpath.outbox import Events
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock
from towpath.schemas.events import EventSchemas
from towpath.services.inventory.domain import EVENTS
from towpath.services.inventory.handlers import ORDER_EVENTS
from towpath.services.inventory.repository import SCHEMA, InventoryRepository
from towpath.services.plumbing.consumer import (
    Consuming,
    EventConsumer,
    make_collector,
)

SCHEMAS: Final = "towpath.services.inventory.schemas"
RESERVATION: Final = "reservation"


@functools.cache
def event_schemas() -> EventSchemas:
    """Return the schemas of the service's events."""
    return EventSchemas.from_folder(resources.files(SCHEMAS))


def collector(clock: Clock) -> Collector:
    """Make the collector of the events of reservations."""
    events = Events(event_schemas())
    for cls in EVENTS.values():
        events.event(aggregate_type=RESERVATION, key="order_id")(cls)
    return make_collector(events, clock)


CONSUMING: Final = Consuming(
    consumer=EventConsumer(
        name="inventory",
        schema=SCHEMA,
        aggregates=("order",),
        handlers=ORDER_EVENTS,
        store=InventoryRepository,
    ),
    collector=collector,
)
