"""
A kind of sink: how it is made, read back and checked; and where kinds are found.

Every kind is found in the same way, by an entry point of the group ``towpath.sinks``
whose value is a ``Kind``. Those that come with the platform need no installation: their
entry points stand here. A kind's module is imported only when a sink of it is declared.

Tables as a sink's routes leave them, and what routes say that no table has.

A route is held against the shape that the relay announced: when the sink starts, and
again with every newer shape. All mistakes of a sink are told at once. A table without a
key is one as long as the sink has never run; one that loses its key later still has a
shape, since a sink may hold just that route back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from towpath.schemas.clock import Clock
from towpath.schemas.failure import ConfigurationError, UsageError
from towpath.settings import Route, RouteKind, Settings, SinkKind, WriteFrom
from towpath.settings import Sink as SinkSettings
from towpath.settings.key_template import columns_of
from towpath.settings.mistakes import did_you_mean
from towpath.settings.sink import KINDS_GROUP
from towpath.sinks.changes.relations import RelationShape
from towpath.sinks.changes.routing import Routing, routing_of
from towpath.sinks.errors import KindBrokenError, RouteMistakesError, ShapeUnknownError
from towpath.sinks.ports import RelationSource, Repairs, Sink, SinkReader, SqlSession

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


# Serving queries stay below 1 GB in all.
_SERVING_MEMORY: Final = "1g"


@dataclass(frozen=True, slots=True)
class SinkParts:
    """
    What a sink may be made of; take what is needed.

    Attributes:
        prefix: What all topics begin with.
        replay_window_s: How long an older change may still come: tombstones outlive it.
        folder: Where the sink may keep files of its own; it lives as long as the sink.
        relations: The shapes of the routes' tables, as the routes leave them.
        clock: The time.
        repairs: Has rows of this sink read anew.
        sql: The engine that runs the sink.
    """

    prefix: str
    replay_window_s: int
    folder: Path
    relations: RelationSource
    clock: Clock
    repairs: Repairs
    sql: SqlSession


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """
    What a sink may be made of on an executor; as of ``SinkParts``, what is there.

    It keeps no files and asks for nothing: whatever is no plain write is left to the
    driver's own sink.
    """

    prefix: str
    replay_window_s: int
    relations: RelationSource
    clock: Clock


def _no_mistakes(_: SinkSettings) -> Iterable[str]:
    return ()


def _no_settings(_: SinkSettings) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of sink.

    Attributes:
        make: Makes a sink that nothing is opened of yet.
        read: Makes what ``towpath verify`` reads it back with, from its settings and
            what all topics begin with; ``None`` if nobody can.
        erase: Takes away all that a sink wrote, given what all topics begin with; it
            is safe to repeat. ``None`` if that is nobody's to do.
        mistakes: Checks ``[sink.options]``; yields ``key: what is wrong with it``.
        engine: Further settings of the engine that runs the sink.
        memory: The heap that the engine needs at least, as Java takes it.
        routes: The kinds of route that it can write.
        rights: Lists what the target refuses to the sink's user, all of it, given what
            all topics begin with; nothing is written. ``None``: nobody can ask.
        unfit_name: Says why a column's name cannot be written, as the end of a sentence
            that begins with the name; empty: it can.
        spread: Makes the sink on an executor, where it writes a part of a batch: each
            key there once, beside other executors, and perhaps once more after it was
            given up. ``None``: it is written from the driver only.
        has_types: Whether the target's own columns have types, so that a column of
            another type is not simply written again.
    """

    make: Callable[[SinkSettings, SinkParts], Sink]
    read: Callable[[SinkSettings, str], SinkReader] | None = None
    erase: Callable[[SinkSettings, str], None] | None = None
    mistakes: Callable[[SinkSettings], Iterable[str]] = _no_mistakes
    engine: Callable[[SinkSettings], Mapping[str, str]] = _no_settings
    memory: str = _SERVING_MEMORY
    routes: frozenset[RouteKind] = frozenset({RouteKind.TABLE})
    rights: Callable[[SinkSettings, str], Iterable[str]] | None = None
    unfit_name: UnfitName = any_name
    spread: Callable[[SinkSettings, ExecutorParts], Sink] | None = None
    has_types: bool = False


_BUILT_IN: Final = {
    kind.value: EntryPoint(
        kind.value, f"towpath.sinks.targets.built_in:{kind.name}", KINDS_GROUP
    )
    for kind in SinkKind
}


def kind_of(sink: SinkSettings) -> Kind:
    """
    Find the kind of a sink, and import it.

    Raises:
        KindBrokenError: The package that adds the kind gives none.
    """
    point = _BUILT_IN.get(sink.kind)
    if point is None:
        (point, *_) = entry_points(group=KINDS_GROUP, name=sink.kind)
    try:
        found = point.load()
    except Exception as error:
        message = f"the kind {sink.kind} ({point.value}) cannot be imported: {error}"
        raise KindBrokenError(message) from error
    if not isinstance(found, Kind):
        message = f"the kind {sink.kind} ({point.value}) is no towpath.sinks.kinds.Kind"
        raise KindBrokenError(message)
    return found


def check_kinds(sinks: Iterable[SinkSettings]) -> None:
    """
    Check what only a kind itself can check of its sinks.

    Raises:
        ConfigurationError: There are mistakes; all are listed.
        KindBrokenError: The package that adds a kind gives none.
    """
    mistakes = [mistake for sink in sinks for mistake in _mistakes(sink)]
    if mistakes:
        raise ConfigurationError(mistakes)


def _mistakes(sink: SinkSettings) -> Iterator[str]:
    kind = kind_of(sink)
    for route in sink.route:
        if route.kind not in kind.routes:
            yield (
                f"sink.{sink.name}.route.{route.name}.kind: the kind {sink.kind} "
                f"does not write a route of the kind {route.kind}"
            )
    if sink.write_from is WriteFrom.EXECUTORS and kind.spread is None:
        yield (
            f"sink.{sink.name}.write_from: the kind {sink.kind} is written from the "
            "driver only"
        )
    for mistake in kind.mistakes(sink):
        yield f"sink.{sink.name}.options.{mistake}"


def engine_settings(sinks: Iterable[SinkSettings]) -> dict[str, str]:
    """
    Return what the engine of a driver must be told for its sinks.

    Raises:
        UsageError: Two sinks want different things of it.
    """
    told: dict[str, tuple[str, str]] = {}
    for sink in sinks:
        for name, value in kind_of(sink).engine(sink).items():
            other, known = told.setdefault(name, (sink.name, value))
            if known != value:
                message = (
                    f"the sinks {other} and {sink.name} need different engines "
                    f"({name}): give each a driver of its own"
                )
                raise UsageError(message)
    return {name: value for name, (_, value) in told.items()}


def engine_memory(sinks: Iterable[SinkSettings]) -> str:
    """Return the heap that the sinks of a driver need."""
    needed = [kind_of(sink).memory for sink in sinks]
    return max(needed, key=_size_bytes, default=_SERVING_MEMORY)


def reader_of(sink: SinkSettings, settings: Settings) -> SinkReader:
    """
    Return the reader of a sink; nothing is opened yet.

    Raises:
        UsageError: The sink's address is not one, or nobody can read the sink back.
    """
    read = kind_of(sink).read
    if read is None:
        message = f"the sink {sink.name} cannot be read back: nothing to compare"
        raise UsageError(message)
    return read(sink, settings.database.prefix)


def eraser_of(sink: SinkSettings) -> Callable[[SinkSettings, str], None]:
    """
    Return what takes away all that a sink wrote; nobody may write meanwhile.

    Raises:
        UsageError: What this kind of sink wrote is not ours to take away.
    """
    found = kind_of(sink).erase
    if found is None:
        message = f"what {sink.name} wrote cannot be taken away: drop without --data"
        raise UsageError(message)
    return found


def _size_bytes(memory: str) -> int:
    """Read a size as Java takes it."""
    units = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
    unit = memory[-1].lower()
    return int(memory[:-1]) * units[unit] if unit in units else int(memory)
