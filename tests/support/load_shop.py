"""A shop for load tests: a real service, and a thread that caches its orders."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from support.orders_service import Service, orders_service
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import LazyStack

COUNTS = "select count(*), count(payment_method) from shop.orders"


@dataclass
class Shop:
    """A service on a database, and a cache with its orders."""

    service: Service
    dsn: str
    redis_url: str
    key: str

    def orders(self) -> tuple[int, int]:
        """Count the orders, and those whose payment was requested."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(COUNTS).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def lag(self, **changed: str) -> dict[str, str]:
        """Return the load test's options for the cache."""
        options = {"CACHE_URL": self.redis_url, "CACHE_KEY": self.key} | changed
        return {f"TOWPATH_LOAD_{name}": value for name, value in options.items()}


@contextmanager
def load_shop(stack: LazyStack, folder: Path) -> Iterator[Shop]:
    """Provide a shop with a database of its own."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    postgres.create_database(stack.dsn("postgres"), name)
    dsn = stack.dsn(name)
    closed = threading.Event()
    with orders_service(dsn, folder) as service:
        found = Shop(service, dsn, stack.redis_url, f"{name}:orders:{{}}")
        thread = threading.Thread(target=_follow, args=(found, closed))
        thread.start()
        try:
            yield found
        finally:
            closed.set()
            thread.join()
    postgres.drop_database(stack.dsn("postgres"), name)


def _follow(shop: Shop, closed: threading.Event) -> None:
    copied: set[int] = set()
    with (
        redis.Redis.from_url(shop.redis_url) as cache,
        psycopg.connect(shop.dsn, autocommit=True) as connection,
    ):
        while not closed.wait(0.05):
            # A smaller id may become visible after a larger one.
            found = {row[0] for row in connection.execute("select id from shop.orders")}
            for order_id in found - copied:
                cache.hset(shop.key.format(order_id), "id", order_id)
            copied = found
