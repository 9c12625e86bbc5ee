"""
The indexes of a sink's routes: made when first needed, widened when a column comes.

Every write goes through the alias, and only through an alias: an index that someone
dropped is never made again by a write that guesses its fields.
"""

from typing import Final

from opensearchpy import OpenSearch
from opensearchpy.exceptions import RequestError

from towpath.settings import Route
from towpath.sinks.change import Change
from towpath.sinks.errors import ForeignIndexError, KeylessTableError
from towpath.sinks.ports import RelationSource
from towpath.sinks.relations import RelationShape
from towpath.sinks.search.client import translated
from towpath.sinks.search.mapping import first_index, index_body, properties

_EXISTS: Final = "resource_already_exists_exception"


class Indexes:
    """What is known of each route's index."""

    def __init__(
        self,
        client: OpenSearch,
        routes: tuple[Route, ...],
        relations: RelationSource,
    ) -> None:
        self._client = client
        self._topics = {route.name: route.topic for route in routes}
        self._relations = relations
        self._fields: dict[str, frozenset[str]] = {}

    def prepare(self, changes: tuple[Change, ...]) -> None:
        """
        See that every route of the changes has its index, with their columns.

        A column that the relay has not announced is left to the index to refuse.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
        """
        unknown: dict[str, set[str]] = {}
        for change in changes:
            fields = self._fields.get(change.route)
            if fields is None:
                self.ensure(change.route)
                fields = self._fields[change.route]
            if change.row is not None and not change.row.keys() <= fields:
                unknown.setdefault(change.route, set()).update(change.row.keys())
        if unknown:
            self._relations.refresh()
        for route, columns in unknown.items():
            self.ensure(route)
            # Asked once: rows that still do not fit are refused one by one.
            self._fields[route] |= columns

    def ensure(self, route: str) -> None:
        """
        Create the index of a route, or give it the fields that it lacks.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            KeylessTableError: The table has no primary key.
            ForeignIndexError: An index is there whose fields do not fit the table.
        """
        shape = self._relations.shape(self._topics[route])
        if not shape.key:
            message = f"{shape.name} has no primary key, so {route} cannot be filled"
            raise KeylessTableError(message)
        with translated():
            if not self._client.indices.exists_alias(name=route):
                self._create(route, shape)
            self._widen(route, shape)
        self._fields[route] = frozenset(properties(shape))

    def forget(self) -> None:
        """Look again before the next write: an index went away."""
        self._fields.clear()

    def _create(self, route: str, shape: RelationShape) -> None:
        try:
            self._client.indices.create(
                index=first_index(route), body=index_body(shape, route)
            )
        except RequestError as error:
            if error.error != _EXISTS:
                raise
            message = f"the index {first_index(route)} is there without its alias"
            raise ForeignIndexError(message) from error

    def _widen(self, route: str, shape: RelationShape) -> None:
        try:
            self._client.indices.put_mapping(
                index=route, body={"properties": properties(shape)}
            )
        except RequestError as error:
            message = f"the fields of {route} do not fit the table {shape.name}"
            raise ForeignIndexError(message) from error
