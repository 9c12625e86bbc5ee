"""The wiring of the orders service: the only module that imports every part."""

from typing import Final

from flask import Flask
from sqlalchemy import Engine

from towpath.schemas.clock import Clock, SystemClock
from towpath.services.orders.api import EXTENSION, RouteContext, blueprint, operations
from towpath.services.orders.consumer import collector
from towpath.services.orders.domain import DEFAULT_WINDOWS, Windows
from towpath.services.orders.repository import SCHEMA, OrdersUnit, idempotency
from towpath.services.plumbing.consumer import make_sessions
from towpath.services.plumbing.database import make_engine, migrate
from towpath.services.plumbing.idempotency import CommandExecutor, IdempotencyKeys
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.server import LIFECYCLE
from towpath.services.plumbing.service import (
    DEFAULT_THREADS,
    IDEMPOTENCY_HOURS,
    base_app,
)

MIGRATIONS: Final = "towpath.services.orders.migrations"
NEEDED_TABLES: Final = ("shop.customers", "shop.orders", "towpath.outbox")


def create_app(
    dsn: str,
    *,
    threads: int = DEFAULT_THREADS,
    idempotency_hours: float = IDEMPOTENCY_HOURS,
    windows: Windows = DEFAULT_WINDOWS,
    clock: Clock | None = None,
) -> Flask:
    """
    Wire the service to a database; no connection is opened before a request.

    Args:
        dsn: The shop's database, as a libpq URI or keywords.
        threads: The number of requests served at once; each has a connection.
        idempotency_hours: How long an ``Idempotency-Key`` is kept.
        windows: The longest times that orders wait.
        clock: The time of changes.
    """
    # One more connection than requests, for the deletion of expired keys.
    engine = make_engine(dsn, pool_size=threads + 1)
    clock = clock or SystemClock()
    sessions = make_sessions(engine, collector(clock))
    keys = IdempotencyKeys(idempotency, hours=idempotency_hours)
    app = base_app("towpath-orders", engine, NEEDED_TABLES)
    app.extensions[LIFECYCLE].tasks.append(keys.deletion(engine))
    commands = CommandExecutor(
        lambda traceparent: OrdersUnit(sessions, traceparent, windows), keys, clock
    )
    app.extensions[EXTENSION] = RouteContext(sessions, commands)
    app.register_blueprint(blueprint)
    install_openapi(app, "Orders", operations)
    return app


def migrate_shop(engine: Engine) -> None:
    """
    Create or update the shop's tables.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    migrate(engine, package=MIGRATIONS, schema=SCHEMA)
