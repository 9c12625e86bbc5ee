"""The wiring of the service, as an application and as a consumer of order events."""

from functools import partial
from typing import Final

from flask import Flask

from towpath.schemas.clock import Clock, SystemClock
from towpath.services.inventory.api import (
    EXTENSION,
    InventoryContext,
    blueprint,
    operations,
)
from towpath.services.inventory.domain import EVENTS
from towpath.services.inventory.handlers import ORDER_EVENTS
from towpath.services.inventory.repository import (
    SCHEMA,
    InventoryRepository,
    idempotency,
)
from towpath.services.plumbing.consumer import (
    Consuming,
    EventConsumer,
    event_schemas_in,
    events_by_order,
    make_collector,
    make_sessions,
)
from towpath.services.plumbing.database import UnitOfWork, make_engine, migrate
from towpath.services.plumbing.idempotency import CommandExecutor, IdempotencyKeys
from towpath.services.plumbing.metrics import metrics_of
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.server import LIFECYCLE
from towpath.services.plumbing.service import (
    DEFAULT_THREADS,
    IDEMPOTENCY_HOURS,
    base_app,
)

SCHEMAS: Final = "towpath.services.inventory.schemas"
MIGRATIONS: Final = "towpath.services.inventory.migrations"
NEEDED_TABLES: Final = ("inventory.products", "towpath.outbox")
RESERVATION: Final = "reservation"


event_schemas: Final = partial(event_schemas_in, SCHEMAS)
reservation_events: Final = partial(
    events_by_order, SCHEMAS, RESERVATION, EVENTS.values()
)
collector: Final = partial(make_collector, reservation_events)
migrate_inventory: Final = partial(migrate, package=MIGRATIONS, schema=SCHEMA)


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


def create_app(
    dsn: str,
    *,
    threads: int = DEFAULT_THREADS,
    idempotency_hours: float = IDEMPOTENCY_HOURS,
    clock: Clock | None = None,
) -> Flask:
    """
    Wire the service to a database; this opens no connection.

    Args:
        dsn: The service's database, as a libpq URI or keyword/value string.
        threads: The number of requests served at the same time; each has a connection.
        idempotency_hours: How long an ``Idempotency-Key`` is kept.
        clock: Gives the time of changes.
    """
    clock = clock or SystemClock()
    # One more connection than requests, for the deletion of expired keys.
    engine = make_engine(dsn, pool_size=threads + 1)
    app = base_app("towpath-inventory", engine, NEEDED_TABLES)
    sessions = make_sessions(engine, collector(clock), metrics_of(app))
    keys = IdempotencyKeys(idempotency, hours=idempotency_hours)
    app.extensions[LIFECYCLE].tasks.append(keys.deletion(engine))
    commands = CommandExecutor(
        lambda traceparent: UnitOfWork(sessions, traceparent), keys, clock
    )
    app.extensions[EXTENSION] = InventoryContext(sessions, commands)
    app.register_blueprint(blueprint)
    install_openapi(app, "Inventory", operations)
    return app
