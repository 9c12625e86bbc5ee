"""Payments as a consumer: the events of orders, and the calls of the provider."""

import functools
from collections.abc import Sequence
from importlib import resources
from typing import Final

from sqlalchemy import Engine

from towpath.outbox import Events
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock
from towpath.schemas.events import EventSchemas
from towpath.services.payments.domain import EVENTS
from towpath.services.payments.handlers import ORDER_EVENTS, ProviderWorker
from towpath.services.payments.provider import SimulatedProvider
from towpath.services.payments.repository import SCHEMA, PaymentRepository
from towpath.services.plumbing.consumer import (
    Begin,
    Consuming,
    EventConsumer,
    make_collector,
)
from towpath.services.plumbing.server import BackgroundTask

SCHEMAS: Final = "towpath.services.payments.schemas"
PAYMENT: Final = "payment"
# A payment waits for its provider at most this much longer.
_CALLS_EVERY_S: Final = 0.1


@functools.cache
def event_schemas() -> EventSchemas:
    """Return the schemas of the service's events."""
    return EventSchemas.from_folder(resources.files(SCHEMAS))


def collector(clock: Clock) -> Collector:
    """Make the collector of the events of payments."""
    events = Events(event_schemas())
    for cls in EVENTS.values():
        events.event(aggregate_type=PAYMENT, key="order_id")(cls)
    return make_collector(events, clock)


def _tasks(begin: Begin, engine: Engine, clock: Clock) -> Sequence[BackgroundTask]:
    worker = ProviderWorker(begin, SimulatedProvider(engine), clock)

    def run_all_due() -> None:
        while worker.run_due():
            pass

    return [
        BackgroundTask("calls of the payment provider", _CALLS_EVERY_S, run_all_due)
    ]


CONSUMING: Final = Consuming(
    consumer=EventConsumer(
        name="payments",
        schema=SCHEMA,
        aggregates=("order",),
        handlers=ORDER_EVENTS,
        store=PaymentRepository,
    ),
    collector=collector,
    tasks=_tasks,
)
