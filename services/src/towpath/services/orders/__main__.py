"""
The orders service as a process: ``serve``, ``consume``, ``migrate`` or ``seed``.

``serve``, the default, migrates the tables, registers the event schemas and listens;
``consume`` records the steps of the other services, and cancels overdue orders.
Every option has an environment variable, such as ``SHOP_DSN`` and ``SHOP_PORT``.

``seed`` creates customers and orders that have no events. Two statements create them,
in one transaction and without outbox rows: such orders reach a sink only through a
snapshot. Their stock counts as reserved, and the inventory service's ``seed --orders``
reserves it, so that they can be paid for. The same ``--seed`` gives the same customers,
products, quantities and prices; totals are the sums of their lines.
"""

import argparse
import os
import sys
from datetime import timedelta
from typing import Final

import structlog
from flask import Flask
from sqlalchemy import Engine, text

from towpath.services.orders.app import consuming, create_app, migrate_shop
from towpath.services.orders.domain import DEFAULT_WINDOWS, Windows
from towpath.services.orders.events import shop_schemas
from towpath.services.plumbing.database import SEEDED_LINES, translated
from towpath.services.plumbing.service import (
    Command,
    Service,
    closing_engine,
    number_from,
    seed_number,
)

log = structlog.get_logger("towpath.services.orders")

SECONDS_BETWEEN_ORDERS: Final = 7
# A year.
_MAX_WINDOW_S: Final = 366 * 86_400

_SEED_CUSTOMERS: Final = text("""
insert into shop.customers (id, name, email, created_at, updated_at)
select md5('customer ' || :seed || ' ' || n)::uuid,
       'Customer ' || n,
       'customer' || n || '@example.org',
       now(), now()
  from generate_series(1, :customers) as n
    on conflict (id) do nothing
""")

# The stock of each order is reserved: inventory seeds the reservations.
_SEED_ORDERS: Final = text(f"""
with {SEEDED_LINES}, numbered as materialized (
    select n, nextval(pg_get_serial_sequence('shop.orders', 'id')) as id,
           hashint8extended(n, :seed) & 2147483647 as dice
      from generate_series(1, :orders) as n
), lines as materialized (
    select id, seeded_lines.* from numbered join seeded_lines using (n)
), placed as (
    insert into shop.orders
           (id, customer_id, status, total, currency, attributes, note,
            placed_at, updated_at)
    select o.id,
           md5('customer ' || :seed || ' ' || 1 + o.dice / 4 % :customers)::uuid,
           'placed'::shop.order_status,
           sum(l.quantity * l.unit_price),
           'EUR',
           case when o.dice % 3 = 0 then jsonb_build_object('gift', true) end,
           case when o.dice % 10 = 0 then 'Please ring twice.' end,
           now() - (:orders - o.n) * make_interval(secs => :seconds_between),
           now() - (:orders - o.n) * make_interval(secs => :seconds_between)
      from numbered as o join lines as l using (id)
     group by o.id, o.n, o.dice
     order by o.n
    returning id, placed_at
), reserved as (
    insert into shop.order_steps (order_id, step, at)
    select id, 'stock_reserved', placed_at
      from placed
)
insert into shop.order_lines (order_id, line_no, product_id, quantity, unit_price)
select id, line_no, product_id, quantity, unit_price
  from lines
 order by n, line_no
""")  # noqa: S608 - a constant


def has_orders(engine: Engine) -> bool:
    """Return whether the shop has any orders; its tables must exist."""
    with translated(), engine.connect() as connection:
        return bool(connection.scalar(text("select exists (select from shop.orders)")))


def seed_shop(engine: Engine, *, orders: int, customers: int, seed: int = 1) -> None:
    """
    Insert missing customers, and a number of orders.

    Args:
        engine: The shop's database, with its tables.
        orders: The number of orders, all placed, with one to four lines each.
        customers: The number of their customers; at least one.
        seed: A different seed gives different customers and orders.

    Raises:
        UnavailableError: The database cannot be reached, or has no tables yet.
    """
    with translated(), engine.begin() as connection:
        connection.execute(text("set local statement_timeout = 0"))
        connection.execute(_SEED_CUSTOMERS, {"customers": customers, "seed": seed})
        choice = {
            "orders": orders,
            "customers": customers,
            "seed": seed,
            "seconds_between": SECONDS_BETWEEN_ORDERS,
        }
        connection.execute(_SEED_ORDERS, choice)
        # Collect planner statistics now, not at the next autovacuum.
        tables = "shop.customers, shop.orders, shop.order_lines, shop.order_steps"
        connection.execute(text(f"analyze {tables}"))


def _add_seed_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    orders, customers = "the number of orders", "the number of customers"
    add("--orders", type=number_from(0), default=50_000, help=orders)
    add("--customers", type=number_from(1), default=5_000, help=customers)
    add(
        "--seed",
        type=seed_number,
        default=1,
        help="a different seed gives different orders",
    )
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


def seconds(text: str) -> float:
    """Parse the seconds that an order may wait."""
    if not 0 <= (value := float(text)) <= _MAX_WINDOW_S:
        message = f"must be from 0 to {_MAX_WINDOW_S} seconds"
        raise argparse.ArgumentTypeError(message)
    return value


def _add_windows(parser: argparse.ArgumentParser) -> None:
    helps = {
        "payment": (
            "an order whose payment is not requested within this time is cancelled"
        ),
        "confirmation": (
            "an order in payment that is not confirmed within this time is cancelled"
        ),
        "delivery": (
            "an order that is not paid within this time of its confirmation, or not "
            "dispatched within this time of its payment, is recalled"
        ),
    }
    for name, described in helps.items():
        default_s = getattr(DEFAULT_WINDOWS, name).total_seconds()
        parser.add_argument(
            f"--{name}-seconds", type=seconds, default=default_s, help=described
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
    commands=[Command("seed", _seed, _add_seed_options)],
)
main = ORDERS.main

if __name__ == "__main__":
    # Only entry points read the environment.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251
