"""
The targets of the sink contract: memory first, then every real one.

A new target needs a fixture ``<name>_target`` and a line in ``TARGETS``.
"""

import uuid
from collections.abc import Iterator

import pytest

from support.warehouse_tables import engines
from support.webhook_receiver import SECRET, Receiver
from towpath.schemas.clock import SystemClock
from towpath.settings import Route, Sink
from towpath.settings.sink import WebhookOptions
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.postgres.read import PostgresReader
from towpath.sinks.targets.postgres.sink import PostgresSink
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.warehouse.read import WarehouseReader
from towpath.sinks.targets.warehouse.sink import WarehouseSink
from towpath.sinks.targets.webhook.sink import WebhookSink
from towpath.testing import SinkTarget, announced, lend, two_routes
from towpath.testing import memory_target as reference_target

TARGETS = [
    "memory",
    pytest.param(
        "webhook",
        marks=[pytest.mark.integration, pytest.mark.timeout(90)],
        id="webhook",
    ),
    pytest.param(
        "cache", marks=[pytest.mark.integration, pytest.mark.timeout(90)], id="cache"
    ),
    pytest.param(
        "search", marks=[pytest.mark.integration, pytest.mark.timeout(90)], id="search"
    ),
    pytest.param(
        "postgres",
        marks=[pytest.mark.integration, pytest.mark.timeout(90)],
        id="postgres",
    ),
    pytest.param(
        "warehouse",
        marks=[pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)],
        id="warehouse",
    ),
]


@pytest.fixture(params=TARGETS)
def target(request) -> SinkTarget:
    """Return each target in turn."""
    requested: SinkTarget = request.getfixturevalue(f"{request.param}_target")
    return requested


@pytest.fixture
def memory_target() -> SinkTarget:
    """Return the reference sink."""
    return reference_target()


@pytest.fixture
def cache_target(stack) -> Iterator[SinkTarget]:
    """Return Redis, with a key prefix for the test."""
    routes = two_routes()
    prefix = routes[0].topic.partition(".")[0]
    yield from lend(
        routes,
        announced(routes),
        lambda: CacheSink(stack.redis_url, prefix, tombstone_s=3600),
        CacheReader(stack.redis_url, prefix),
    )


@pytest.fixture
def search_target(stack) -> Iterator[SinkTarget]:
    """Return OpenSearch, with indexes for the test."""
    routes = two_routes()
    relations = announced(routes)
    yield from lend(
        routes,
        relations,
        lambda: SearchSink(stack.opensearch_url, routes, relations, SystemClock()),
        SearchReader(stack.opensearch_url),
    )


@pytest.fixture
def postgres_target(database) -> Iterator[SinkTarget]:
    """Return Postgres, with a database for the test."""
    routes = tuple(
        route.model_copy(update={"name": f"models.{route.name}"})
        for route in two_routes()
    )
    relations = announced(routes)
    sink = Sink(name="it", kind="postgres", url=database, route=routes)
    yield from lend(
        routes,
        relations,
        lambda: PostgresSink(sink, relations),
        PostgresReader(sink),
        is_atomic=True,
    )


@pytest.fixture
def webhook_target() -> Iterator[SinkTarget]:
    """Return a receiver that keeps rows as the guide for receivers describes."""
    receiver = Receiver()
    routes = two_routes()
    options = WebhookOptions(secrets=(SECRET,), changes_per_request=3)
    yield from lend(
        routes,
        announced(routes),
        lambda: WebhookSink(receiver.url, options, SystemClock()),
        receiver,
    )


@pytest.fixture
def warehouse_target(lake) -> Iterator[SinkTarget]:
    """Return the warehouse, with tables for the test."""
    described, session = lake
    unique = uuid.uuid4().hex[:8]
    orders, labels = (
        Route(topic=f"{unique}.shop.{table}", name=f"shop.{table}_{unique}")
        for table in ("orders", "labels")
    )
    routes = orders, labels
    relations = announced(routes)
    sink = described.model_copy(update={"route": routes})
    yield from lend(
        routes,
        relations,
        lambda: WarehouseSink(sink, relations, engines(sink, session)),
        WarehouseReader(sink),
    )
