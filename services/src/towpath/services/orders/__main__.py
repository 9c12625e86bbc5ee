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

from flask import Flask

from towpath.services.orders.app import consuming, create_app, migrate_shop
from towpath.services.orders.domain import DEFAULT_WINDOWS, Windows
from towpath.services.orders.events import shop_schemas
from towpath.services.orders.seed import SEED
from towpath.services.plumbing.service import Service, seconds


def _add_windows(parser: argparse.ArgumentParser) -> None:
    helps = {
        "payment": "an order that nobody pays for so long is cancelled",
        "confirmation": "an order that is being paid for so long is cancelled",
        "delivery": "a confirmed order that is not dispatched for so long is recalled",
    }
    for name, text in helps.items():
        usual_s = getattr(DEFAULT_WINDOWS, name).total_seconds()
        parser.add_argument(
            f"--{name}-seconds", type=seconds, default=usual_s, help=text
        )


def _windows(options: argparse.Namespace) -> Windows:
    return Windows(
        payment=timedelta(seconds=options.payment_seconds),
        confirmation=timedelta(seconds=options.confirmation_seconds),
        delivery=timedelta(seconds=options.delivery_seconds),
    )


def _create_app(options: argparse.Namespace) -> Flask:
    return create_app(
        options.dsn,
        threads=options.threads,
        idempotency_hours=options.idempotency_hours,
        windows=_windows(options),
    )


ORDERS: Final = Service(
    name="orders",
    description=__doc__,
    prefix="SHOP",
    migrate=migrate_shop,
    event_schemas=shop_schemas,
    create_app=_create_app,
    consuming=lambda options: consuming(_windows(options)),
    add_options=_add_windows,
    commands=[SEED],
)
main = ORDERS.main

if __name__ == "__main__":
    # Only the root reads the environment.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251
