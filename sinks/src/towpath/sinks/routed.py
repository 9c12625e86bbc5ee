"""
Tables as a sink's routes leave them, and what routes say that no table has.

A route is held against the shape that the relay announced: when the sink starts, and
again with every newer shape. All mistakes of a sink are told at once. A table without a
key is one as long as the sink has never run; one that loses its key later still has a
shape, since a sink may hold just that route back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from towpath.settings import Route, RouteKind
from towpath.settings.key_template import columns_of
from towpath.settings.mistakes import did_you_mean
from towpath.sinks.errors import RouteMistakesError, ShapeUnknownError
from towpath.sinks.ports import RelationSource
from towpath.sinks.relations import RelationShape
from towpath.sinks.routing import Routing, routing_of

# Says why a target cannot carry a column's name; empty: it can.
UnfitName = Callable[[str], str]


def any_name(_: str) -> str:
    """Carry any column's name."""
    return ""


class RoutedRelations:
    """The shapes of one sink's tables, as its routes leave them."""

    def __init__(
        self,
        announced: RelationSource,
        routes: Iterable[Route],
        unfit_name: UnfitName = any_name,
    ) -> None:
        """
        Describe the source; nothing is asked yet.

        Args:
            announced: The shapes of tables.
            routes: The sink's routes.
            unfit_name: Says why the target cannot carry a column's name.
        """
        self._unfit_name = unfit_name
        self._announced = announced
        self._routes = [r for r in routes if r.kind is RouteKind.TABLE]

    def shape(self, topic: str) -> RelationShape:
        """
        Return the newest known shape of a topic's table, as its routes leave it.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            RouteMistakesError: A route says what does not fit the table.
        """
        announced = self._announced.shape(topic)
        routes = [route for route in self._routes if route.topic == topic]
        _refuse(
            mistake
            for route in routes
            for mistake in route_mistakes(route, announced, self._unfit_name)
        )
        shapes = [_shape(route, announced) for route in routes] or [announced]
        if any(shape != shapes[0] for shape in shapes):
            _refuse([f"{topic} is read in two shapes: give each a sink of its own"])
        return shapes[0]

    def refresh(self) -> None:
        """
        Read what was announced since.

        Raises:
            UnavailableError: The broker cannot be reached now.
        """
        self._announced.refresh()

    def check(self, *, has_run: bool = False) -> list[str]:
        """
        Hold every route against its table; return the topics without one yet.

        Args:
            has_run: Whether the sink has written already; tables had keys then.

        Raises:
            RouteMistakesError: Routes say what does not fit their tables.
            UnavailableError: The broker cannot be reached now.
        """
        mistakes: list[str] = []
        unknown: list[str] = []
        for route in self._routes:
            try:
                shape = self._announced.shape(route.topic)
            except ShapeUnknownError:
                unknown.append(route.topic)
            else:
                keyless = () if has_run else _keyless(route, shape)
                mistakes += keyless
                mistakes += route_mistakes(route, shape, self._unfit_name)
        _refuse(mistakes)
        return unknown


def route_mistakes(
    route: Route, shape: RelationShape, unfit_name: UnfitName = any_name
) -> list[str]:
    """List what a route says that does not fit its table."""
    columns = [column.name for column in shape.columns]
    found = list(_unknown(route, columns))
    routing = routing_of(route)
    if routing is not None:
        found += _collisions(routing, columns)
        found += _of_the_key(route, routing, shape)
    for column in _shape(route, shape).columns:
        if why := unfit_name(column.name):
            found.append(f"the column name {column.name!r} {why}: rename or exclude it")
    return [f"{_where(route, shape)}: {mistake}" for mistake in found]


def _keyless(route: Route, shape: RelationShape) -> Iterator[str]:
    """Say that no sink can tell the rows of a table apart, if that is so."""
    if not shape.key:
        yield (
            f"{_where(route, shape)}: the table has no key: give it a primary key, "
            "name its key in relay.rows.key_columns, or take the route out"
        )


def _where(route: Route, shape: RelationShape) -> str:
    return f"{route.name} ({shape.name})"


def _shape(route: Route, announced: RelationShape) -> RelationShape:
    routing = routing_of(route)
    return announced if routing is None else routing.shape(announced)


def _unknown(route: Route, columns: list[str]) -> Iterator[str]:
    for key in ("include", "exclude", "rename"):
        for name in getattr(route, key):
            if name not in columns:
                yield f"{key}: no column {name}{did_you_mean(name, columns)}"


def _collisions(routing: Routing, columns: list[str]) -> Iterator[str]:
    names = [name for name in map(routing.name, columns) if name is not None]
    for name, count in Counter([*names, *routing.constants]).items():
        if count > 1:
            yield f"two columns come to the name {name}: rename or exclude one"


def _of_the_key(route: Route, routing: Routing, shape: RelationShape) -> Iterator[str]:
    for name in shape.key:
        if routing.name(name) is None:
            yield f"the column {name} of the key is left out"
    if route.key and shape.key and columns_of(route.key) != shape.key:
        listed = ":".join(f"{{{name}}}" for name in shape.key)
        yield f"key: name the key's columns once each, in key order: {listed}"
    kept = [column.name for column in routing.shape(shape).columns]
    for name in route.fields:
        if name not in kept:
            yield f"fields: no column {name}{did_you_mean(name, kept)}"


def _refuse(mistakes: Iterable[str]) -> None:
    found = list(mistakes)
    if found:
        raise RouteMistakesError("\n".join(found))
