"""One route, verified: what it should hold, what it holds, and the differences."""

from collections.abc import Iterator, Sequence
from typing import Final

from towpath.schemas.failure import UnavailableError
from towpath.schemas.topics import outbox_topic, table_of, table_topic
from towpath.settings import Route, RouteKind, Settings, Sink
from towpath.sinks.ports import SinkReader
from towpath.sinks.routes import Routes
from towpath.sinks.verify.compare import Difference, SourceRow, differences
from towpath.sinks.verify.errors import UnroutedTableError
from towpath.sinks.verify.forms import DocumentForm, Form, RowForm
from towpath.sinks.verify.report import FIRST_SHOWN, RouteReport
from towpath.sinks.verify.shelf import Shelf
from towpath.sinks.verify.source import Source, SourceColumn, SourceTable

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
    prefix = settings.database.prefix
    taken = table_of(prefix, route.topic)
    is_taken = taken is not None and settings.capture.takes(taken)
    for name in (*settings.capture.names, *([taken] if taken and is_taken else [])):
        schema, _, table = name.partition(".")
        if table_topic(prefix, schema, table) == route.topic:
            return source.table(schema, table)
    message = f"the route {route.name} reads {route.topic}, which no listed table has"
    raise UnroutedTableError(message)


def verify_route(
    route: Route, table: SourceTable, source: Source, reader: SinkReader
) -> RouteReport:
    """Compare a route; what cannot be read is told in the report, not raised."""
    is_document = route.kind is RouteKind.AGGREGATE
    form: Form = DocumentForm() if is_document else RowForm(table)
    rows_read = count = 0
    first: list[Difference] = []
    error: str | None = None

    def source_rows() -> Iterator[Sequence[SourceRow]]:
        nonlocal rows_read
        for rows in source.rows(table):
            written = form.source_rows(rows)
            rows_read += len(written)
            yield written

    with Shelf() as shelf:
        try:
            shelf.put(form.held(row) for row in reader.rows(route.name))
            found = differences(form.columns, source_rows(), shelf)
            for difference in form.told(found):
                count += 1
                if count <= FIRST_SHOWN:
                    first.append(difference)
        except UnavailableError as failure:
            error = str(failure)
        return RouteReport(
            route=route.name,
            table=f"{table.schema}.{table.name}",
            source_rows=rows_read,
            sink_rows=shelf.live_rows,
            tombstones=shelf.tombstones,
            differences=count,
            first=tuple(first),
            error=error,
        )


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
            only=("type", types),
        )
    message = (
        f"the route {route.name} reads {route.topic}, which no view of "
        "relay.outbox.view gives"
    )
    raise UnroutedTableError(message)
