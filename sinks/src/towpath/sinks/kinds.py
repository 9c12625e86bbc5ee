"""
Kinds of sinks: where they are found, and how their sinks are made, read and checked.

A kind is an entry point of the group ``towpath.sinks`` whose value is a ``Kind``. The
built-in kinds need no installation: their entry points are listed here. A kind's module
is imported only when a sink of the kind is declared.

Routes are checked against the shapes that the relay announced: when the sink starts,
and with every newer shape. All mistakes of a sink are reported together. A table
without a key is a mistake only if the sink has never run. For a table that loses its
key later, the shape is returned, so that the sink can hold back only its route.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from towpath.schemas.clock import Clock
from towpath.schemas.failure import ConfigurationError, UsageError
from towpath.schemas.findings import CheckFinding
from towpath.settings import Route, RouteKind, Settings, SinkKind, WriteFrom
from towpath.settings import Sink as SinkSettings
from towpath.settings.mistakes import did_you_mean
from towpath.settings.routes import columns_of
from towpath.settings.sink import KINDS_GROUP
from towpath.sinks.changes.relations import RelationShape
from towpath.sinks.changes.routing import Routing, routing_of
from towpath.sinks.changes.transforms import (
    TRANSFORMS_GROUP,
    installed_transforms,
    load_function,
)
from towpath.sinks.errors import KindBrokenError, RouteMistakesError, ShapeUnknownError
from towpath.sinks.ports import LakeSession, RelationSource, Repairs, Sink, SinkReader

# Returns why a target does not accept a column name; empty if it does.
UnfitName = Callable[[str], str]


def any_name(_: str) -> str:
    """Accept any column name."""
    return ""


class RoutedRelations:
    """The shapes of one sink's tables, after its routes' exclusions and renames."""

    def __init__(
        self,
        announced: RelationSource,
        routes: Iterable[Route],
        unfit_name: UnfitName = any_name,
    ) -> None:
        """
        Store the parameters; nothing is read yet.

        Args:
            announced: The announced shapes.
            routes: The sink's routes.
            unfit_name: Returns why the target does not accept a column name.
        """
        self._unfit_name = unfit_name
        self._announced = announced
        self._routes = [r for r in routes if r.kind is RouteKind.TABLE]

    def shape(self, topic: str) -> RelationShape:
        """
        Return the newest known shape of a topic's table, after its routes' changes.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            RouteMistakesError: A route does not fit the table.
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
            _refuse([f"routes give {topic} two shapes: move one to another sink"])
        return shapes[0]

    def refresh(self) -> None:
        """
        Read new announcements.

        Raises:
            UnavailableError: The broker cannot be reached now.
        """
        self._announced.refresh()

    def check(self, *, has_run: bool = False) -> list[str]:
        """
        Check every route against its table; return the topics without a known table.

        Args:
            has_run: Whether the sink has run before; its tables had keys then.

        Raises:
            RouteMistakesError: Routes do not fit their tables.
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
    """Return the mistakes of a route that does not fit its table."""
    columns = [column.name for column in shape.columns]
    found = []
    routing = routing_of(route)
    if routing is not None:
        transformed = routing.transformed(shape.columns, shape.key)
        columns = transformed.names
        found += [*transformed.mistakes, *_unknown(route, columns)]
        found += _collisions(routing, columns)
        found += _key_mistakes(route, routing, shape)
    for column in _shape(route, shape).columns:
        if why := unfit_name(column.name):
            found.append(f"the column name {column.name!r} {why}: rename or exclude it")
    return [f"{_where(route, shape)}: {mistake}" for mistake in found]


def _keyless(route: Route, shape: RelationShape) -> Iterator[str]:
    """Yield a mistake if a route's table has no key."""
    if not shape.key:
        yield (
            f"{_where(route, shape)}: the table has no key: give it a primary key, "
            "name its key in relay.rows.key_columns, or remove the route"
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
            yield f"two columns get the name {name}: rename or exclude one"


def _key_mistakes(
    route: Route, routing: Routing, shape: RelationShape
) -> Iterator[str]:
    for name in shape.key:
        if routing.name(name) is None:
            yield f"the key column {name} is left out"
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


# Queries of serving sinks stay below 1 GB in total.
_SERVING_MEMORY: Final = "1g"


@dataclass(frozen=True, slots=True)
class SinkParts:
    """
    The services that a sink may use.

    Attributes:
        prefix: The prefix of all topics.
        replay_window_s: How long old changes may still arrive; tombstones are kept for
            this long.
        folder: A folder for the sink's own files; it lives as long as the sink.
        relations: The shapes of the routes' tables, after the routes' changes.
        repairs: Requests rows of this sink from the source.
        sql: The engine that runs the sink.
    """

    prefix: str
    replay_window_s: int
    folder: Path
    relations: RelationSource
    clock: Clock
    repairs: Repairs
    sql: LakeSession


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """
    The parts that a sink on an executor may use: some of ``SinkParts``, and one more.

    Such a sink has no files and requests no rows; the sink on the driver does both.

    Attributes:
        shared: The result of ``Kind.shared``, read on the driver's machine.
    """

    prefix: str
    replay_window_s: int
    relations: RelationSource
    clock: Clock
    shared: object = None


def _no_mistakes(_: SinkSettings) -> Iterable[str]:
    return ()


def _nothing(_: SinkSettings) -> object:
    return None


def _no_settings(_: SinkSettings) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of sink.

    Attributes:
        make: Makes a sink; nothing is opened yet.
        read: Makes the reader for ``towpath verify``, from the settings and the prefix
            of all topics; ``None`` if the sink cannot be read back.
        erase: Deletes everything that a sink wrote, given the prefix of all topics;
            safe to repeat. ``None`` if the sink's data is not Towpath's to delete.
        mistakes: Checks ``[sink.options]``; yields ``key: what is wrong with it``.
        engine: Further settings of the engine that runs the sink.
        memory: The minimum heap of the engine, in Java's notation.
        routes: The kinds of route that the sink supports.
        rights: Lists the rights on the target that the sink's user lacks, given the
            prefix of all topics; nothing is written. ``None`` if this is not possible.
        health: Checks, cheaply and without writing, whether the target retains the
            sink's rows, for ``towpath doctor``. ``None`` if that cannot be checked.
        unfit_name: Returns why a column name cannot be written, as the end of a
            sentence that begins with the name; empty if it can.
        spread: Makes a sink on an executor. It writes slices of a batch in parallel
            with other executors; a slice may be written again after a failure.
            ``None`` if tasks do not write to the target.
        shared: Reads, on the driver's machine, files that an executor's sink needs but
            does not have; the result is pickled and sent with every task.
        is_engine_written: Whether the engine writes its large batches, after tasks have
            encoded them (``EngineWritten``).
        pipelined_records: How many records go into one call, for a target that works
            while the next records are decoded. A batch is flushed only at its end, so
            such a sink must not refuse whole rows: later changes of the same keys may
            be in flight. ``None`` for as few calls as possible.
        has_types: Whether the target's columns have types, so that a retyped column
            cannot simply be written again.
    """

    make: Callable[[SinkSettings, SinkParts], Sink]
    read: Callable[[SinkSettings, str], SinkReader] | None = None
    erase: Callable[[SinkSettings, str], None] | None = None
    mistakes: Callable[[SinkSettings], Iterable[str]] = _no_mistakes
    engine: Callable[[SinkSettings], Mapping[str, str]] = _no_settings
    memory: str = _SERVING_MEMORY
    routes: frozenset[RouteKind] = frozenset({RouteKind.TABLE})
    rights: Callable[[SinkSettings, str], Iterable[str]] | None = None
    health: Callable[[SinkSettings, Clock], Iterable[CheckFinding]] | None = None
    unfit_name: UnfitName = any_name
    spread: Callable[[SinkSettings, ExecutorParts], Sink] | None = None
    shared: Callable[[SinkSettings], object] = _nothing
    is_engine_written: bool = False
    pipelined_records: int | None = None
    has_types: bool = False

    @property
    def has_tasks(self) -> bool:
        """Whether tasks on executors can take part in writing to the target."""
        return self.spread is not None or self.is_engine_written


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
        KindBrokenError: No package provides the kind, or its package is broken.
    """
    point = _BUILT_IN.get(sink.kind)
    if point is None:
        provided = [*entry_points(group=KINDS_GROUP, name=sink.kind)]
        if not provided:
            message = f"no installed package provides the kind {sink.kind}"
            raise KindBrokenError(message)
        point = provided[0]
    try:
        found = point.load()
    except Exception as error:
        message = f"the kind {sink.kind} ({point.value}) cannot be imported: {error}"
        raise KindBrokenError(message) from error
    if not isinstance(found, Kind):
        message = (
            f"the kind {sink.kind} ({point.value}) is not a towpath.sinks.kinds.Kind"
        )
        raise KindBrokenError(message)
    return found


def check_kinds(sinks: Iterable[SinkSettings]) -> None:
    """
    Have kinds check the options of sinks, and check the functions of transforms.

    Raises:
        ConfigurationError: There are mistakes; all are listed.
        KindBrokenError: The package of a kind does not provide it.
        TransformBrokenError: A function cannot be imported.
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
        yield from _missing_functions(sink, route)
    if sink.write_from is WriteFrom.EXECUTORS and not kind.has_tasks:
        yield (
            f"sink.{sink.name}.write_from: only the driver can write to a {sink.kind} "
            "sink"
        )
    for mistake in kind.mistakes(sink):
        yield f"sink.{sink.name}.options.{mistake}"


def _missing_functions(sink: SinkSettings, route: Route) -> Iterator[str]:
    """Yield a mistake for each Python transform that is missing; import the others."""
    for number, entry in enumerate(route.transforms):
        name, installed = entry.python, installed_transforms()
        if name is not None and name in installed:
            load_function(name)
        elif name is not None:
            yield (
                f"sink.{sink.name}.route.{route.name}.transforms.{number}.python: no "
                f"installed package provides {name!r} in the group {TRANSFORMS_GROUP}"
                f"{did_you_mean(name, installed)}"
            )


def engine_settings(sinks: Iterable[SinkSettings]) -> dict[str, str]:
    """
    Return the engine settings that the sinks of a driver need.

    Raises:
        UsageError: Two sinks need different values.
    """
    needed: dict[str, tuple[str, str]] = {}
    for sink in sinks:
        for name, value in kind_of(sink).engine(sink).items():
            other, known = needed.setdefault(name, (sink.name, value))
            if known != value:
                message = (
                    f"the sinks {other} and {sink.name} need different engines "
                    f"({name}): give each a driver of its own"
                )
                raise UsageError(message)
    return {name: value for name, (_, value) in needed.items()}


def engine_memory(sinks: Iterable[SinkSettings]) -> str:
    """Return the heap that the sinks of a driver need."""
    needed = [kind_of(sink).memory for sink in sinks]
    return max(needed, key=_size_bytes, default=_SERVING_MEMORY)


def reader_of(sink: SinkSettings, settings: Settings) -> SinkReader:
    """
    Return the reader of a sink; nothing is opened yet.

    Raises:
        UsageError: The sink's address is invalid, or the sink cannot be read back.
    """
    read = kind_of(sink).read
    if read is None:
        message = f"the sink {sink.name} cannot be read back, so it cannot be compared"
        raise UsageError(message)
    return read(sink, settings.database.prefix)


def eraser_of(sink: SinkSettings) -> Callable[[SinkSettings, str], None]:
    """
    Return the function that deletes all that a sink wrote; the sink must be stopped.

    Raises:
        UsageError: The data of this kind of sink is not Towpath's to delete.
    """
    found = kind_of(sink).erase
    if found is None:
        message = (
            f"the data of {sink.name} is not Towpath's to delete: "
            "drop the sink without --data"
        )
        raise UsageError(message)
    return found


def _size_bytes(memory: str) -> int:
    """Parse a size in Java's notation."""
    units = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
    unit = memory[-1].lower()
    return int(memory[:-1]) * units[unit] if unit in units else int(memory)
