"""
Rebuild an index alongside the old one, without interrupting searches or writes.

The new index is created behind a separate alias, which makes the sink write each
document to both indexes, starting with its next batch. Then a snapshot is requested,
which delivers the other rows. Once the sink has applied the whole snapshot, one step
moves the old index's alias to the new one: no search finds an empty or partial index.
A search that loses its index fails, so the old index is deleted only when no search is
running on it any longer, or after a minute.

The new index itself stores the state of the rebuild, so an interrupted rebuild is
resumed with the same snapshot. Deletes are copied from the old index, because no
snapshot contains them, and a replayed change can be older than the delete of its row.
"""

from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch

from towpath.schemas.clock import Clock, Deadline
from towpath.settings import Route, SearchOptions
from towpath.sinks.errors import NothingToRebuildError, TargetUnavailableError
from towpath.sinks.targets.search.client import (
    SearchIndex,
    connect,
    indexes_of,
    translated,
)
from towpath.sinks.targets.search.schema import (
    DELETED_FIELD,
    FLOOR_META,
    REPLACED_IDS_META,
    SNAPSHOT_META,
    FieldSource,
    alias_body,
    index_body,
    index_name,
    next_alias,
    number_of,
)

# About ten thousand documents are copied per second.
_COPIED_WITHIN_S: Final = 600.0

# Searches take seconds; a context held open for longer was abandoned.
_SEARCHED_WITHIN_S: Final = 60.0
_SEARCH_ARRIVES_WITHIN_S: Final = 1.0
_CHECK_EVERY_S: Final = 0.2
_RUNNING_SEARCHES: Final = ("query_current", "fetch_current", "open_contexts")


class RebuildStart(NamedTuple):
    """The index that is being filled, and the snapshot that fills it."""

    new: str
    snapshot: str
    is_resumed: bool


class RebuildSwap(NamedTuple):
    """The replaced and the new index, and the number of live documents in each."""

    old: str
    new: str
    before: int
    after: int


class Rebuild:
    """Rebuilds the indexes of one search sink, which must be running."""

    def __init__(self, url: str, options: SearchOptions, source: FieldSource) -> None:
        self._client: OpenSearch = connect(url)
        self._options = options
        self._source = source

    def begin(self, route: Route, snapshot: str) -> RebuildStart:
        """
        Create the new index; the sink writes to it from its next batch on.

        Args:
            route: The route to be rebuilt.
            snapshot: The id of the snapshot to request next, unless an interrupted
                rebuild has one.

        Raises:
            NothingToRebuildError: The sink has created no index of this route yet.
            UnavailableError: The index, or the table's shape, is not available now.
            HaltError: The route cannot have an index.
        """
        old, new = self._current_and_next(route.name)
        is_resumed = new is not None
        if new is None:
            new = index_name(route.name, number_of(old.name) + 1)
            metadata = {
                **self._metadata(old.name),
                SNAPSHOT_META: snapshot,
                REPLACED_IDS_META: [*old.replaced_ids, old.id],
            }
            fields = self._source.shape_of(route).fields
            body = index_body(fields, self._options, metadata)
            following = next_alias(route.name)
            with translated():
                self._client.indices.create(
                    index=new, body={**body, "aliases": {following: alias_body()}}
                )
        self._copy_deletes(old.name, new)
        return RebuildStart(new, self._metadata(new)[SNAPSHOT_META], is_resumed)

    def swap(self, route: Route) -> RebuildSwap:
        """
        Replace the old index with the new one, in one step.

        The old index remains until it is retired: a search may be running on it.

        Raises:
            NothingToRebuildError: No rebuild of this route has begun.
            UnavailableError: The step may or may not have taken place.
        """
        old, new = self._current_and_next(route.name)
        if new is None:
            message = f"no rebuild of {route.name} has begun"
            raise NothingToRebuildError(message)
        actions: list[dict[str, Any]] = [
            {"remove": {"index": new, "alias": next_alias(route.name)}},
            {"remove": {"index": old.name, "alias": route.name}},
            {"add": {"index": new, "alias": route.name, **alias_body()}},
        ]
        with translated():
            # The old index is not refreshed: it must not show documents that the new
            # one does not show yet.
            self._client.indices.refresh(index=new)
            before, after = self._live_count(old.name), self._live_count(new)
            self._client.indices.update_aliases(body={"actions": actions})
        return RebuildSwap(old.name, new, before, after)

    def retire(self, route: Route, clock: Clock) -> None:
        """
        Delete the replaced indexes once no search runs on them, or after a minute.

        Safe to repeat; an index that an earlier rebuild left behind is deleted, too.

        Raises:
            UnavailableError: The indexes may still exist.
        """
        old = self._replaced(route.name)
        if not old:
            return
        # A search that has resolved the alias may not have reached the index yet.
        clock.wait(_SEARCH_ARRIVES_WITHIN_S)
        deadline = Deadline(clock, _SEARCHED_WITHIN_S)
        while self._is_searched(old) and not deadline.passed():
            clock.wait(_CHECK_EVERY_S)
        with translated():
            self._client.indices.delete(
                index=",".join(old), params={"ignore_unavailable": "true"}
            )

    def abort(self, route: Route) -> None:
        """
        Delete the new index; the old one remains in use.

        Raises:
            NothingToRebuildError: The sink has no index of this route.
            UnavailableError: The new index may still exist.
        """
        _, new = self._current_and_next(route.name)
        if new is not None:
            with translated():
                self._client.indices.delete(index=new)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _current_and_next(self, route: str) -> tuple[SearchIndex, str | None]:
        """Return the index that is searched, and the one that is being filled."""
        found = indexes_of(self._client, (route, next_alias(route)))
        if route not in found:
            message = f"there is no index of {route} yet"
            raise NothingToRebuildError(message)
        following = found.get(next_alias(route))
        return found[route], following.name if following else None

    def _replaced(self, route: str) -> list[str]:
        """Return the indexes that the searched index has replaced."""
        found = indexes_of(self._client, (route,)).get(route)
        if found is None or not found.replaced_ids:
            return []
        with translated():
            named = self._client.indices.get(
                index=f"{route}-*",
                params={
                    "expand_wildcards": "all",
                    "filter_path": "*.settings.index.uuid",
                },
            )
        ids = {
            name: response["settings"]["index"]["uuid"]
            for name, response in named.items()
        }
        return [name for name, id_ in ids.items() if id_ in found.replaced_ids]

    def _is_searched(self, indexes: list[str]) -> bool:
        with translated():
            response = self._client.indices.stats(
                index=",".join(indexes), metric="search"
            )
        search = response["_all"]["total"]["search"]
        return any(search[name] for name in _RUNNING_SEARCHES)

    def _metadata(self, index: str) -> dict[str, Any]:
        with translated():
            found = self._client.indices.get_mapping(index=index)[index]["mappings"]
        metadata = found.get("_meta", {})
        return {n: metadata[n] for n in (FLOOR_META, SNAPSHOT_META) if n in metadata}

    def _copy_deletes(self, old: str, new: str) -> None:
        """Copy the tombstones; keep newer documents of the new index."""
        body = {
            "conflicts": "proceed",
            "source": {"index": old, "query": {"term": {DELETED_FIELD: True}}},
            "dest": {"index": new, "version_type": "external"},
        }
        with translated():
            self._client.indices.refresh(index=old)
            response = self._client.reindex(
                body=body, params={"request_timeout": _COPIED_WITHIN_S}
            )
        if response.get("failures"):
            message = f"not all deletes of {old} could be copied"
            raise TargetUnavailableError(message)

    def _live_count(self, index: str) -> int:
        query = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
        found: int = self._client.count(index=index, body={"query": query})["count"]
        return found
