"""
Look up, create, widen and recreate the indexes of a sink's routes.

::

    <route>       -> <route>-<n>      searched, and written
    <route>-next  -> <route>-<n+1>    written too, while a rebuild fills it

Every write goes through an alias: no write can recreate a dropped index with
guessed fields. The aliases are looked up before each batch, so once a rebuild has
created its index, every later batch is written to that index, too; the changes of
earlier batches are older than the rebuild's snapshot.

The server gives an index an id when it creates the index. A file next to the sink's
checkpoint stores the ids of the indexes that the sink has written to. An index with a
different id was recreated, was restored from a copy, or got the alias of another index:
rows may be missing from it. The index of a rebuild is an exception: it lists the ids of
the indexes that it replaces.

First the rows are requested, then the route is removed from the file, and then the
index is created: if the process ends before the removal, the rows are requested again.
An index that is not in the file is accepted as it is.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import RequestError

from towpath.settings import Route, SearchOptions
from towpath.sinks.change import Change
from towpath.sinks.errors import (
    ForeignIndexError,
    IndexGoneError,
    SearchRefusedError,
    ShapeUnknownError,
)
from towpath.sinks.ports import Repairs
from towpath.sinks.state.files import KnownIds
from towpath.sinks.tally import Floors
from towpath.sinks.targets.routes import IgnoredColumns
from towpath.sinks.targets.search.client import SearchIndex, indexes_of, translated
from towpath.sinks.targets.search.schema import (
    FLOOR_META,
    DocumentShape,
    FieldSource,
    alias_body,
    field_at,
    index_body,
    index_name,
    next_alias,
    replication,
    single_fields,
    was_created_by_sink,
)

_log = structlog.get_logger("towpath.sinks.search")


@dataclass(frozen=True, slots=True)
class IndexWatch:
    """
    The dependencies for detecting a replaced index and requesting its rows.

    Attributes:
        file: The file of the ids, in the sink's folder.
        repairs: Requests snapshots.
    """

    file: Path
    repairs: Repairs


class KnownIndexes:
    """The ids of the indexes that one sink has written to."""

    def __init__(self, watch: IndexWatch | None) -> None:
        """Start without ids; without a watch, they are kept only in memory."""
        self._watch = watch
        self._ids = KnownIds(watch.file if watch else None)

    def load(self) -> None:
        """Read the file."""
        self._ids.restore()

    def loss_reason(self, route: str, found: SearchIndex | None) -> str | None:
        """Return why the index of a route lacks written rows, if it does."""
        known = self._ids.of(route)
        if known is None:
            return None
        if found is None:
            return "its index was dropped"
        if known == found.id or known in found.replaced_ids:
            return None
        return f"{found.name} is not the index that was written"

    def request_rows(self, route: str, why: str) -> None:
        """
        Request a snapshot of a route, and forget its index.

        Raises:
            UnavailableError: The request may not have been sent; try again.
        """
        watch = self._watch
        is_requested = watch is not None and watch.repairs.request_all(route, why)
        _log.warning(
            "index lost rows",
            route=route,
            reason=why,
            is_snapshot_requested=is_requested,
        )
        self._ids.forget(route)

    def remember(self, route: str, found: SearchIndex) -> None:
        """Store the id of a route's index."""
        self._ids.learn(route, found.id)


_EXISTS: Final = "resource_already_exists_exception"


class Indexes:
    """The indexes of all routes, with their fields and floors."""

    def __init__(
        self,
        client: OpenSearch,
        routes: tuple[Route, ...],
        source: FieldSource,
        options: SearchOptions,
        watch: IndexWatch | None = None,
        *,
        may_create: bool = True,
    ) -> None:
        self._client = client
        self._routes = {route.name: route for route in routes}
        self._source = source
        self._options = options
        self._known = KnownIndexes(watch)
        self._fields: dict[str, frozenset[str]] = {}
        self._shapes: dict[str, DocumentShape] = {}
        self._ignored_columns = IgnoredColumns(_log)
        self._awaited: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._by_alias: Mapping[str, SearchIndex] = {}
        self._outdated: dict[str, tuple[str, ...]] = {}
        self.floors = Floors()
        self.may_create = may_create

    def load(self) -> None:
        """Read the ids of the indexes that the sink has written to."""
        self._known.load()

    def discover(self) -> None:
        """
        Look up the indexes.

        The rows of a missing or replaced index are requested. The missing index of a
        route that was prepared before is recreated; if this fails, the next change of
        the route tries again.

        Raises:
            ForeignIndexError: An alias has several indexes.
            UnavailableError: The request for rows may not have been sent.
        """
        names = [n for route in self._routes for n in self._both_aliases(route)]
        before, self._by_alias = self._by_alias, indexes_of(self._client, names)
        prepared = self.known_routes()
        lost = {
            route: why
            for route in self._routes
            if (why := self._known.loss_reason(route, self._by_alias.get(route)))
        }
        # Done before the requests: if one of them fails, the next look-up no longer
        # detects that a route has moved.
        for route in prepared:
            if route not in lost and self._has_moved(route, before):
                del self._fields[route]
        for route, why in lost.items():
            self._known.request_rows(route, why)
            self._fields.pop(route, None)
        for route in prepared:
            if route not in self._fields:
                self.ensure(route)

    def aliases(self, route: str) -> tuple[str, ...]:
        """Return the aliases that a route's documents are written to."""
        following = next_alias(route)
        return (route, following) if following in self._by_alias else (route,)

    def index_names(self, route: str) -> tuple[str, ...]:
        """Return the names of the indexes that hold a route's documents."""
        return tuple(index.name for index in self.search_indexes(route))

    def search_indexes(self, route: str) -> tuple[SearchIndex, ...]:
        """Return the indexes of a route; the one that a rebuild fills comes last."""
        return tuple(
            self._by_alias[n] for n in self._both_aliases(route) if n in self._by_alias
        )

    def known_routes(self) -> tuple[str, ...]:
        """Return the routes whose indexes were checked or created."""
        return tuple(self._fields)

    def prepare(self, changes: Sequence[Change]) -> Sequence[Change]:
        """
        Ensure that each route of the changes has an index with fields for the columns.

        Returns:
            The changes, without the columns that their table has dropped.

        Raises:
            ShapeUnknownError: The relay has not announced the table, or a column, yet.
        """
        with_unknown_columns: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            if change.route not in self._fields:
                self.ensure(change.route)
            if self._unknown_columns(change):
                with_unknown_columns[change.route].append(change)
        if with_unknown_columns:
            self._source.refresh()
        for route, route_changes in with_unknown_columns.items():
            if self._source.shape_of(self._routes[route]) != self._shapes[route]:
                self.ensure(route)
            self._await_announcement(route, route_changes)
        return (
            [self._without_dropped_columns(c) for c in changes]
            if with_unknown_columns
            else changes
        )

    def _unknown_columns(self, change: Change) -> frozenset[str]:
        """Return the columns of a change that its index has no field for."""
        if change.row is None:
            return frozenset()
        return frozenset(change.row) - self._fields[change.route]

    def _is_older(self, change: Change) -> bool:
        """Return whether a change is older than the announced shape."""
        return change.position < self._shapes[change.route].since

    def _await_announcement(self, route: str, changes: Iterable[Change]) -> None:
        """
        Raise once for columns that are not announced yet, so that the batch is retried.

        After that, OpenSearch refuses columns that were never announced.
        """
        since = self._shapes[route].since
        newer = [self._unknown_columns(c) for c in changes if not self._is_older(c)]
        columns = frozenset().union(*newer) - self._awaited[route]
        if since and columns:
            self._awaited[route] |= columns
            message = f"columns of {route} are not announced yet: {', '.join(columns)}"
            raise ShapeUnknownError(message)

    def _without_dropped_columns(self, change: Change) -> Change:
        """Leave out columns that the table dropped after the change."""
        unknown = self._unknown_columns(change)
        if not unknown or not self._is_older(change):
            return change
        self._ignored_columns.add(change.route, unknown)
        row = {n: v for n, v in (change.row or {}).items() if n not in unknown}
        return change._replace(
            row=row, unchanged=change.unchanged & self._fields[change.route]
        )

    def ensure(self, route: str) -> None:
        """
        Create the index of a route, or add the fields that it lacks.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            KeylessTableError: The table has no primary key.
            DocumentFieldsError: An event has no schema, or two schemas disagree.
            ForeignIndexError: An index exists that no sink has created.
            IndexGoneError: The route has no index, and this process may not create one.
            SearchRefusedError: OpenSearch refuses a field.
        """
        shape = self._source.shape_of(self._routes[route])
        with translated():
            if route not in self._by_alias:
                self._create(route, shape)
            mappings = [
                self._add_missing_fields(index, shape)
                for index in self.index_names(route)
            ]
            kept = [frozenset(mapping["properties"]) for mapping in mappings]
            for mapping in mappings:
                self.floors.learn(route, mapping.get("_meta", {}).get(FLOOR_META))
            self.remember_floor(route)
        self._known.remember(route, self._by_alias[route])
        # The index of a rebuild lacks columns that were dropped before the rebuild.
        self._fields[route] = frozenset(shape.fields) | frozenset.intersection(*kept)
        self._shapes[route] = shape

    def remember_floor(self, route: str) -> None:
        """Store the floor of a route, if there is one, in each of its indexes."""
        floor = self.floors.of(route)
        for index in self.index_names(route) if floor is not None else ():
            found = self._client.indices.get_mapping(index=index)[index]["mappings"]
            metadata = found.get("_meta", {})
            if metadata.get(FLOOR_META, "") < floor:
                body = {"_meta": {**metadata, FLOOR_META: floor}}
                self._client.indices.put_mapping(index=index, body=body)

    def _both_aliases(self, route: str) -> tuple[str, str]:
        return route, next_alias(route)

    def _has_moved(self, route: str, before: Mapping[str, SearchIndex]) -> bool:
        """Return whether a route has different indexes than before."""
        return _ids(self._both_aliases(route), before) != _ids(
            self._both_aliases(route), self._by_alias
        )

    def _create(self, route: str, shape: DocumentShape) -> None:
        if not self.may_create:
            message = f"{route} has no index yet, or has lost it"
            raise IndexGoneError(message)
        index = index_name(route)
        body = index_body(shape.fields, self._options, {})
        try:
            self._client.indices.create(
                index=index, body={**body, "aliases": {route: alias_body()}}
            )
        except RequestError as error:
            if error.error != _EXISTS:
                raise
            message = f"the index {index} exists without its alias"
            raise ForeignIndexError(message) from error
        self._by_alias = {**self._by_alias, **indexes_of(self._client, (route,))}

    def _add_missing_fields(self, index: str, shape: DocumentShape) -> dict[str, Any]:
        """Add missing fields, set the replicas, and return the previous mapping."""
        found: dict[str, Any]
        found = self._client.indices.get_mapping(index=index)[index]["mappings"]
        if not was_created_by_sink(found):
            message = f"no sink has created the index {index}"
            raise ForeignIndexError(message)
        self._widen(index, shape, found["properties"])
        body = {"index": replication(self._options)}
        self._client.indices.put_settings(index=index, body=body)
        return found

    def _widen(
        self, index: str, shape: DocumentShape, present: Mapping[str, Any]
    ) -> None:
        """Add fields; leave a field of a different type unchanged."""
        differing = [
            (path, piece)
            for path, piece in single_fields(shape.fields)
            if field_at(present, path) != field_at(shape.fields, path)
        ]
        outdated = []
        for path, piece in differing:
            try:
                self._client.indices.put_mapping(
                    index=index, body={"properties": piece}
                )
            except RequestError as error:
                if path.partition(".")[0] not in present:
                    message = (
                        f"the index {index} refuses the field {path}: {error.error}"
                    )
                    raise SearchRefusedError(message) from error
                outdated.append(path)
        self._log_outdated(index, tuple(outdated), shape.name)

    def _log_outdated(
        self, index: str, fields: tuple[str, ...], source_name: str
    ) -> None:
        """Log once that only a rebuild can update the types of fields."""
        if fields and self._outdated.get(index) != fields:
            _log.warning(
                "index fields have an outdated type: rebuild the index",
                index=index,
                fields=fields,
                source=source_name,
            )
        self._outdated[index] = fields


def _ids(names: Iterable[str], by_alias: Mapping[str, SearchIndex]) -> list[str | None]:
    return [by_alias[name].id if name in by_alias else None for name in names]
