"""
The tables behind the routes of sinks: as the relay announces them, or in the source.

The relay announces a table with its first record. Until then the table is read from the
source, if that answers, so that a mistake in a route is found before the rows arrive. A
route whose table only an expression of ``[[source]] tables`` selects is looked up too,
because no other check finds a mistyped one.
"""

from collections.abc import Iterator
from contextlib import suppress

from towpath.schemas.failure import TowpathError
from towpath.schemas.table_name import TableName
from towpath.settings import RouteKind, Settings, Sink
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import ShapeUnknownError, SourceUnavailableError
from towpath.sinks.kafka.client import KafkaRelations
from towpath.sinks.kafka.repairs import table_behind
from towpath.sinks.targets.checks import Finding
from towpath.sinks.verify.source import Source


class TableShapes:
    """Shapes of tables as the relay has announced them, else from the source."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._announced = KafkaRelations(settings.kafka, settings.database.prefix)

    def shape(self, topic: str) -> RelationShape:
        """
        Return the shape of a topic's table.

        Raises:
            ShapeUnknownError: Neither the relay nor the source knows the table.
            UnavailableError: The broker does not answer.
        """
        try:
            return self._announced.shape(topic)
        except ShapeUnknownError:
            shape = self._in_source(table_behind(self._settings, topic))
            if shape is None:
                raise
            return shape

    def knows(self, topic: str) -> bool:
        """
        Return whether a topic's table was announced, or is in the source.

        Raises:
            UnavailableError: The broker does not answer.
        """
        try:
            self.shape(topic)
        except ShapeUnknownError:
            return False
        return True

    def refresh(self) -> None:
        """Read the announcements that arrived since."""
        self._announced.refresh()

    def close(self) -> None:
        """Close the connection."""
        self._announced.close()

    def _in_source(self, name: str | None) -> RelationShape | None:
        if name is None:
            return None
        database = self._settings.database
        with (
            suppress(TowpathError),
            Source(database.dsn, database.publication) as source,
        ):
            table = source.table(TableName.parse(name))
            columns = tuple(Column(one.name, one.type) for one in table.columns)
            return RelationShape(table.schema, table.name, columns, table.key, "")
        return None


def tables_by_expression(settings: Settings, sink: Sink) -> dict[str, str]:
    """Return the tables that only an expression selects, by their routes' topics."""
    topics = (route.topic for route in sink.route if route.kind is RouteKind.TABLE)
    tables = ((topic, table_behind(settings, topic)) for topic in topics)
    named = settings.capture.names
    return {topic: table for topic, table in tables if table and table not in named}


def routes_without_table(
    settings: Settings, sink: Sink, shapes: TableShapes
) -> Iterator[Finding]:
    """
    List the routes whose table was never announced, and is not in the source either.

    A source that does not answer gives no findings.
    """
    unknown = [
        table
        for topic, table in tables_by_expression(settings, sink).items()
        if not shapes.knows(topic)
    ]
    if not unknown:
        return
    database = settings.database
    with (
        suppress(SourceUnavailableError),
        Source(database.dsn, database.publication),
    ):
        for table in unknown:
            yield Finding(
                f"{sink.name}: the source has no table {table}, although an "
                "expression of source.tables selects it"
            )
