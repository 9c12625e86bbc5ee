"""One route, verified: what it should hold, what it holds, and the differences."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from towpath.schemas.failure import UnavailableError
from towpath.schemas.topics import outbox_topic, table_topic
from towpath.settings import Route, RouteKind, Settings, Sink
from towpath.sinks.key_text import key_text
from towpath.sinks.ports import SinkReader, StoredRow
from towpath.sinks.routes import Routes
from towpath.sinks.verify.canonical import Canonical, canonical_of
from towpath.sinks.verify.compare import (
    Difference,
    Held,
    SourceRow,
    differences,
    pack,
)
from towpath.sinks.verify.errors import UnroutedTableError
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


class _Plan(NamedTuple):
    """How rows of a table are written: per column a name and a form, and the key."""

    names: tuple[str, ...]
    forms: tuple[Canonical, ...]
    key: tuple[int, ...]


def source_table(
    route: Route, sink: Sink, settings: Settings, source: Source
) -> SourceTable:
    """
    Find what a route should hold.

    Raises:
        UnroutedTableError: No listed table has the route's topic.
        SourceUnavailableError: The table cannot be looked up.
    """
    if route.kind is RouteKind.EVENT_LOG:
        return _outbox(route, sink, settings, source)
    for name in settings.database.tables:
        schema, _, table = name.partition(".")
        if table_topic(settings.database.prefix, schema, table) == route.topic:
            return source.table(schema, table)
    message = f"the route {route.name} reads {route.topic}, which no listed table has"
    raise UnroutedTableError(message)


def verify_route(
    route: Route, table: SourceTable, source: Source, reader: SinkReader
) -> RouteReport:
    """Compare a route; what cannot be read is told in the report, not raised."""
    plan = _plan(table)
    rows_read = count = 0
    first: list[Difference] = []
    error: str | None = None

    def source_rows() -> Iterator[Sequence[SourceRow]]:
        nonlocal rows_read
        for rows in source.rows(table):
            rows_read += len(rows)
            yield [_source_row(plan, texts) for texts in rows]

    with Shelf() as shelf:
        try:
            shelf.put(_held(plan, row) for row in reader.rows(route.name))
            found = differences(plan.names, source_rows(), shelf)
            for difference in found:
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


def _plan(table: SourceTable) -> _Plan:
    names = tuple(column.name for column in table.columns)
    forms = tuple(canonical_of(column.type) for column in table.columns)
    return _Plan(names, forms, tuple(names.index(name) for name in table.key))


def _source_row(plan: _Plan, texts: Sequence[str | None]) -> SourceRow:
    written = [form(text) for form, text in zip(plan.forms, texts, strict=True)]
    return SourceRow(key_text([texts[place] for place in plan.key]), written)


def _held(plan: _Plan, row: StoredRow) -> Held:
    if row.is_deleted:
        return Held(row.key, is_deleted=True, packed=b"")
    fields = zip(plan.forms, plan.names, strict=True)
    texts = [form(row.fields.get(name)) for form, name in fields]
    return Held(row.key, is_deleted=False, packed=pack(texts))
