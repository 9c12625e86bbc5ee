"""
The orders service as a process: ``serve`` (the default), ``migrate`` or ``seed``.

``serve`` migrates the tables, registers the event schemas and then listens. Its options
have environment variables: ``SHOP_DSN``, ``SHOP_REGISTRY``, ``SHOP_HOST``,
``SHOP_PORT``, ``SHOP_THREADS``, ``SHOP_DRAIN_SECONDS``, ``SHOP_IDEMPOTENCY_HOURS``.
"""

import argparse
import os
import sys
from typing import Final

import structlog

from towpath.services.orders.app import create_app, migrate_shop
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
    create_app=create_app,
    commands=[Command("seed", _seed, _add_seed_options)],
)
main = ORDERS.main

if __name__ == "__main__":
    # Only the root reads the environment.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251
