"""
A place to write to, as the contract's cases see it.

A target lends sinks on the same data, so that a case may let go of one and open
another, and tells what the data is.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from towpath.settings import Route
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.key_text import text_of
from towpath.sinks.ports import Sink, SinkReader, StoredRow
from towpath.sinks.targets.memory import MemorySink

ORDERS: Final = RelationShape(
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
LABELS: Final = RelationShape(
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


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """
    A place to write to, fresh for each test.

    Attributes:
        orders: Name of the first of its two routes.
        labels: Name of the second.
        orders_topic: Topic of the first.
        relations: Where the sinks learn the shapes of both tables.
        connect: Opens another sink on the same data.
        contents: Gives what a route holds, by key, tombstones included; see ``normal``.
    """

    orders: str
    labels: str
    orders_topic: str
    relations: StaticRelations
    connect: Callable[[], Sink]
    contents: Callable[[str], dict[str, StoredRow]]


def two_routes() -> tuple[Route, Route]:
    """Name two routes, of orders and of labels, that no other test writes."""
    unique = uuid.uuid4().hex[:8]
    orders, labels = (
        Route(topic=f"{unique}.shop.{table}", name=f"{table}-{unique}")
        for table in ("orders", "labels")
    )
    return orders, labels


def announced(routes: tuple[Route, Route]) -> StaticRelations:
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


def lend(
    routes: tuple[Route, Route],
    relations: StaticRelations,
    make: Callable[[], Sink],
    reader: SinkReader,
) -> Iterator[SinkTarget]:
    """
    Lend a target that a server holds, and let go of every sink afterwards.

    Args:
        routes: Of orders and of labels.
        relations: What ``make`` gave to its sinks.
        make: Makes a sink; it is opened here.
        reader: Reads back what the sinks wrote.
    """
    made: list[Sink] = []

    def connect() -> Sink:
        sink = make()
        sink.open()
        made.append(sink)
        return sink

    orders, labels = routes
    yield SinkTarget(
        orders.name,
        labels.name,
        orders.topic,
        relations,
        connect,
        lambda route: {row.key: normal(row) for row in reader.rows(route)},
    )
    for sink in made:
        sink.close()
    reader.close()


def memory_target() -> SinkTarget:
    """Make a target of the reference, which every other must equal."""
    sink = MemorySink()

    def contents(route: str) -> dict[str, StoredRow]:
        return {
            key: normal(StoredRow(key, s.row or {}, s.position, s.row is None))
            for key, s in sink.rows.get(route, {}).items()
        }

    orders, labels = routes = two_routes()
    return SinkTarget(
        orders.name,
        labels.name,
        orders.topic,
        announced(routes),
        lambda: sink,
        contents,
    )
