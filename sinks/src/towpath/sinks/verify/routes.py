"""What each route should hold: the table, the events or the view of the source."""

from collections.abc import Sequence
from typing import Final

from towpath.schemas.failure import UsageError
from towpath.schemas.topics import outbox_topic
from towpath.settings import Route, RouteKind, Settings, Sink
from towpath.sinks.repairs import table_behind
from towpath.sinks.routes import Routes
from towpath.sinks.verify.errors import UnroutedTableError
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.table import SourceColumn, SourceTable

# What an event log keeps of an outbox row.
_EVENT_COLUMNS: Final = (
    SourceColumn("id", "uuid"),
    SourceColumn("aggregate_type", "text"),
    SourceColumn("aggregate_id", "text"),
    SourceColumn("type", "text"),
    SourceColumn("payload", "json"),
    SourceColumn("occurred_at", "timestamp with time zone"),
)


# What a document is compared with, of the aggregate's row in its view.
_DOCUMENT_COLUMNS: Final = (
    SourceColumn("aggregate_id", "text"),
    SourceColumn("payload", "json"),
)


def source_table(
    route: Route, sink: Sink, settings: Settings, source: Source
) -> SourceTable:
    """
    Find what a route should hold.

    Raises:
        UnroutedTableError: No listed table, or no declared view, has the route's topic.
        SourceUnavailableError: The table cannot be looked up.
    """
    if route.kind is RouteKind.EVENT_LOG:
        return _outbox(route, sink, settings, source)
    if route.kind is RouteKind.AGGREGATE:
        return _view(route, settings, source)
    name = table_behind(settings, route.topic)
    if name is not None:
        return source.table(*name.split(".", 1))
    message = f"the route {route.name} reads {route.topic}, which no listed table has"
    raise UnroutedTableError(message)


def chosen_routes(settings: Settings, sink: Sink, names: Sequence[str]) -> list[Route]:
    """
    Return the routes of these names, or of these tables; no names: all.

    Raises:
        UsageError: A name is that of no route.
    """
    known = {
        route.name: (route.name, table_behind(settings, route.topic))
        for route in sink.route
    }
    for name in names:
        if not any(name in each for each in known.values()):
            message = f"the sink {sink.name} has no route and no table named {name}"
            raise UsageError(message)
    return [
        route
        for route in sink.route
        if not names or set(names) & set(known[route.name])
    ]


def _outbox(
    route: Route, sink: Sink, settings: Settings, source: Source
) -> SourceTable:
    """Describe the outbox rows whose events the route reads."""
    outbox = settings.relay.outbox
    schema, _, name = outbox.table.partition(".")
    routes = Routes(sink)
    types = tuple(
        kind
        for kind in source.values_of(schema, name, "aggregate_type")
        if routes.of(outbox_topic(outbox.topic, kind)) is route
    )
    only = ("aggregate_type", types)
    return SourceTable(schema, name, _EVENT_COLUMNS, ("id",), only=only)


def _view(route: Route, settings: Settings, source: Source) -> SourceTable:
    """Describe the aggregates whose state the route's topic carries."""
    outbox = settings.relay.outbox
    for view in outbox.view:
        # Further views of a type give events that are no whole state.
        if view.name or outbox_topic(outbox.topic, view.aggregate_type) != route.topic:
            continue
        schema, _, name = view.view.partition(".")
        types = tuple(
            kind
            for kind in source.values_of(schema, name, "type")
            if kind not in route.delete_types
            and (not route.state_types or kind in route.state_types)
        )
        # A view has no parts of its own: its rows are those that it gives.
        return SourceTable(
            *(schema, name, _DOCUMENT_COLUMNS, ("aggregate_id",)),
            is_partitioned=True,
            is_view=True,
            only=("type", types),
            key_type=source.types_of(schema, name)["aggregate_id"],
        )
    message = (
        f"the route {route.name} reads {route.topic}, which no view of "
        "relay.outbox.view gives"
    )
    raise UnroutedTableError(message)
