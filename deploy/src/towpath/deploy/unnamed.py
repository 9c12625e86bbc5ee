"""
Routes whose topic only an expression of ``[[source]] tables`` makes a table's.

The file cannot tell a mistyped one of these from a right one; the source can.
"""

from collections.abc import Iterator
from contextlib import suppress

from towpath.deploy.shapes import Shapes
from towpath.settings import RouteKind, Settings, Sink
from towpath.sinks.checking import Finding
from towpath.sinks.repairs import table_behind
from towpath.sinks.verify.errors import SourceUnavailableError
from towpath.sinks.verify.source import Source


def unnamed(settings: Settings, sink: Sink) -> dict[str, str]:
    """Return the tables that only an expression takes, by their routes' topics."""
    topics = (route.topic for route in sink.route if route.kind is RouteKind.TABLE)
    tables = ((topic, table_behind(settings, topic)) for topic in topics)
    named = settings.capture.names
    return {topic: table for topic, table in tables if table and table not in named}


def without_table(settings: Settings, sink: Sink, shapes: Shapes) -> Iterator[Finding]:
    """
    List the routes whose table was never announced, and is not in the source either.

    A source that does not answer tells nothing.
    """
    unknown = [
        table
        for topic, table in unnamed(settings, sink).items()
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
                "expression of source.tables takes it"
            )
