"""
What shoppers do, as values: what lies in a basket, and what becomes of an order.

Pure, and repeatable with a seeded ``Random``.
"""

import enum
from collections.abc import Sequence
from random import Random
from typing import Final
from uuid import UUID

# Of a hundred orders, sixty are paid and fifteen cancelled; the others stay open.
PAID_SHARE: Final = 0.60
CANCELLED_SHARE: Final = 0.15
MAX_LINES: Final = 4
MAX_QUANTITY: Final = 5
MAX_PRICE_CENTS: Final = 25_000

# A small catalogue, so that products repeat as they do in a shop.
_PRODUCTS: Final = tuple(UUID(int=(0xA11CE << 96) + number) for number in range(500))


class Fate(enum.Enum):
    """What becomes of an order after it was placed."""

    PAID = "pay"
    CANCELLED = "cancel"
    OPEN = "open"


def fate(random: Random) -> Fate:
    """Choose what becomes of an order."""
    chance = random.random()
    if chance < PAID_SHARE:
        return Fate.PAID
    return Fate.CANCELLED if chance < PAID_SHARE + CANCELLED_SHARE else Fate.OPEN


def basket(random: Random, customers: Sequence[str]) -> dict[str, object]:
    """Fill a basket of one to four lines for one of the customers."""
    return {
        "customer_id": random.choice(customers),
        "lines": [_line(random) for _ in range(random.randint(1, MAX_LINES))],
    }


def _line(random: Random) -> dict[str, object]:
    cents = random.randint(100, MAX_PRICE_CENTS)
    return {
        "product_id": str(random.choice(_PRODUCTS)),
        "quantity": random.randint(1, MAX_QUANTITY),
        "unit_price": f"{cents // 100}.{cents % 100:02d}",
    }
