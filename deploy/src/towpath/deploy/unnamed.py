"""
Routes whose topic only an expression of ``[[source]] tables`` makes a table's.

The file cannot tell a mistyped one of these from a right one; the source can.
"""

from collections.abc import Iterator
from contextlib import suppress

from towpath.deploy.shapes import Shapes
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import table_topic
from towpath.settings import RouteKind, Settings, Sink
from towpath.sinks.checking import Finding
from towpath.sinks.repairs import table_behind
from towpath.sinks.verify.errors import SourceUnavailableError
from towpath.sinks.verify.source import Source


def unnamed(settings: Settings, sink: Sink) -> list[str]:
    """Return the topics of a sink's routes whose table no entry names."""
    prefix = settings.database.prefix
    named = {
        table_topic(prefix, TableName.parse(name)) for name in settings.capture.names
    }
    topics = (route.topic for route in sink.route if route.kind is RouteKind.TABLE)
    return [topic for topic in dict.fromkeys(topics) if topic not in named]


def without_table(settings: Settings, sink: Sink, shapes: Shapes) -> Iterator[Finding]:
    """
    List the routes whose table was never announced, and is not in the source either.

    A source that does not answer tells nothing.
    """
    unknown = [topic for topic in unnamed(settings, sink) if not shapes.knows(topic)]
    if not unknown:
        return
    database = settings.database
    with (
        suppress(SourceUnavailableError),
        Source(database.dsn, database.publication),
    ):
        for topic in unknown:
            yield Finding(
                f"{sink.name}: {topic}: the source has no table "
                f"{table_behind(settings, topic)}, although an expression of "
                "source.tables takes it"
            )
