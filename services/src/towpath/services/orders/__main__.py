"""
The orders service as a process: ``serve``, ``consume``, ``migrate`` or ``seed``.

``serve``, the default, migrates the tables, registers the event schemas and listens;
``consume`` takes the steps of the other services, and cancels orders that are overdue.
The options have environment variables, such as ``SHOP_DSN`` and ``SHOP_PORT``.
"""

import argparse
import os
import sys
from datetime import timedelta
from typing import Final

import structlog
from flask import Flask

from towpath.services.orders.app import create_app, migrate_shop
from towpath.services.orders.consumer import consuming
from towpath.services.orders.domain import DEFAULT_WINDOWS, Windows
from towpath.services.orders.events import shop_schemas
from towpath.services.orders.repository import has_orders, seed_shop
from towpath.services.plumbing.service import Command, Service, closing_engine

log = structlog.get_logger("towpath.services.orders")


def _add_seed_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--orders", type=int, default=50_000, help="how many orders seed places")
    add("--customers", type=int, default=5_000, help="how many customers seed makes")
    add("--seed", type=int, default=1, help="a different seed gives different orders")
    add("--if-empty", action="store_true", help="seed only a shop without orders")


def _add_windows(parser: argparse.ArgumentParser) -> None:
    add, usual = parser.add_argument, DEFAULT_WINDOWS
    open_s, delivery_s = usual.open.total_seconds(), usual.delivery.total_seconds()
    confirmed = "an order that is not confirmed after this time is cancelled"
    add("--open-seconds", type=float, default=open_s, help=confirmed)
    dispatched = "a confirmed order that is not dispatched after this time is recalled"
    add("--delivery-seconds", type=float, default=delivery_s, help=dispatched)


def _windows(options: argparse.Namespace) -> Windows:
    return Windows(
        open=timedelta(seconds=options.open_seconds),
        delivery=timedelta(seconds=options.delivery_seconds),
    )


def _create_app(options: argparse.Namespace) -> Flask:
    return create_app(
        options.dsn,
        threads=options.threads,
        idempotency_hours=options.idempotency_hours,
        windows=_windows(options),
    )


def _seed(options: argparse.Namespace) -> None:
    with closing_engine(options.dsn) as engine:
        migrate_shop(engine)
        if options.if_empty and has_orders(engine):
            log.info("shop has orders: not seeded")
            return
        seed_shop(
            engine,
            orders=options.orders,
            customers=options.customers,
            seed=options.seed,
        )
    log.info("shop seeded", orders=options.orders, customers=options.customers)


ORDERS: Final = Service(
    name="orders",
    description=__doc__,
    prefix="SHOP",
    migrate=migrate_shop,
    event_schemas=shop_schemas,
    create_app=_create_app,
    consuming=lambda options: consuming(_windows(options)),
    add_options=_add_windows,
    commands=[Command("seed", _seed, _add_seed_options)],
)
main = ORDERS.main

if __name__ == "__main__":
    # Only the root reads the environment.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251
