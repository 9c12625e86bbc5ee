"""
The shapes of tables for whoever checks routes: announced, or as the source has them.

The relay announces a table with its first record. Before that, a mistake in a route
would be found by nobody until the rows came; so the source itself is asked, if it
answers.
"""

from contextlib import suppress

from towpath.schemas.failure import TowpathError
from towpath.schemas.table_name import TableName
from towpath.settings import Settings
from towpath.sinks.errors import ShapeUnknownError
from towpath.sinks.kafka import KafkaRelations
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.repairs import table_behind
from towpath.sinks.verify.source import Source


class Shapes:
    """What the relay has announced, and for the rest what the source says."""

    def __init__(self, settings: Settings) -> None:
        """Describe both; nothing is asked yet."""
        self._settings = settings
        self._announced = KafkaRelations(settings.kafka, settings.database.prefix)

    def shape(self, topic: str) -> RelationShape:
        """
        Return the shape of a topic's table.

        Raises:
            ShapeUnknownError: Neither the relay nor the source tells it.
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
        Tell whether a topic's table was announced, or is in the source.

        Raises:
            UnavailableError: The broker does not answer.
        """
        try:
            self.shape(topic)
        except ShapeUnknownError:
            return False
        return True

    def refresh(self) -> None:
        """Read what was announced since."""
        self._announced.refresh()

    def close(self) -> None:
        """Let go of the connection."""
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
