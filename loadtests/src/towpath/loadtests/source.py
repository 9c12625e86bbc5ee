"""What the users must know of the shop before they begin, read by SQL."""

from dataclasses import dataclass
from typing import Final

import psycopg

# Enough for a few minutes at any rate that one machine carries.
MAX_ORDERS: Final = 20_000
MAX_CUSTOMERS: Final = 2_000

_CUSTOMERS: Final = """
select id::text from shop.customers where active order by id limit %s
"""
_OPEN_ORDERS: Final = """
select id from shop.orders where status = 'placed' order by random() limit %s
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """Customers who may order, and open orders of theirs, in random order."""

    customers: tuple[str, ...]
    open_orders: tuple[int, ...]


def read_shop(dsn: str) -> Shop:
    """Read customers and open orders."""
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        customers = connection.execute(_CUSTOMERS, (MAX_CUSTOMERS,)).fetchall()
        orders = connection.execute(_OPEN_ORDERS, (MAX_ORDERS,)).fetchall()
    return Shop(tuple(row[0] for row in customers), tuple(row[0] for row in orders))
