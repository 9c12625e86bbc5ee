"""
The targets of the sink contract: memory first, then every real one.

A target lends sinks on the same data, so that a test may let go of one and open
another, and tells what the data is. To add one: a fixture ``<name>_target`` and a line
in ``TARGETS``.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from towpath.schemas.clock import SystemClock
from towpath.settings import Route
from towpath.sinks.cache.reader import CacheReader
from towpath.sinks.cache.sink import CacheSink
from towpath.sinks.memory import MemorySink
from towpath.sinks.ports import Sink, SinkReader, StoredRow
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.search.reader import SearchReader
from towpath.sinks.search.sink import SearchSink
from towpath.sinks.values import text_of
from towpath.sinks.warehouse.reader import WarehouseReader
from towpath.sinks.warehouse.sink import WarehouseSink

TARGETS = [
    "memory",
    pytest.param(
        "cache", marks=[pytest.mark.integration, pytest.mark.timeout(90)], id="cache"
    ),
    pytest.param(
        "search", marks=[pytest.mark.integration, pytest.mark.timeout(90)], id="search"
    ),
    pytest.param(
        "warehouse",
        marks=[pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)],
        id="warehouse",
    ),
]

ORDERS = RelationShape(
    schema="shop",
    table="orders",
    columns=(
        Column("order_id", "bigint", nullable=False),
        Column("status", "shop.order_status"),
        Column("total", "numeric", 786438),
        Column("weight", "numeric"),
        Column("paid", "boolean"),
        Column("note", "text"),
        Column("attributes", "jsonb"),
        Column("placed_at", "timestamp with time zone"),
    ),
    key=("order_id",),
    position="0000000000000000.0000000000",
)
LABELS = RelationShape(
    schema="shop",
    table="labels",
    columns=(Column("name", "text", nullable=False), Column("note", "text")),
    key=("name",),
    position="0000000000000000.0000000000",
)


class StaticRelations:
    """Shapes that are known from the start; ``announce`` adds what a test needs."""

    def __init__(self) -> None:
        self._shapes: dict[str, RelationShape] = {}
        self._announced: dict[str, RelationShape] = {}

    def announce(self, topic: str, shape: RelationShape) -> None:
        """Publish a shape; who knew an older one must refresh to see it."""
        self._announced[topic] = shape
        self._shapes.setdefault(topic, shape)

    def shape(self, topic: str) -> RelationShape:
        """Return the shape as of the last refresh."""
        return self._shapes[topic]

    def refresh(self) -> None:
        """See what was announced since."""
        self._shapes.update(self._announced)


@dataclass
class Target:
    """
    A place to write to, fresh for each test.

    ``orders`` and ``labels`` are the names of its two routes, ``orders_topic`` the
    topic of the first. ``connect`` opens another sink on the same data; ``contents``
    gives what a route holds, by key.
    """

    orders: str
    labels: str
    orders_topic: str
    relations: StaticRelations
    connect: Callable[[], Sink]
    contents: Callable[[str], dict[str, StoredRow]]


def announced(routes) -> StaticRelations:
    """Announce the shapes of the two routes' tables."""
    known = StaticRelations()
    for route, shape in zip(routes, (ORDERS, LABELS), strict=True):
        known.announce(route.topic, shape)
    return known


def normal(row: StoredRow) -> StoredRow:
    """Write fields as text, without nulls; nothing counts of a deleted row."""
    fields = {} if row.is_deleted else row.fields
    told = {name: text_of(value) for name, value in fields.items() if value is not None}
    return row._replace(fields=told)


def contents_of(reader: SinkReader, route: str) -> dict[str, StoredRow]:
    """Read a route back."""
    return {row.key: normal(row) for row in reader.rows(route)}


@pytest.fixture(params=TARGETS)
def target(request) -> Target:
    """Lend each of the targets in turn."""
    return request.getfixturevalue(f"{request.param}_target")


@pytest.fixture
def routes() -> tuple[Route, Route]:
    """Name two routes that no other test writes."""
    unique = uuid.uuid4().hex[:8]
    return tuple(
        Route(topic=f"{unique}.shop.{table}", name=f"{table}-{unique}")
        for table in ("orders", "labels")
    )


@pytest.fixture
def relations(routes) -> StaticRelations:
    """Announce the shapes of both routes' tables."""
    return announced(routes)


@pytest.fixture
def memory_target(routes, relations) -> Target:
    """Lend the reference."""
    sink = MemorySink()

    def contents(route):
        return {
            key: normal(StoredRow(key, s.row or {}, s.position, s.row is None))
            for key, s in sink.rows.get(route, {}).items()
        }

    orders, labels = routes
    return Target(
        orders.name, labels.name, orders.topic, relations, lambda: sink, contents
    )


@pytest.fixture
def cache_target(stack, routes, relations) -> Iterator[Target]:
    """Lend Redis, under a prefix of the test's own."""
    prefix = routes[0].topic.partition(".")[0]
    reader = CacheReader(stack.redis_url, prefix)
    yield from _served(
        routes,
        relations,
        lambda: CacheSink(stack.redis_url, prefix, tombstone_s=3600),
        reader,
    )


@pytest.fixture
def search_target(stack, routes, relations) -> Iterator[Target]:
    """Lend OpenSearch, with indexes of the test's own."""
    yield from _served(
        routes,
        relations,
        lambda: SearchSink(stack.opensearch_url, routes, relations, SystemClock()),
        SearchReader(stack.opensearch_url),
    )


@pytest.fixture
def warehouse_target(lake) -> Iterator[Target]:
    """Lend the warehouse, with tables of the test's own."""
    described, session = lake
    unique = uuid.uuid4().hex[:8]
    routes = tuple(
        Route(topic=f"{unique}.shop.{table}", name=f"shop.{table}_{unique}")
        for table in ("orders", "labels")
    )
    relations = announced(routes)
    sink = described.model_copy(update={"route": routes})
    yield from _served(
        routes,
        relations,
        lambda: WarehouseSink(sink, relations, session),
        WarehouseReader(sink),
    )


def _served(
    routes: tuple[Route, Route],
    relations: StaticRelations,
    make: Callable[[], Sink],
    reader: SinkReader,
) -> Iterator[Target]:
    """Lend a target that a server holds, and let go of every sink afterwards."""
    made: list[Sink] = []

    def connect() -> Sink:
        sink = make()
        sink.open()
        made.append(sink)
        return sink

    orders, labels = routes
    yield Target(
        orders.name,
        labels.name,
        orders.topic,
        relations,
        connect,
        lambda route: contents_of(reader, route),
    )
    for sink in made:
        sink.close()
    reader.close()
