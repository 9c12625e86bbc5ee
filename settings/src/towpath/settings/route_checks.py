"""
Checks of all routes that need only the file.

Whether the columns exist is known only from the relation that the stream announces; a
sink checks that when it starts, and ``towpath sink check`` on request.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from towpath.schemas.table_name import LONGEST_NAME_BYTES, TableName
from towpath.schemas.topics import (
    MAX_TOPIC_LENGTH,
    backfill_topic,
    table_of,
    table_topic,
)
from towpath.settings.environment import variable_for
from towpath.settings.mistakes import did_you_mean
from towpath.settings.model import Settings
from towpath.settings.routes import Route, RouteKind
from towpath.settings.sink import Sink, SinkKind

# Prefix of the columns that sinks add to a row.
_OWN: Final = "_"

# Kinds that keep the rows of routes apart by the route's name.
_WITH_ROUTE_NAMES: Final = frozenset(SinkKind) - {SinkKind.WEBHOOK}
# Kinds whose tables or documents have the columns of their source.
_WITH_SCHEMAS: Final = frozenset(
    {SinkKind.POSTGRES, SinkKind.SEARCH, SinkKind.WAREHOUSE}
)

# Limits of an index name, less the number that a rebuild appends.
_NOT_IN_INDEX: Final = re.compile(r'[\\/*?"<>|\s,#:]')
_LONGEST_INDEX_BYTES: Final = 240

# The suffix of the alias of the index that a rebuild fills.
_REBUILD_SUFFIX: Final = "-next"

# Names that the sink gives to its own tables and views.
_OWN_TABLE: Final = "towpath_tables"
_VIEW_SUFFIX: Final = "_live"


def routes_agree(settings: Settings) -> Iterator[str]:
    """List the mistakes in all routes."""
    for sink in settings.sink:
        for route in sink.route:
            where = f"sink.{sink.name}.route.{route.name}"
            yield from _too_long(route, sink, where)
            if route.kind is RouteKind.TABLE:
                yield from _columns_agree(route, where)
                yield from _transforms_agree(route, sink, where)
                yield from _fit_the_sink(route, sink, where)
            else:
                yield from _of_rows_only(route, where)
        yield from _shapes_differ(sink)
        for name in (route.name for route in sink.route):
            check = _MISNAMED.get(sink.kind)
            misnamed = check(name) if check else ""
            if misnamed:
                yield f"sink.{sink.name}.route.{name}.name: {misnamed}"
        if sink.kind == SinkKind.WAREHOUSE:
            yield from _view_name_conflicts(sink)
    yield from _written_twice(settings.sink)
    yield from _named_as_rebuilds(settings.sink)


def _view_name_conflicts(sink: Sink) -> Iterator[str]:
    """Report routes that have the name of another route's view, ignoring case."""
    views = {
        f"{route.name}{_VIEW_SUFFIX}".lower(): route.name
        for route in sink.route
        if route.kind is not RouteKind.EVENT_LOG
    }
    for name in (route.name for route in sink.route):
        if of_route := views.get(name.lower()):
            yield (
                f"sink.{sink.name}.route.{name}.name: is the name of the view of the "
                f"route {of_route}: choose another name"
            )


def _too_long(route: Route, sink: Sink, where: str) -> Iterator[str]:
    """Report a backfill topic whose name is too long for Kafka."""
    topic = backfill_topic(route.topic, sink.name)
    if len(topic) > MAX_TOPIC_LENGTH:
        yield (
            f"{where}.topic: rows that are read for {sink.name} alone have the topic "
            f"{topic}, of {len(topic)} characters; Kafka allows {MAX_TOPIC_LENGTH}: "
            "give the sink a shorter name"
        )


def _index_mistake(name: str) -> str:
    """Return why a name cannot name an index; empty if it can."""
    is_index = (
        name
        and name == name.lower()
        and not name.startswith(("-", "_", "+", "."))
        and not _NOT_IN_INDEX.search(name)
        and len(name.encode()) <= _LONGEST_INDEX_BYTES
    )
    return (
        ""
        if is_index
        else (
            f"{name!r} is not an index name: 1 to {_LONGEST_INDEX_BYTES} bytes in "
            'lower case, without spaces or \\ / * ? " < > | , # :, '
            "not beginning with - _ + ."
        )
    )


def _lake_mistake(name: str) -> str:
    """Return why a name cannot name a warehouse table; empty if it can."""
    schema, dot, table = name.partition(".")
    is_table = schema and dot and table and "." not in table
    return "" if is_table else f"{name!r} is not a table: name it schema.table"


def _table_mistake(name: str) -> str:
    """Return why a name cannot name a Postgres table; empty if it can."""
    misnamed = _lake_mistake(name)
    schema, _, table = name.partition(".")
    if misnamed:
        return misnamed
    if table == _OWN_TABLE or table.endswith(_VIEW_SUFFIX):
        return f"{name!r} is a name of the sink's own tables and views"
    view = table + _VIEW_SUFFIX
    if max(len(schema.encode()), len(view.encode())) > LONGEST_NAME_BYTES:
        return (
            f"{name!r} is too long: schema and {view} may have at most "
            f"{LONGEST_NAME_BYTES} bytes each"
        )
    return ""


def _written_twice(sinks: Iterable[Sink]) -> Iterator[str]:
    """List routes that write to the same table or index as another sink's route."""
    first: dict[tuple[object, ...], str] = {}
    for sink in sinks:
        for route in sink.route if sink.kind in _WITH_ROUTE_NAMES else ():
            place = (*sink.target, route.name)
            other = first.setdefault(place, sink.name)
            if other != sink.name:
                yield (
                    f"sink.{sink.name}.route.{route.name}.name: the sink {other} "
                    f"also writes {route.name} in this target: choose another name or "
                    "another url"
                )


def _named_as_rebuilds(sinks: Iterable[Sink]) -> Iterator[str]:
    """Report routes with the name of the alias of another route's rebuild."""
    searches = [sink for sink in sinks if sink.kind == SinkKind.SEARCH]
    owners = {
        (*sink.target, f"{route.name}{_REBUILD_SUFFIX}"): sink.name
        for sink in searches
        for route in sink.route
    }
    for sink in searches:
        for name in (route.name for route in sink.route):
            if owner := owners.get((*sink.target, name)):
                yield (
                    f"sink.{sink.name}.route.{name}.name: the sink {owner} gives this "
                    "name to the index of a rebuild: choose another name"
                )


_MISNAMED: Final[Mapping[str, Callable[[str], str]]] = {
    SinkKind.POSTGRES: _table_mistake,
    SinkKind.SEARCH: _index_mistake,
    SinkKind.WAREHOUSE: _lake_mistake,
}


def routes_have_tables(settings: Settings) -> Iterator[str]:
    """List the routes whose topic belongs to no captured table."""
    prefix = settings.database.prefix
    topics = [
        table_topic(prefix, TableName.parse(name)) for name in settings.capture.names
    ]
    if not settings.database.tables:
        return
    for sink in settings.sink:
        for route in sink.route:
            taken = table_of(prefix, route.topic)
            is_taken = route.topic in topics or (
                taken is not None and settings.capture.includes(taken)
            )
            if route.kind is RouteKind.TABLE and not is_taken:
                yield (
                    f"sink.{sink.name}.route.{route.name}.topic: {route.topic} is not "
                    f"the topic of a table of source.tables"
                    f"{did_you_mean(route.topic, topics)}"
                )


def _of_rows_only(route: Route, where: str) -> Iterator[str]:
    names = ("transforms", "include", "exclude", "rename", "constants", "key")
    given = [key for key in names if getattr(route, key)]
    if route.on_truncate == "keep":
        given.append("on_truncate")
    for key in given:
        yield f"{where}.{key}: applies to rows only: an event is kept as it was written"
    if route.fields and route.kind is RouteKind.EVENT_LOG:
        yield f"{where}.fields: an event log has the same columns for all events"


def _columns_agree(route: Route, where: str) -> Iterator[str]:
    yield from _left_out(route, where)
    kept = [name for name in route.include if name not in route.rename]
    names = Counter([*kept, *route.rename.values()])
    for name, count in names.items():
        if count > 1:
            yield f"{where}: two columns get the name {name}"
    for name in route.constants:
        if name in names:
            yield f"{where}.constants: {name} is also the name of a column"
    new = [("rename", name) for name in route.rename.values()]
    for key, name in [*new, *(("constants", name) for name in route.constants)]:
        if not name or name.startswith(_OWN):
            yield (
                f"{where}.{key}: {name!r}: must not be empty or begin with {_OWN}, "
                "which sinks reserve"
            )


def _transforms_agree(route: Route, sink: Sink, where: str) -> Iterator[str]:
    for number, entry in enumerate(route.transforms):
        place = f"{where}.transforms.{number}"
        if entry.hash is not None and entry.salt not in sink.hash_salts:
            yield (
                f"{place}.salt: there is no {entry.salt!r} in sink.{sink.name}."
                "hash_salts: set the salt with "
                f"{_salt_variable(sink, entry.salt)}_FILE"
                f"{did_you_mean(entry.salt, sink.hash_salts)}"
            )
        for name in entry.outputs:
            if name.startswith(_OWN):
                yield f"{place}: {name!r}: sinks reserve such names"


def _salt_variable(sink: Sink, salt: str) -> str:
    """Return the variable that holds a salt."""
    return variable_for(("sink", sink.name.replace("-", "_"), "hash_salts", salt))


def _left_out(route: Route, where: str) -> Iterator[str]:
    if route.include and route.exclude:
        yield f"{where}: include and exclude cannot be combined"
    for old in route.rename:
        if old in route.exclude:
            yield f"{where}.rename: {old} is left out by exclude"
        elif route.include and old not in route.include:
            nearest = did_you_mean(old, route.include)
            yield f"{where}.rename: {old} is not one of include{nearest}"


def _fit_the_sink(route: Route, sink: Sink, where: str) -> Iterator[str]:
    if route.key and sink.kind in {SinkKind.POSTGRES, SinkKind.WAREHOUSE}:
        yield f"{where}.key: a {sink.kind} sink finds rows by their key columns"
    if route.fields and sink.kind != SinkKind.SEARCH:
        yield f"{where}.fields: only a search index searches by fields"
    for path in route.fields:
        if "." in path:
            yield f"{where}.fields: {path}: a column is searched as a whole"


def _shapes_differ(sink: Sink) -> Iterator[str]:
    """
    List the topics that a sink whose target has a schema reads in two shapes.

    Targets of other kinds have no schema, so each route may have its own shape.
    """
    if sink.kind not in _WITH_SCHEMAS:
        return
    first: dict[str, Route] = {}
    for route in sink.route:
        if route.kind is not RouteKind.TABLE:
            continue
        other = first.setdefault(route.topic, route)
        if _shape(route) != _shape(other):
            yield (
                f"sink.{sink.name}.route.{route.name}.topic: {other.name} reads "
                f"{route.topic} in a different shape: move one of the routes to "
                "another sink"
            )


def _shape(route: Route) -> tuple[object, ...]:
    left_out = (frozenset(route.include), frozenset(route.exclude))
    return (route.transforms, left_out, route.rename, route.constants, route.fields)
