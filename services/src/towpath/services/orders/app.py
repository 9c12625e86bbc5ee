"""
The wiring of the service, as an application and as a consumer.

A step of another service advances the order in the transaction of the inbox. The
service itself cancels orders whose deadline has passed, each in its own transaction.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog
from flask import Flask
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox import Outbox
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import log_failure
from towpath.services.orders import handlers
from towpath.services.orders.api import EXTENSION, OrdersContext, blueprint, operations
from towpath.services.orders.domain import DEFAULT_WINDOWS, Step, StepRecord, Windows
from towpath.services.orders.events import outbox_event, shop_events
from towpath.services.orders.repository import (
    OVERDUE_AT_ONCE,
    SCHEMA,
    OrdersStore,
    OrdersUnit,
    count_unfinished,
    idempotency,
)
from towpath.services.plumbing.consumer import (
    Begin,
    Consuming,
    EventConsumer,
    begin_in,
    make_sessions,
)
from towpath.services.plumbing.database import make_engine, migrate
from towpath.services.plumbing.idempotency import CommandExecutor, IdempotencyKeys
from towpath.services.plumbing.metrics import counted, metrics_of
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.server import LIFECYCLE, BackgroundTask
from towpath.services.plumbing.service import (
    DEFAULT_THREADS,
    IDEMPOTENCY_HOURS,
    base_app,
)

MIGRATIONS: Final = "towpath.services.orders.migrations"
migrate_shop: Final = partial(migrate, package=MIGRATIONS, schema=SCHEMA)
NEEDED_TABLES: Final = ("shop.customers", "shop.orders", "towpath.outbox")

_STEPS: Final[Mapping[str, Step]] = {
    "StockReserved": Step.STOCK_RESERVED,
    "StockRejected": Step.STOCK_REJECTED,
    "StockReleased": Step.STOCK_RELEASED,
    "StockSold": Step.STOCK_SOLD,
    "StockReturned": Step.STOCK_RETURNED,
    "PaymentAuthorized": Step.PAYMENT_AUTHORIZED,
    "PaymentDeclined": Step.PAYMENT_DECLINED,
    "PaymentCaptured": Step.PAYMENT_CAPTURED,
    "PaymentVoided": Step.PAYMENT_VOIDED,
    "PaymentRefunded": Step.PAYMENT_REFUNDED,
    "ShipmentDispatched": Step.SHIPMENT_DISPATCHED,
    "ShipmentFailed": Step.SHIPMENT_FAILED,
    "ShipmentCancelled": Step.SHIPMENT_CANCELLED,
}
# The usual scrape interval of Prometheus.
_SAGAS_EVERY_S: Final = 15.0
# The pause between two checks of the deadlines.
_DEADLINES_EVERY_S: Final = 1.0

_log = structlog.get_logger("towpath.services")


def collector(clock: Clock) -> Collector:
    """Make the collector of the orders' events."""
    # Schemas are compiled now, not in the first transaction.
    return Collector(counted(outbox_event), outbox=Outbox(shop_events(), clock=clock))


def consuming(windows: Windows = DEFAULT_WINDOWS) -> Consuming:
    """
    Declare the service's consumer process.

    Args:
        windows: The longest times that orders may wait.
    """
    store = partial(OrdersStore, windows=windows)
    return Consuming(
        consumer=EventConsumer(
            name="orders",
            schema=SCHEMA,
            aggregates=("reservation", "payment", "shipment"),
            handlers={name: partial(_record, step) for name, step in _STEPS.items()},
            store=store,
        ),
        collector=collector,
        tasks=partial(_tasks, store),
    )


def _record(
    step: Step, payload: Mapping[str, Any], store: OrdersStore, at: datetime
) -> None:
    occurred_at = datetime.fromisoformat(payload["updated_at"])
    detail = payload["reason"] or payload.get("tracking_number")
    record = StepRecord(occurred_at, detail)
    handlers.record_step(payload["order_id"], step, record, store, at)


def _tasks(
    store: "partial[OrdersStore]",
    begin: Begin,
    _engine: Engine,
    clock: Clock,
    stopping: threading.Event,
) -> Sequence[BackgroundTask]:
    # Orders that always fail must not prevent the cancellation of later ones: the next
    # checks skip them, until a check has reached the last overdue order.
    skipped = 0

    def expire() -> None:
        nonlocal skipped
        with begin() as session:
            overdue = store(session).orders.overdue(clock.now(), skipped=skipped)
        is_last = len(overdue) < OVERDUE_AT_ONCE
        for order_id in overdue:
            if stopping.is_set():
                return
            skipped += not _cancel(order_id, store, begin, clock)
        if is_last:
            skipped = 0

    return [BackgroundTask("deadlines of orders", _DEADLINES_EVERY_S, expire)]


def _cancel(
    order_id: int, store: "partial[OrdersStore]", begin: Begin, clock: Clock
) -> bool:
    """Cancel an order if it is still overdue; return whether that succeeded."""
    try:
        with begin() as session:
            handlers.expire_order(order_id, store(session), clock.now())
    except Exception as error:  # noqa: BLE001 - including the driver's own
        log_failure(_log, "order not cancelled", error, order_id=order_id)
        return False
    return True


def _unfinished(sessions: sessionmaker[Session]) -> Mapping[str, int]:
    with begin_in(sessions)() as session:
        return count_unfinished(session)


def create_app(
    dsn: str,
    *,
    threads: int = DEFAULT_THREADS,
    idempotency_hours: float = IDEMPOTENCY_HOURS,
    windows: Windows = DEFAULT_WINDOWS,
    clock: Clock | None = None,
) -> Flask:
    """
    Wire the service to a database; this opens no connection.

    Args:
        dsn: The shop's database, as a libpq URI or keyword/value string.
        threads: The number of requests served at the same time; each has a connection.
        idempotency_hours: How long an ``Idempotency-Key`` is kept.
        windows: The longest times that orders may wait.
        clock: Gives the time of changes.
    """
    # Two more connections than requests, for expired keys and for metrics.
    engine = make_engine(dsn, pool_size=threads + 2)
    clock = clock or SystemClock()
    app = base_app("towpath-orders", engine, NEEDED_TABLES)
    sessions = make_sessions(engine, collector(clock), metrics_of(app))
    keys = IdempotencyKeys(idempotency, hours=idempotency_hours)
    show_sagas = partial(metrics_of(app).show_sagas, partial(_unfinished, sessions))
    counts = BackgroundTask("counts of sagas", _SAGAS_EVERY_S, show_sagas)
    app.extensions[LIFECYCLE].tasks.extend([keys.deletion(engine), counts])
    commands = CommandExecutor(
        lambda traceparent: OrdersUnit(sessions, traceparent, windows), keys, clock
    )
    app.extensions[EXTENSION] = OrdersContext(sessions, commands)
    app.register_blueprint(blueprint)
    install_openapi(app, "Orders", operations)
    return app
