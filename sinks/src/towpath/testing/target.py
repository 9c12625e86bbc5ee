"""
The target of the contract's cases, and the changes that they apply to it.

A target opens any number of sinks on the same data, so that a case can close one and
open another, and reads the data back.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from towpath.settings import Route
from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin, Row, Value
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.fold import newest_per_key
from towpath.sinks.key_text import text_of
from towpath.sinks.ports import Batch, Checkpoint, Sink, SinkReader, StoredRow
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
    """Shapes that are known from the start; ``announce`` adds more."""

    def __init__(self) -> None:
        self._shapes: dict[str, RelationShape] = {}
        self._announced: dict[str, RelationShape] = {}

    def announce(self, topic: str, shape: RelationShape) -> None:
        """Publish a shape; a reader of an older one sees it after a refresh."""
        self._announced[topic] = shape
        self._shapes.setdefault(topic, shape)

    def shape(self, topic: str) -> RelationShape:
        """Return the shape as of the last refresh."""
        return self._shapes[topic]

    def refresh(self) -> None:
        """Adopt the shapes that were announced after the last refresh."""
        self._shapes.update(self._announced)


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """
    A target to write to, new for each test.

    Attributes:
        orders: Name of the route of orders.
        labels: Name of the route of labels.
        orders_topic: Topic of the orders.
        relations: The shapes of both tables, as the sinks see them.
        connect: Opens another sink on the same data.
        contents: Returns the rows of a route by key, tombstones included; see
            ``normal``.
        is_atomic: Whether a call of ``apply`` is written as a whole or not at all.
    """

    orders: str
    labels: str
    orders_topic: str
    relations: StaticRelations
    connect: Callable[[], Sink]
    contents: Callable[[str], dict[str, StoredRow]]
    is_atomic: bool = False


def two_routes() -> tuple[Route, Route]:
    """Return routes of orders and of labels that no other test writes to."""
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
    """Return the row with its fields as text, without nulls; a tombstone has none."""
    fields = {} if row.is_deleted else row.fields
    given = {
        name: text_of(value) for name, value in fields.items() if value is not None
    }
    return row._replace(fields=given)


def lend(
    routes: tuple[Route, Route],
    relations: StaticRelations,
    make: Callable[[], Sink],
    reader: SinkReader,
    *,
    is_atomic: bool = False,
) -> Iterator[SinkTarget]:
    """
    Yield a target on a server, and close all of its sinks afterwards.

    Args:
        routes: The routes of orders and of labels.
        relations: The shapes that ``make`` gives to its sinks.
        make: Makes a sink; it is opened here.
        reader: Reads the rows that the sinks wrote.
        is_atomic: Whether a call of ``apply`` is written as a whole or not at all.
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
        is_atomic,
    )
    for sink in made:
        sink.close()
    reader.close()


def memory_target() -> SinkTarget:
    """Return a target in memory: the reference that every other target must match."""
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


READ: Final = -1

# A repeated batch gets a different id: a sink must tolerate this repetition.
_batch_ids = count()


def at(log_lsn: int, ordinal: int = 0) -> str:
    """Return a position; LSNs grow in steps of eight bytes."""
    text = "-" if ordinal == READ else f"{ordinal:010d}"
    return f"{log_lsn * 8:016x}.{text}"


def order(
    target: SinkTarget,
    position: str,
    row: Row | None,
    *,
    key: int = 7,
    unchanged: Iterable[str] = (),
) -> Change:
    """Return a change of an order; without a row it is a delete."""
    full = None if row is None else {"order_id": key, **row}
    return Change(
        target.orders,
        (key,),
        ("order_id",),
        position,
        full,
        frozenset(unchanged) or ALL_PRESENT,
        position.endswith("-"),
        Origin(target.orders_topic, 0, 0),
    )


def label(target: SinkTarget, position: str, name: str, note: str) -> Change:
    """Return a change of a label, whose key is text."""
    row = {"name": name, "note": note}
    origin = Origin("labels", 0, 0)
    return Change(
        target.labels,
        (name,),
        ("name",),
        position,
        row,
        ALL_PRESENT,
        is_read=False,
        origin=origin,
    )


class FailingChanges(tuple[Change, ...]):
    """Changes whose iteration fails after the first one, as if the target failed."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Change]:
        """
        Yield the first change.

        Raises:
            TargetUnavailableError: Always, after the first change.
        """
        yield self[0]
        message = "the target has stopped in the middle of a call"
        raise TargetUnavailableError(message)


def apply(sink: Sink, *changes: Change) -> Checkpoint:
    """Fold changes into one batch, apply it, and return the sink's checkpoint."""
    folded = newest_per_key(changes)
    sink.apply(Batch(next(_batch_ids), folded.changes))
    return sink.flush()


def floor(target: SinkTarget, position: str) -> Floor:
    """Return a floor of the orders."""
    origin = Origin(target.orders_topic, 0, 0)
    return Floor(target.orders, position, needs_all=False, origin=origin)


def sweep(sink: Sink, floor: Floor, *changes: Change) -> Checkpoint:
    """Apply changes and a floor as one batch, and return the sink's checkpoint."""
    folded = newest_per_key(changes)
    sink.apply(Batch(next(_batch_ids), folded.changes, (), (floor,)))
    return sink.flush()


def live(key: int, position: str, **fields: Value) -> StoredRow:
    """Return an order as a target should hold it."""
    given = {"order_id": key, **fields}
    texts = {name: text_of(v) for name, v in given.items() if v is not None}
    return StoredRow(str(key), texts, position, is_deleted=False)


def gone(key: int, position: str) -> StoredRow:
    """Return a tombstone of an order as a target should hold it."""
    return StoredRow(str(key), {}, position, is_deleted=True)
