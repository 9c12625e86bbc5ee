"""
A new index in the place of an old one, while both are searched and written.

The new index is made behind an alias of its own, which has the sink write each document
to both from its next batch on. A snapshot that is asked for only then brings the rest.
When the sink has applied all of it, one step gives the new index the old one's alias:
no search ever finds an empty index, or half of one. The old index goes only when no
search is under way in it, because one that loses its index fails.

Where a rebuild stands is written in the new index itself: whoever ends in the middle is
gone on with by the next, with the same snapshot. Deletes are taken over from the old
index, because no snapshot tells them, and what is replayed later may lie below them.
"""

from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch

from towpath.schemas.clock import Clock, Deadline
from towpath.settings import Route, SearchOptions
from towpath.sinks.errors import NothingToRebuildError, TargetUnavailableError
from towpath.sinks.targets.search.client import (
    Standing,
    connect,
    indexes_of,
    translated,
)
from towpath.sinks.targets.search.schema import (
    DELETED_FIELD,
    FLOOR_MEMO,
    FOLLOWS_MEMO,
    SNAPSHOT_MEMO,
    FieldSource,
    alias_body,
    index_body,
    index_name,
    next_alias,
    number_of,
)

# Some ten thousand documents a second go.
_COPIED_WITHIN_S: Final = 600.0

# Searches take seconds; what is held open for longer was forgotten by who opened it.
_SEARCHED_WITHIN_S: Final = 60.0
_ON_ITS_WAY_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.2
_UNDER_WAY: Final = ("query_current", "fetch_current", "open_contexts")


class Begun(NamedTuple):
    """The index that is being filled, and the snapshot that fills it."""

    new: str
    snapshot: str
    is_resumed: bool


class Swapped(NamedTuple):
    """What took whose place, and how many documents searches find in each."""

    old: str
    new: str
    before: int
    after: int


class Rebuild:
    """Rebuilds of one search sink's routes; the sink itself must be running."""

    def __init__(self, url: str, options: SearchOptions, source: FieldSource) -> None:
        self._client: OpenSearch = connect(url)
        self._options = options
        self._source = source

    def begin(self, route: Route, snapshot: str) -> Begun:
        """
        Make the new index; from the sink's next batch on it is written.

        Args:
            route: The route to be rebuilt.
            snapshot: The id of the snapshot that is to be asked for next, unless an
                earlier rebuild has chosen one.

        Raises:
            NothingToRebuildError: The sink has made no index of this route yet.
            UnavailableError: The index, or the table's shape, cannot be had now.
            HaltError: The route can have no index.
        """
        old, new = self._pair(route.name)
        is_resumed = new is not None
        if new is None:
            new = index_name(route.name, number_of(old.name) + 1)
            memo = {
                **self._memo(old.name),
                SNAPSHOT_MEMO: snapshot,
                FOLLOWS_MEMO: [*old.follows, old.id],
            }
            fields = self._source.described(route).fields
            body = index_body(fields, self._options, memo)
            following = next_alias(route.name)
            with translated():
                self._client.indices.create(
                    index=new, body={**body, "aliases": {following: alias_body()}}
                )
        self._copy_deletes(old.name, new)
        return Begun(new, self._memo(new)[SNAPSHOT_MEMO], is_resumed)

    def swap(self, route: Route) -> Swapped:
        """
        Put the new index into the old one's place, in one step.

        The old one stays until it is retired: a search may be under way in it.

        Raises:
            NothingToRebuildError: No rebuild of this route has begun.
            UnavailableError: It is not known whether it has taken place.
        """
        old, new = self._pair(route.name)
        if new is None:
            message = f"no rebuild of {route.name} has begun"
            raise NothingToRebuildError(message)
        actions: list[dict[str, Any]] = [
            {"remove": {"index": new, "alias": next_alias(route.name)}},
            {"remove": {"index": old.name, "alias": route.name}},
            {"add": {"index": new, "alias": route.name, **alias_body()}},
        ]
        with translated():
            # Not the old one: it must not show what is on its way to the new one.
            self._client.indices.refresh(index=new)
            before, after = self._live(old.name), self._live(new)
            self._client.indices.update_aliases(body={"actions": actions})
        return Swapped(old.name, new, before, after)

    def retire(self, route: Route, clock: Clock) -> None:
        """
        Drop the indexes whose place was taken, once no search is under way in them.

        Safe to repeat; one that was left behind by an earlier rebuild goes, too.

        Raises:
            UnavailableError: They may still be there.
        """
        old = self._replaced(route.name)
        if not old:
            return
        # A search that has looked the alias up may not have come to the index yet.
        clock.wait(_ON_ITS_WAY_S)
        deadline = Deadline(clock, _SEARCHED_WITHIN_S)
        while self._is_searched(old) and not deadline.passed():
            clock.wait(_LOOK_EVERY_S)
        with translated():
            self._client.indices.delete(
                index=",".join(old), params={"ignore_unavailable": "true"}
            )

    def give_up(self, route: Route) -> None:
        """
        Drop the new index; the old one was never touched.

        Raises:
            UnavailableError: It may still be there.
        """
        _, new = self._pair(route.name)
        if new is not None:
            with translated():
                self._client.indices.delete(index=new)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def _pair(self, route: str) -> tuple[Standing, str | None]:
        """Return the index that is searched, and the one that is being filled."""
        found = indexes_of(self._client, (route, next_alias(route)))
        if route not in found:
            message = f"there is no index of {route} yet"
            raise NothingToRebuildError(message)
        following = found.get(next_alias(route))
        return found[route], following.name if following else None

    def _replaced(self, route: str) -> list[str]:
        """Return the indexes whose place the one that is searched has taken."""
        found = indexes_of(self._client, (route,)).get(route)
        if found is None or not found.follows:
            return []
        with translated():
            named = self._client.indices.get(
                index=f"{route}-*",
                params={
                    "expand_wildcards": "all",
                    "filter_path": "*.settings.index.uuid",
                },
            )
        ids = {name: said["settings"]["index"]["uuid"] for name, said in named.items()}
        return [name for name, id_ in ids.items() if id_ in found.follows]

    def _is_searched(self, indexes: list[str]) -> bool:
        with translated():
            said = self._client.indices.stats(index=",".join(indexes), metric="search")
        search = said["_all"]["total"]["search"]
        return any(search[name] for name in _UNDER_WAY)

    def _memo(self, index: str) -> dict[str, Any]:
        with translated():
            found = self._client.indices.get_mapping(index=index)[index]["mappings"]
        known = found.get("_meta", {})
        return {n: known[n] for n in (FLOOR_MEMO, SNAPSHOT_MEMO) if n in known}

    def _copy_deletes(self, old: str, new: str) -> None:
        """Take the tombstones over; where the new index is newer, it stays so."""
        body = {
            "conflicts": "proceed",
            "source": {"index": old, "query": {"term": {DELETED_FIELD: True}}},
            "dest": {"index": new, "version_type": "external"},
        }
        with translated():
            self._client.indices.refresh(index=old)
            answer = self._client.reindex(
                body=body, params={"request_timeout": _COPIED_WITHIN_S}
            )
        if answer.get("failures"):
            message = f"not all deletes of {old} could be taken over"
            raise TargetUnavailableError(message)

    def _live(self, index: str) -> int:
        query = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
        found: int = self._client.count(index=index, body={"query": query})["count"]
        return found
