"""The wiring of the orders service: the only module that imports every part."""

from typing import Final

from flask import Flask
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker
from werkzeug.routing import IntegerConverter, ValidationError

from towpath.outbox import Outbox
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock, SystemClock
from towpath.services.orders.api import EXTENSION, RouteContext, blueprint
from towpath.services.orders.events import outbox_event, shop_events
from towpath.services.orders.repository import SCHEMA
from towpath.services.plumbing.database import health_blueprint, make_engine, migrate
from towpath.services.plumbing.http import MAX_BODY_BYTES, install_problems

MIGRATIONS: Final = "towpath.services.orders.migrations"
NEEDED_TABLES: Final = ("shop.customers", "shop.orders", "towpath.outbox")
DEFAULT_THREADS: Final = 8
_MAX_BIGINT: Final = 2**63 - 1


class _BigintConverter(IntegerConverter):
    """An order's number, if a Postgres bigint can hold it; any other is not found."""

    def to_python(self, value: str) -> int:
        # A bigint has at most nineteen digits; Python refuses to parse thousands.
        if len(value) > len(str(_MAX_BIGINT)) or int(value) > _MAX_BIGINT:
            raise ValidationError
        return int(value)


def create_app(
    dsn: str, *, threads: int = DEFAULT_THREADS, clock: Clock | None = None
) -> Flask:
    """
    Wire the service to a database; no connection is opened before a request.

    Args:
        dsn: The shop's database, as a libpq URI or keywords.
        threads: The number of requests served at once; each has a connection.
        clock: The time of changes.
    """
    engine = make_engine(dsn, pool_size=threads)
    app = assemble(engine, clock or SystemClock())
    app.extensions["engine"] = engine
    return app


def assemble(engine: Engine, clock: Clock) -> Flask:
    """Wire the service to an engine."""
    # Schemas are compiled now, not in the first request.
    outbox = Outbox(shop_events(), clock=clock)
    sessions = sessionmaker(engine, expire_on_commit=False)
    Collector(outbox_event, outbox=outbox).install(sessions)
    app = Flask("towpath-orders", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.converters["bigint"] = _BigintConverter
    install_problems(app)
    app.register_blueprint(health_blueprint(engine, NEEDED_TABLES))
    app.extensions[EXTENSION] = RouteContext(sessions, clock)
    app.register_blueprint(blueprint)
    return app


def migrate_shop(engine: Engine) -> None:
    """
    Create or update the shop's tables.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    migrate(engine, package=MIGRATIONS, schema=SCHEMA)
