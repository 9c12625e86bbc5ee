"""What each route should hold: the table, the events or the view of the source."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import TableName
from towpath.settings import Route, RouteKind, Settings, Sink
from towpath.sinks.errors import ShapeUnknownError
from towpath.sinks.ports import RelationSource
from towpath.sinks.repairs import table_behind, view_behind
from towpath.sinks.verify.errors import (
    IncomparableError,
    UnfitViewError,
    UnroutedTableError,
)
from towpath.sinks.verify.outbox import outbox_table
from towpath.sinks.verify.published import as_written, comparable, published
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.table import TEXT_IN_BYTES, Limit, SourceColumn, SourceTable

# What an event is made of that a view gives.
_OF_VIEW: Final = ("aggregate_id", "type", "payload")


@dataclass(frozen=True, slots=True)
class Tables:
    """What the routes of one sink should hold."""

    sink: Sink
    settings: Settings
    source: Source
    relations: RelationSource

    def of(self, route: Route) -> SourceTable:
        """
        Find what a route should hold.

        Raises:
            UnroutedTableError: No listed table, or no declared view, has its topic.
            IncomparableError: Its rows cannot be told apart.
            UnfitViewError: Its view lacks a column.
            UnavailableError: The source or the broker does not answer.
        """
        match route.kind:
            case RouteKind.EVENT_LOG:
                return outbox_table(route, self.sink, self.settings, self.source)
            case RouteKind.AGGREGATE:
                return self._view(route)
            case RouteKind.TABLE:
                return self._table(route)

    def _table(self, route: Route) -> SourceTable:
        """Describe a table as far as it is published."""
        name = table_behind(self.settings, route.topic, self._announced(route.topic))
        if name is None:
            message = (
                f"the route {route.name} reads {route.topic}, which no listed table has"
            )
            raise UnroutedTableError(message)
        table = self.source.table(TableName.parse(name))
        rows = self.settings.relay.rows
        try:
            shape = self.relations.shape(route.topic)
        except ShapeUnknownError:
            # Nothing of it was published yet: what it has is missing in the sink.
            if not table.key:
                raise
            return comparable(as_written(table, rows))
        table = published(table, shape, rows)
        if not self.source.has_key(table):
            message = (
                f"{table.full_name} is published by the key {', '.join(table.key)}, "
                "of which it may have several rows, or null"
            )
            raise IncomparableError(message)
        return table

    def _announced(self, topic: str) -> TableName | None:
        with suppress(ShapeUnknownError):
            return self.relations.shape(topic).full_name
        return None

    def _view(self, route: Route) -> SourceTable:
        """Describe the aggregates whose state the route's topic carries."""
        view = view_behind(self.settings, route.topic)
        if view is None:
            message = (
                f"the route {route.name} reads {route.topic}, which no view of "
                "relay.outbox.view gives"
            )
            raise UnroutedTableError(message)
        table = self.source.table(TableName.parse(view.view))
        types = {column.name: column.type for column in table.columns}
        if lacking := [name for name in _OF_VIEW if name not in types]:
            message = (
                f"the view {view.view} has no column {', '.join(lacking)}: it must "
                f"have {', '.join(_OF_VIEW)}"
            )
            raise UnfitViewError(message)
        # A view has no parts of its own: its rows are those that it gives.
        return SourceTable(
            *(table.schema, table.name, _document(types), ("aggregate_id",)),
            is_partitioned=True,
            is_view=True,
            only=_of_state(route),
            key_type=types["aggregate_id"],
        )


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
        if not any(_names(name) & {*each} for each in known.values()):
            message = f"the sink {sink.name} has no route and no table named {name}"
            raise UsageError(message)
    return [
        route
        for route in sink.route
        if not names or any(_names(name) & {*known[route.name]} for name in names)
    ]


def _names(text: str) -> set[str]:
    """Return a route's name, and a table's as it is written by itself."""
    return {text, TableName.parse(text).text} if "." in text.strip(".") else {text}


def _document(types: Mapping[str, str]) -> tuple[SourceColumn, ...]:
    """Return what of an aggregate's row in its view a document is compared with."""
    payload = TEXT_IN_BYTES if types.get("payload") == "bytea" else "json"
    return SourceColumn("aggregate_id", "text"), SourceColumn("payload", payload)


def _of_state(route: Route) -> Limit:
    """Limit a view to the aggregates whose type, null too, carries a state."""
    if route.state_types:
        return Limit("type", route.state_types)
    return Limit("type", route.delete_types, is_of_others=True)
