"""
The service as an application and as a consumer: the only module that joins its parts.

Its API is ``GET /payments/{order_id}``, which responds with 200 or 404. A worker
in the consumer's process calls the payment provider.
"""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from flask import Blueprint, Flask, Response
from pydantic import AwareDatetime
from sqlalchemy import Engine

from towpath.schemas.clock import Clock
from towpath.services.payments.domain import EVENTS, PaymentStatus
from towpath.services.payments.handlers import ORDER_EVENTS, ProviderWorker
from towpath.services.payments.provider import SimulatedProvider
from towpath.services.payments.repository import SCHEMA, PaymentRepository
from towpath.services.plumbing.consumer import (
    Begin,
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
from towpath.services.plumbing.server import BackgroundTask
from towpath.services.plumbing.service import (
    DEFAULT_THREADS,
    base_app,
    response_by_order,
)

SCHEMAS: Final = "towpath.services.payments.schemas"
MIGRATIONS: Final = "towpath.services.payments.migrations"
NEEDED_TABLES: Final = ("payments.payments", "towpath.outbox")
PAYMENT: Final = "payment"
# The pause between two searches for provider calls that are due.
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
@operations.add(Operation(response=PaymentDocument))
def find_payment(order_id: int) -> Response:
    """Read the payment of an order."""
    return response_by_order(PaymentRepository, "payment", order_id)


event_schemas: Final = partial(event_schemas_in, SCHEMAS)
payment_events: Final = partial(events_by_order, SCHEMAS, PAYMENT, EVENTS.values())
collector: Final = partial(make_collector, payment_events)
migrate_payments: Final = partial(migrate, package=MIGRATIONS, schema=SCHEMA)


def _tasks(
    begin: Begin, engine: Engine, clock: Clock, stopping: threading.Event
) -> Sequence[BackgroundTask]:
    worker = ProviderWorker(begin, SimulatedProvider(engine), clock)

    def run_all_due() -> None:
        while not stopping.is_set() and worker.run_due():
            pass

    return [
        BackgroundTask("calls to the payment provider", _CALLS_EVERY_S, run_all_due)
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


def create_app(dsn: str, *, threads: int = DEFAULT_THREADS) -> Flask:
    """
    Wire the service to a database; this opens no connection.

    Args:
        dsn: The service's database, as a libpq URI or keyword/value string.
        threads: The number of concurrent requests; each has a connection.
    """
    engine = make_engine(dsn, pool_size=threads)
    app = base_app("towpath-payments", engine, NEEDED_TABLES)
    app.register_blueprint(blueprint)
    install_openapi(app, "Payments", operations)
    return app
