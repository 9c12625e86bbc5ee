"""
The indexes of a sink's routes: made when first needed, widened when a column comes.

Every write goes through the alias, and only through an alias: an index that someone
dropped is never made again by a write that guesses its fields.
"""

from typing import Any, Final

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import RequestError

from towpath.settings import Route
from towpath.sinks.change import Change
from towpath.sinks.errors import ForeignIndexError, TargetUnavailableError
from towpath.sinks.floors import Floors
from towpath.sinks.search.client import translated
from towpath.sinks.search.fields import Described, FieldSource
from towpath.sinks.search.mapping import POSITION_FIELD, first_index, index_body

# Some ten thousand documents a second go; a longer sweep is asked for again.
SWEPT_WITHIN_S: Final = 600.0

_FLOOR: Final = "towpath_floor"
_EXISTS: Final = "resource_already_exists_exception"

_log = structlog.get_logger("towpath.sinks.search")


class Indexes:
    """What is known of each route's index, its floor included."""

    def __init__(
        self, client: OpenSearch, routes: tuple[Route, ...], source: FieldSource
    ) -> None:
        self._client = client
        self._routes = {route.name: route for route in routes}
        self._source = source
        self._fields: dict[str, frozenset[str]] = {}
        self.floors = Floors()

    def prepare(self, changes: tuple[Change, ...]) -> None:
        """
        See that every route of the changes has its index, with their columns.

        A field that nobody has announced is left to the index to refuse.

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
            self._source.refresh()
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
            DocumentFieldsError: The aggregate's events give its document no fields.
            ForeignIndexError: An index is there whose fields do not fit.
        """
        described = self._source.described(self._routes[route])
        with translated():
            if self._client.indices.exists_alias(name=route):
                self.floors.learn(route, self._remembered_floor(route))
            else:
                self._create(route, described)
            self._widen(route, described)
        self._fields[route] = frozenset(described.fields)

    def sweep(self, route: str, floor: str) -> None:
        """
        Remember a floor, then take away what is below it, tombstones too.

        Raises:
            TargetUnavailableError: Not all of it is gone: do it again.
        """
        if route not in self._fields:
            self.ensure(route)
        self.floors.learn(route, floor)
        body = {"query": {"range": {POSITION_FIELD: {"lt": floor}}}}
        with translated():
            # By the indexes, as the alias would hide what is deleted.
            indexes = sorted(self._client.indices.get_alias(name=route))
            self._client.indices.put_mapping(index=route, body=self._meta(route))
            # A search, which this is, sees only what was refreshed.
            self._client.indices.refresh(index=indexes)
            answer = self._client.delete_by_query(
                index=indexes,
                body=body,
                params={"refresh": "true", "request_timeout": SWEPT_WITHIN_S},
            )
        if answer.get("failures"):
            message = f"not all rows of {route} below {floor} could be taken away"
            raise TargetUnavailableError(message)
        self.floors.carried_out(route, floor)
        _log.info(
            "rows below a floor taken away",
            route=route,
            floor=floor,
            rows=answer["deleted"],
        )

    def forget(self) -> None:
        """Look again before the next write: an index went away."""
        self._fields.clear()

    def _create(self, route: str, described: Described) -> None:
        try:
            self._client.indices.create(
                index=first_index(route), body=index_body(described.fields, route)
            )
        except RequestError as error:
            if error.error != _EXISTS:
                raise
            message = f"the index {first_index(route)} is there without its alias"
            raise ForeignIndexError(message) from error

    def _widen(self, route: str, described: Described) -> None:
        body = {"properties": described.fields, **self._meta(route)}
        try:
            self._client.indices.put_mapping(index=route, body=body)
        except RequestError as error:
            message = f"the fields of {route} do not fit {described.name}"
            raise ForeignIndexError(message) from error

    def _meta(self, route: str) -> dict[str, Any]:
        """Return what an index remembers beside its fields: the floor, if any."""
        floor = self.floors.of(route)
        return {} if floor is None else {"_meta": {_FLOOR: floor}}

    def _remembered_floor(self, route: str) -> str | None:
        mappings = self._client.indices.get_mapping(index=route).values()
        found = [one["mappings"].get("_meta", {}).get(_FLOOR) for one in mappings]
        return max((floor for floor in found if floor is not None), default=None)
