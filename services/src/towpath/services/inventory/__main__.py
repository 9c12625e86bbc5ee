"""
The inventory service as a process: ``serve``, ``consume``, ``migrate`` or ``seed``.

``serve``, the default, migrates the tables, registers the event schemas and listens;
``consume`` consumes the orders' events; ``seed`` registers the products that the seeded
orders and the load test use, and with ``--orders`` reserves stock for the orders that
the orders service's ``seed`` has placed. Every option has an environment variable,
such as ``INVENTORY_DSN`` and ``INVENTORY_PORT``.
"""

import argparse
import os
import sys
from typing import Final

import structlog

from towpath.services.inventory.app import (
    CONSUMING,
    create_app,
    event_schemas,
    migrate_inventory,
)
from towpath.services.inventory.repository import (
    has_reservations,
    seed_products,
    seed_reservations,
)
from towpath.services.plumbing.database import SEEDED_PRODUCTS
from towpath.services.plumbing.service import (
    Command,
    Service,
    closing_engine,
    number_from,
    seed_number,
)

log = structlog.get_logger("towpath.services.inventory")


def _add_seed_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    created = f"the number of products; at least {SEEDED_PRODUCTS:,} with orders"
    count = number_from(0)
    add("--products", type=count, default=SEEDED_PRODUCTS, help=created)
    units = "the units on hand of each product"
    add("--units", type=count, default=1_000_000, help=units)
    scarce = "the units on hand of every fiftieth product"
    add("--scarce-units", type=count, default=3, help=scarce)
    orders = "the number of orders that the shop was seeded with"
    add("--orders", type=count, default=0, help=orders)
    first = "the number of the first order"
    add("--first-order", type=number_from(1), default=1, help=first)
    add("--seed", type=seed_number, default=1, help="the seed of these orders")
    once = "reserve for orders only if there is no reservation yet"
    add("--if-empty", action="store_true", help=once)


def _seed(options: argparse.Namespace) -> None:
    with closing_engine(options.dsn) as engine:
        migrate_inventory(engine)
        # The seeded orders together refer to this many products.
        minimum = SEEDED_PRODUCTS if options.orders else 0
        products = max(options.products, minimum)
        seed_products(
            engine,
            products=products,
            units=options.units,
            scarce=options.scarce_units,
        )
        # Further order numbers may already belong to orders that customers placed.
        if options.if_empty and has_reservations(engine):
            log.info("inventory has reservations: no orders seeded")
            return
        seed_reservations(
            engine,
            orders=options.orders,
            first_order=options.first_order,
            seed=options.seed,
        )
    log.info("inventory seeded", products=products, orders=options.orders)


INVENTORY: Final = Service(
    name="inventory",
    description=__doc__,
    prefix="INVENTORY",
    migrate=migrate_inventory,
    event_schemas=event_schemas,
    create_app=lambda options: create_app(
        options.dsn,
        threads=options.threads,
        idempotency_hours=options.idempotency_hours,
    ),
    consuming=lambda _options: CONSUMING,
    commands=[Command("seed", _seed, _add_seed_options)],
)

if __name__ == "__main__":
    # Only entry points read the environment.
    sys.exit(INVENTORY.main(sys.argv[1:], os.environ))  # noqa: TID251
