"""
The service as an application and as a consumer: the only module that joins its parts.

Its protocol is ``GET /payments/{order_id}``, 200 or 404. Beside the consumer a worker
calls the payment provider.
"""

import dataclasses
import functools
from collections.abc import Sequence
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
from towpath.services.payments.domain import EVENTS, PaymentStatus
from towpath.services.payments.handlers import ORDER_EVENTS, ProviderWorker
from towpath.services.payments.provider import SimulatedProvider
from towpath.services.payments.repository import SCHEMA, PaymentRepository
from towpath.services.plumbing.consumer import (
    Begin,
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
from towpath.services.plumbing.server import BackgroundTask
from towpath.services.plumbing.service import DEFAULT_THREADS, base_app

SCHEMAS: Final = "towpath.services.payments.schemas"
MIGRATIONS: Final = "towpath.services.payments.migrations"
NEEDED_TABLES: Final = ("payments.payments", "towpath.outbox")
PAYMENT: Final = "payment"
EXTENSION: Final = "towpath.payments"
# A payment waits for its provider at most this much longer.
_CALLS_EVERY_S: Final = 0.1

blueprint = Blueprint("payments", __name__)
operations = Operations("payments")


class PaymentDocument(Document):
    """The payment of an order; ``amount`` is decimal text."""

    order_id: int
    amount: str
    currency: str
    method: str
    status: PaymentStatus
    reason: str | None
    version: int
    updated_at: AwareDatetime


@blueprint.get("/payments/<bigint:order_id>")
@operations.add(Operation(answer=PaymentDocument))
def find_payment(order_id: int) -> Response:
    """Read the payment of an order."""
    sessions: sessionmaker[Session] = current_app.extensions[EXTENSION]
    with UnitOfWork(sessions) as unit:
        payment = PaymentRepository(unit.session).find(order_id)
    if payment is None:
        message = f"There is no payment of order {order_id}."
        raise NotFoundError(message)
    document: dict[str, Any] = dataclasses.asdict(payment)
    del document["events"]
    return json_answer(HTTPStatus.OK, plain(document))


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
    app = base_app("towpath-payments", engine, NEEDED_TABLES)
    app.extensions[EXTENSION] = make_sessions(engine, collector(clock or SystemClock()))
    app.register_blueprint(blueprint)
    install_openapi(app, "Payments", operations)
    return app


def migrate_payments(engine: Engine) -> None:
    """
    Create or update the service's tables.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    migrate(engine, package=MIGRATIONS, schema=SCHEMA)
