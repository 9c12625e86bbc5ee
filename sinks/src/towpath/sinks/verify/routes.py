"""
The expected contents of each route: a table, outbox events or a view.

Rows of an outbox are deleted, often by the transaction that inserted them, and some
events never had a row. So an event that only the sink's event log has proves nothing;
one that only the outbox has is missing from the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import TableName
from towpath.settings import Route, RouteKind, Settings, Sink
from towpath.settings.outbox import EmptyPayload, Outbox
from towpath.settings.syntax import PlacedIn, parse_placement
from towpath.sinks.changes.routing import Routes
from towpath.sinks.errors import ShapeUnknownError
from towpath.sinks.kafka.repairs import table_behind, view_behind
from towpath.sinks.ports import RelationSource
from towpath.sinks.verify.errors import (
    IncomparableError,
    NoOutboxError,
    UnfitViewError,
    UnroutedTableError,
)
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.table import (
    TEXT_IN_BYTES,
    UTC_TIMESTAMP,
    RowFilter,
    SourceColumn,
    SourceTable,
    as_written,
    comparable,
    published,
)

# The columns of an outbox row that an event log keeps.
_PARTS: Final = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "occurred_at",
)
# Columns whose form in an event differs from that in a table's row.
_OTHER_FORMS: Final = {
    ("aggregate_id", "bytea"): TEXT_IN_BYTES,
    ("payload", "bytea"): TEXT_IN_BYTES,
    ("occurred_at", "timestamp without time zone"): UTC_TIMESTAMP,
}
_PRUNED: Final = (
    "only events whose rows are still in the outbox are compared: the row of any other "
    "event may have been deleted, or may never have existed"
)
_ENVELOPED: Final = (
    "payloads are not compared: relay.outbox.placements puts them into an envelope"
)


def outbox_table(
    route: Route, sink: Sink, settings: Settings, source: Source
) -> SourceTable:
    """
    Describe the outbox rows whose events a route reads.

    Raises:
        NoOutboxError: The outbox does not exist, or lacks a column.
        IncomparableError: The type of the outbox's ids does not distinguish events.
        SourceUnavailableError: The database cannot be read.
    """
    outbox = settings.relay.outbox
    name = TableName.parse(outbox.table)
    if not source.has_table(name):
        message = f"the outbox {outbox.table} does not exist"
        raise NoOutboxError(message)
    table = source.table(name)
    own = {one.name: one for one in table.columns}
    columns = tuple(_columns(outbox, own))
    routed_by = outbox.route_by or outbox.columns.aggregate_type
    if lacking := ({one.name for one in columns} | {routed_by}) - own.keys():
        message = f"the outbox {outbox.table} lacks {_listed(sorted(lacking))}"
        raise NoOutboxError(message)
    values = source.values_of(name, routed_by)
    events = SourceTable(
        *(name.schema, name.table, columns, (outbox.columns.id,)),
        is_partitioned=table.is_partitioned,
        only=RowFilter(routed_by, tuple(_values_of(route, sink, outbox, values))),
        is_pruned=True,
        notes=(_PRUNED, *([_ENVELOPED] if _is_enveloped(outbox) else [])),
    )
    return comparable(events)


def _listed(columns: Sequence[str]) -> str:
    noun = "column" if len(columns) == 1 else "columns"
    return f"the {noun} {', '.join(columns)}"


def _columns(outbox: Outbox, own: Mapping[str, SourceColumn]) -> Iterator[SourceColumn]:
    has_tombstones = outbox.on_empty_payload is EmptyPayload.TOMBSTONE
    for part in _PARTS:
        name = getattr(outbox.columns, part)
        if not name:
            continue
        column = own.get(name) or SourceColumn(name, "text")
        yield SourceColumn(
            name,
            _OTHER_FORMS.get((part, column.type), column.type),
            kept_as=part,
            has_plain_order=column.has_plain_order,
            is_compared=part != "payload" or not _is_enveloped(outbox),
            is_blank_null=part == "payload" and has_tombstones,
        )


def _is_enveloped(outbox: Outbox) -> bool:
    placements = map(parse_placement, outbox.placements)
    return any(one.place is PlacedIn.ENVELOPE for one in placements)


def _values_of(
    route: Route, sink: Sink, outbox: Outbox, values: list[str]
) -> Iterator[str]:
    """Yield the values that route an event to the route's topics."""
    routes = Routes(sink)
    for value in values:
        reading = routes.reading(outbox.topic_of(value))
        if any(one.route is route for one in reading):
            yield value


# The columns of an event that a view must have.
_VIEW_COLUMNS: Final = ("aggregate_id", "type", "payload")


@dataclass(frozen=True, slots=True)
class Tables:
    """The expected contents of one sink's routes."""

    sink: Sink
    settings: Settings
    source: Source
    relations: RelationSource

    def of(self, route: Route) -> SourceTable:
        """
        Describe the expected contents of a route.

        Raises:
            UnroutedTableError: The route's topic belongs to no listed table or declared
                view.
            IncomparableError: The rows cannot be distinguished.
            NoOutboxError: The outbox of the events does not exist, or lacks a column.
            UnfitViewError: The view lacks a column.
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
        """Describe the published part of a table."""
        name = table_behind(self.settings, route.topic, self._announced(route.topic))
        if name is None:
            message = (
                f"the route {route.name} reads {route.topic}, which is not the topic "
                "of a listed table"
            )
            raise UnroutedTableError(message)
        table = self.source.table(TableName.parse(name))
        rows = self.settings.relay.rows
        try:
            shape = self.relations.shape(route.topic)
        except ShapeUnknownError:
            # No record has been published: the sink lacks all rows of the table.
            if not table.key:
                raise
            return comparable(as_written(table, rows))
        table = published(table, shape, rows)
        if not self.source.has_key(table):
            message = (
                f"{table.full_name} is published with the key {', '.join(table.key)}, "
                "which may be null or not unique"
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
                f"the route {route.name} reads {route.topic}, for which "
                "relay.outbox.view declares no view"
            )
            raise UnroutedTableError(message)
        table = self.source.table(TableName.parse(view.view))
        types = {column.name: column.type for column in table.columns}
        if lacking := [name for name in _VIEW_COLUMNS if name not in types]:
            message = (
                f"the view {view.view} lacks {_listed(lacking)}: it must have "
                f"{', '.join(_VIEW_COLUMNS)}"
            )
            raise UnfitViewError(message)
        # Like a partitioned table, a view is read without SQL's ONLY keyword.
        return SourceTable(
            *(table.schema, table.name, _document(types), ("aggregate_id",)),
            is_partitioned=True,
            is_view=True,
            only=_state_filter(route),
            key_type=types["aggregate_id"],
        )


def chosen_routes(settings: Settings, sink: Sink, names: Sequence[str]) -> list[Route]:
    """
    Return the routes with these names or tables; all if there are no names.

    Raises:
        UsageError: A name matches no route or table.
    """
    known = {
        route.name: (route.name, table_behind(settings, route.topic))
        for route in sink.route
    }
    for name in names:
        if not any(_names(name) & {*each} for each in known.values()):
            message = f"the sink {sink.name} has no route or table named {name}"
            raise UsageError(message)
    return [
        route
        for route in sink.route
        if not names or any(_names(name) & {*known[route.name]} for name in names)
    ]


def _names(text: str) -> set[str]:
    """Return a name as given, and the full table name that it may mean."""
    try:
        return {text, TableName.parse(text).text}
    except ValueError:
        return {text}


def _document(types: Mapping[str, str]) -> tuple[SourceColumn, ...]:
    """Return the columns of a view with which documents are compared."""
    payload = TEXT_IN_BYTES if types.get("payload") == "bytea" else "json"
    return SourceColumn("aggregate_id", "text"), SourceColumn("payload", payload)


def _state_filter(route: Route) -> RowFilter:
    """
    Filter a view by the state types; without state types, by all but the delete types.

    The second filter also includes null.
    """
    if route.state_types:
        return RowFilter("type", route.state_types)
    return RowFilter("type", route.delete_types, is_negated=True)
