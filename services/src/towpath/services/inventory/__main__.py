"""
The inventory service as a process: ``serve``, ``consume``, ``migrate`` or ``seed``.

``serve``, the default, migrates the tables, registers the event schemas and listens;
``consume`` follows the orders; ``seed`` registers the products that the seeded orders
and the load name. The options have environment variables, such as ``INVENTORY_DSN``
and ``INVENTORY_PORT``.
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
from towpath.services.inventory.repository import seed_products
from towpath.services.plumbing.service import Command, Service, closing_engine

log = structlog.get_logger("towpath.services.inventory")


def _add_seed_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--products", type=int, default=1_000, help="how many products seed makes")
    add("--units", type=int, default=1_000_000, help="the units of each on hand")
    scarce = "the units on hand of every fiftieth product"
    add("--scarce-units", type=int, default=3, help=scarce)


def _seed(options: argparse.Namespace) -> None:
    with closing_engine(options.dsn) as engine:
        migrate_inventory(engine)
        seed_products(
            engine,
            products=options.products,
            units=options.units,
            scarce=options.scarce_units,
        )
    log.info("inventory seeded", products=options.products)


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
    # Only the root reads the environment.
    sys.exit(INVENTORY.main(sys.argv[1:], os.environ))  # noqa: TID251
