"""The wiring of the shipping service: the only module that imports every part."""

from typing import Final

from flask import Flask
from sqlalchemy import Engine

from towpath.schemas.clock import Clock, SystemClock
from towpath.services.plumbing.consumer import make_sessions
from towpath.services.plumbing.database import make_engine, migrate
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.service import DEFAULT_THREADS, base_app
from towpath.services.shipping.api import EXTENSION, blueprint, operations
from towpath.services.shipping.consumer import collector
from towpath.services.shipping.repository import SCHEMA

MIGRATIONS: Final = "towpath.services.shipping.migrations"
NEEDED_TABLES: Final = ("shipping.shipments", "towpath.outbox")


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
