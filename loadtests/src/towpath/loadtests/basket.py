"""
A customer's choices, as values: what lies in a basket, and who registers.

Pure, and repeatable with a seeded ``Random``.
"""

from collections.abc import Sequence
from random import Random
from typing import Final
from uuid import UUID

MAX_LINES: Final = 4
MAX_QUANTITY: Final = 5
MAX_PRICE_CENTS: Final = 25_000

# A small catalogue, so that products repeat as they do in a shop.
_PRODUCTS: Final = tuple(UUID(int=(0xA11CE << 96) + number) for number in range(500))


def basket(random: Random, customers: Sequence[str]) -> dict[str, object]:
    """Fill a basket of one to four lines for one of the customers."""
    return {
        "customer_id": random.choice(customers),
        "lines": [_line(random) for _ in range(random.randint(1, MAX_LINES))],
    }


def registration(random: Random) -> dict[str, object]:
    """Describe a new customer."""
    number = random.randrange(10**9)
    return {"name": f"Customer {number}", "email": f"load{number}@example.org"}


def _line(random: Random) -> dict[str, object]:
    cents = random.randint(100, MAX_PRICE_CENTS)
    return {
        "product_id": str(random.choice(_PRODUCTS)),
        "quantity": random.randint(1, MAX_QUANTITY),
        "unit_price": f"{cents // 100}.{cents % 100:02d}",
    }
