"""Where the fields of a route's index come from: its table, or its events' schemas."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from towpath.schemas.events import EventSchema
from towpath.settings import Route, RouteKind
from towpath.sinks.errors import KeylessTableError
from towpath.sinks.ports import RelationSource
from towpath.sinks.search.documents import UNSEARCHED, document_fields
from towpath.sinks.search.mapping import Properties, field_of, with_own


class Described(NamedTuple):
    """
    What a route's documents are.

    Attributes:
        name: Whose they are, in words.
        fields: Their fields.
        since: From which position on the fields hold; empty: nobody tells.
    """

    name: str
    fields: Properties
    since: str = ""


class FieldSource(Protocol):
    """Tells the fields of every route of a sink."""

    def described(self, route: Route) -> Described:
        """
        Return the newest known fields, the sink's own among them.

        Raises:
            UnavailableError: They are not known yet.
            HaltError: There can be none.
        """

    def refresh(self) -> None:
        """
        Learn what was announced since; call it when a document does not fit.

        Raises:
            UnavailableError: It cannot be learnt now.
        """


class RouteFields:
    """Fields of tables from the relay's announcements, of aggregates from schemas."""

    def __init__(
        self, relations: RelationSource, schemas: Mapping[str, EventSchema]
    ) -> None:
        self._relations = relations
        self._schemas = schemas

    def described(self, route: Route) -> Described:
        """
        Return a route's fields.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            KeylessTableError: The table has no primary key.
            DocumentFieldsError: The events' schemas give no fields.
        """
        if route.kind is RouteKind.AGGREGATE:
            fields = document_fields(route, self._schemas)
            return Described(f"the events of {route.topic}", with_own(fields))
        shape = self._relations.shape(route.topic)
        if not shape.key:
            message = f"{shape.name} has no primary key, so {route.name} stays empty"
            raise KeylessTableError(message)
        columns = {
            column.name: UNSEARCHED if column.is_object else field_of(column.type)
            for column in shape.columns
        }
        return Described(f"the table {shape.name}", with_own(columns), shape.position)

    def refresh(self) -> None:
        """Read the relay's newest announcements; schemas change with a release."""
        self._relations.refresh()
