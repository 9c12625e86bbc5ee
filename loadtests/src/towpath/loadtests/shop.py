"""
Locust's users: one kind buys, the other comes back to an order it left open.

Each kind keeps a total rate, however many users share it: locust shortens a user's
wait by the time its last task took. Requests are named by what they do, and the report
counts those names. A 409 says that the order has moved on since: an answer, not a
failure.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final
from uuid import uuid4

import gevent
from locust import FastHttpUser, constant_throughput, task

from towpath.loadtests.basket import Fate, basket, fate
from towpath.loadtests.source import Shop

CHECKOUT: Final = "checkout"
PAY: Final = Fate.PAID.value
CANCEL: Final = Fate.CANCELLED.value

_CONFLICT: Final = 409
_ANSWER_TIMEOUT_S: Final = 30.0

# Of the orders that customers come back to, three of four are paid at last.
_PAID_LATE_SHARE: Final = 0.75


class Visitor(FastHttpUser):
    """What both kinds do: come at their own moment, and change an order."""

    abstract = True
    connection_timeout = _ANSWER_TIMEOUT_S
    network_timeout = _ANSWER_TIMEOUT_S
    shop: Shop
    conflicts: Counter[str]
    pace_s: float

    def on_start(self) -> None:
        """Come at a random moment of the first interval, so that users spread."""
        self.random = Random()
        gevent.sleep(self.random.random() * self.pace_s)

    def change(self, order_id: int, what: str) -> None:
        """Pay or cancel an order."""
        with self.client.post(
            f"/orders/{order_id}/{what}", name=what, catch_response=True
        ) as response:
            if response.status_code == _CONFLICT:
                self.conflicts[what] += 1
                response.success()


class Buyer(Visitor):
    """Places an order, then pays it, cancels it or leaves it open."""

    abstract = True

    @task
    def checkout(self) -> None:
        """Place an order under a key of its own, and decide its fate."""
        with self.client.post(
            "/orders",
            json=basket(self.random, self.shop.customers),
            headers={"Idempotency-Key": str(uuid4())},
            name=CHECKOUT,
            catch_response=True,
        ) as response:
            placed = response.json() if response.ok else None
        what = fate(self.random)
        if placed is not None and what is not Fate.OPEN:
            self.change(int(placed["order_id"]), what.value)


class Returner(Visitor):
    """Comes back to an order that was left open, and pays or cancels it."""

    abstract = True
    orders: Iterator[int]

    @task
    def settle(self) -> None:
        """Take the next open order and settle it."""
        late = self.random.random() < _PAID_LATE_SHARE
        self.change(next(self.orders), PAY if late else CANCEL)


def buyers(
    shop: Shop, conflicts: Counter[str], *, rate: float, users: int
) -> type[Visitor]:
    """Make ``users`` buyers who check out ``rate`` times a second together."""
    return _kind(Buyer, rate, users, {"shop": shop, "conflicts": conflicts})


def returners(
    shop: Shop, conflicts: Counter[str], *, rate: float, users: int
) -> type[Visitor]:
    """Make ``users`` returners who settle ``rate`` open orders a second together."""
    orders = itertools.cycle(shop.open_orders)
    facts = {"shop": shop, "conflicts": conflicts, "orders": orders}
    return _kind(Returner, rate, users, facts)


def _kind(
    parent: type[Visitor], rate: float, users: int, facts: dict[str, object]
) -> type[Visitor]:
    pace = {
        "abstract": False,
        "wait_time": constant_throughput(rate / users),
        "fixed_count": users,
        "pace_s": users / rate,
    }
    return type(f"Paced{parent.__name__}", (parent,), {**pace, **facts})
