"""
Delete documents and indexes, set refresh intervals, and check the health of OpenSearch.

A tombstone is needed as long as an older change of its key can be delivered again. No
change below the safe position is delivered again, so the tombstones below it are
deleted: some with each batch, so that no batch is delayed for long.

``erase`` deletes a sink's indexes, which are named after its routes and have the
mappings that a sink creates. An index with such a name but other mappings is kept.

::

    one index     refreshed every ``refresh_ms``; rarely during a backlog
    two indexes   the old one after each batch, and only after the new one

During a backlog, refreshes at the usual interval would be half of an index's work, and
searches would gain nothing from them. While a rebuild fills a second index, every
document found in the old one must be found in the new one as well: then no search
returns older data when the new index takes over.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import AuthorizationException

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.findings import CheckFinding, clock_findings
from towpath.settings import SearchOptions, Sink
from towpath.sinks.change import Change
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.targets.health import (
    FLOOD_STAGE,
    LOW_WATERMARK,
    Disk,
    IndexHealth,
    SearchHealth,
    search_findings,
)
from towpath.sinks.targets.search.client import connect, in_calls, translated
from towpath.sinks.targets.search.indexes import Indexes
from towpath.sinks.targets.search.schema import (
    DELETED_FIELD,
    POSITION_FIELD,
    interval,
    next_alias,
    was_created_by_sink,
)

# About ten thousand documents are deleted per second; a longer sweep is retried.
SWEPT_WITHIN_S: Final = 600.0
_WATERMARK: Final = "cluster.routing.allocation.disk.watermark."

_log = structlog.get_logger("towpath.sinks.search")


class SearchUpkeep:
    """Sweeps and purges the indexes of one sink."""

    def __init__(self, client: OpenSearch, indexes: Indexes, max_purged: int) -> None:
        self._client = client
        self._indexes = indexes
        self._max_purged = max_purged
        self._due: dict[str, str] = {}

    def sweep(self, route: str, floor: str) -> None:
        """
        Store a floor, then delete the documents below it, tombstones included.

        Raises:
            TargetUnavailableError: Some documents could not be deleted; try again.
        """
        if route not in self._indexes.known_routes():
            self._indexes.ensure(route)
        self._indexes.floors.learn(route, floor)
        indexes = self._indexes.index_names(route)
        with translated():
            self._indexes.remember_floor(route)
            # Delete-by-query finds only refreshed documents.
            self._client.indices.refresh(index=list(indexes))
        deleted, is_all = self._delete_matching(
            indexes, _below(floor), {"refresh": "true"}
        )
        if not is_all:
            message = f"not all rows of {route} below {floor} could be deleted"
            raise TargetUnavailableError(message)
        self._indexes.floors.mark_applied(route, floor)
        _log.info(
            "sink floor applied: rows below it are deleted",
            route=route,
            floor=floor,
            rows=deleted,
        )

    def purge(self, safe: str | None) -> int:
        """
        Delete some tombstones below the newest safe position.

        Args:
            safe: The safe position, if it has changed.

        Returns:
            The number of deleted tombstones.
        """
        if safe is not None:
            # Routes that were already due come first, so that none waits forever.
            routes = dict.fromkeys([*self._due, *self._indexes.known_routes()])
            self._due = dict.fromkeys(routes, safe)
        if not self._due:
            return 0
        route, below = next(iter(self._due.items()))
        query = {"filter": [_below(below), {"term": {DELETED_FIELD: True}}]}
        limit = {"max_docs": self._max_purged}
        deleted, is_all = self._delete_matching(
            self._indexes.index_names(route), {"bool": query}, limit
        )
        if deleted:
            _log.info(
                "index tombstones deleted: nothing older can be replayed",
                route=route,
                below=below,
                rows=deleted,
            )
        if not is_all:
            _log.warning(
                "index tombstones not all deleted: a later batch deletes the rest",
                route=route,
            )
        del self._due[route]
        if deleted >= self._max_purged:
            self._due[route] = below
        return deleted

    def _delete_matching(
        self, indexes: Sequence[str], query: dict[str, Any], params: dict[str, Any]
    ) -> tuple[int, bool]:
        """Delete a query's matches; return how many, and whether none failed."""
        if not indexes:
            return 0, True
        with translated():
            # Deletes use the indexes, because the alias hides tombstones.
            response = self._client.delete_by_query(
                index=list(indexes),
                body={"query": query},
                params={
                    "conflicts": "proceed",
                    "request_timeout": SWEPT_WITHIN_S,
                    **params,
                },
            )
        is_all = not (response.get("failures") or response.get("version_conflicts"))
        return response["deleted"], is_all


def _below(position: str) -> dict[str, Any]:
    return {"range": {POSITION_FIELD: {"lt": position}}}


_KEPT_FOR: Final = "index.gc_deletes"
_FORGET_AT_ONCE: Final = "0s"
# The index updates its clock five times per second.
_FORGOTTEN_WITHIN_S: Final = 30.0
_CHECK_EVERY_S: Final = 0.2
_CONFLICT: Final = 409
# Sorts below the position of every change.
_LOWEST: Final = "0000000000000000.-"


def erase(sink: Sink, _: str) -> None:
    """
    Delete a sink's indexes; safe to repeat. The sink must not be running.

    Raises:
        UnavailableError: OpenSearch does not answer; try again.
        SearchRefusedError: OpenSearch refuses the credentials or a call.
    """
    client = connect(sink.url)
    try:
        with translated():
            for route in sink.route:
                # Found by name, because the alias does not include a rebuild's index.
                ours = re.compile(re.escape(route.name) + r"-[0-9]+")
                named = client.indices.get(
                    index=f"{route.name}-*",
                    params={"expand_wildcards": "all", "allow_no_indices": "true"},
                )
                for index, found in sorted(named.items()):
                    if ours.fullmatch(index) and was_created_by_sink(found["mappings"]):
                        client.indices.delete(index=index)
    finally:
        client.close()


def erase_documents(
    client: OpenSearch, indexes: Iterable[str], ids: Sequence[str], clock: Clock
) -> None:
    """
    Replace documents of any version with tombstones below all positions.

    Safe to repeat.

    An index remembers for a minute the version at which a document was deleted, and
    refuses lower ones. This call makes the index forget the version immediately.

    Raises:
        UnavailableError: OpenSearch does not answer, or a document still exists; try
            again.
    """
    for index in indexes:
        with translated():
            found = client.indices.get(index=index, params={"flat_settings": "true"})
            client.indices.put_settings(index=index, body={_KEPT_FOR: _FORGET_AT_ONCE})
        try:
            _delete_by_id(client, index, ids)
            _forget(client, index, ids, clock)
        finally:
            before = found[index]["settings"].get(_KEPT_FOR)
            # An interrupted earlier call may have left our own setting behind.
            kept_for = None if before == _FORGET_AT_ONCE else before
            with translated():
                client.indices.put_settings(index=index, body={_KEPT_FOR: kept_for})


def _delete_by_id(client: OpenSearch, index: str, ids: Sequence[str]) -> None:
    with translated():
        wanted = [{"_index": index, "_id": id_} for id_ in ids]
        found = client.mget(body={"docs": wanted}, params={"_source": "false"})["docs"]
        lines = [
            {"delete": _item(index, one["_id"], one["_version"])}
            for one in found
            if one.get("found")
        ]
        if lines:
            client.bulk(body=lines)


def _forget(client: OpenSearch, index: str, ids: Sequence[str], clock: Clock) -> None:
    """Write tombstones below all positions; retry until old versions are forgotten."""
    own = {POSITION_FIELD: _LOWEST, DELETED_FIELD: True}
    deadline = Deadline(clock, _FORGOTTEN_WITHIN_S)
    left = list(ids)
    while left:
        metadata = [_item(index, id_, 0) for id_ in left]
        lines = [line for item in metadata for line in ({"index": item}, own)]
        with translated():
            client.indices.refresh(index=index)
            response = client.bulk(body=lines)
        items = [item["index"] for item in response["items"]]
        left = [one["_id"] for one in items if one["status"] == _CONFLICT]
        others = [one for one in items if one.get("error") and one["_id"] not in left]
        if others or (left and deadline.passed()):
            message = f"{len(left) + len(others)} documents of {index} are not erased"
            raise TargetUnavailableError(message)
        if left:
            clock.wait(_CHECK_EVERY_S)


def _item(index: str, id_: str, version: int) -> dict[str, Any]:
    document = {"_index": index, "_id": id_}
    return {**document, "version": version, "version_type": "external_gte"}


# The last documents of a backlog may wait this long, unless more arrive. At this
# interval, refreshes take a hundredth of the time; one three times as long gains
# nothing more.
BACKLOG_REFRESH_MS: Final = 10_000

_NEVER: Final = "-1"


class RefreshControl:
    """The refresh intervals of one sink's indexes."""

    def __init__(
        self, client: OpenSearch, indexes: Indexes, options: SearchOptions
    ) -> None:
        self.client = client
        self._indexes = indexes
        self._normal_interval = interval(options.refresh_ms)
        self._backlog_interval = interval(max(options.refresh_ms, BACKLOG_REFRESH_MS))
        # More documents than can be in flight at the same time are a backlog.
        self._backlog_above = options.call_documents * options.calls_in_flight

    def adapt_interval(self, changes: Sequence[Change]) -> None:
        """Set each index's refresh interval according to its share of a batch."""
        counts = Counter(map(attrgetter("route"), changes))
        for route in self._indexes.known_routes():
            is_backlog = counts[route] > self._backlog_above
            wanted = self._backlog_interval if is_backlog else self._normal_interval
            *old, newest = self._indexes.search_indexes(route)
            for search_index in old:
                self._set(search_index.name, search_index.refresh, _NEVER)
            self._set(newest.name, newest.refresh, wanted)

    def refresh_both(self) -> None:
        """Refresh both indexes of a route during a rebuild, the new one first."""
        for route in self._indexes.known_routes():
            if len(indexes := self._indexes.index_names(route)) > 1:
                with translated():
                    for index in reversed(indexes):
                        self.client.indices.refresh(index=index)

    def _set(self, index: str, found: str, wanted: str) -> None:
        if found != wanted:
            body = {"index": {"refresh_interval": wanted}}
            with translated():
                self.client.indices.put_settings(index=index, body=body)


def health(sink: Sink, clock: Clock) -> Iterator[CheckFinding]:
    """
    Check the servers of a search index, their clock, and the sink's indexes.

    Raises:
        UnavailableError: OpenSearch does not answer.
        SearchRefusedError: OpenSearch refuses the credentials.
    """
    client = connect(sink.url)
    try:
        with translated():
            before = clock.now()
            found = _health(client, sink)
    finally:
        client.close()
    if found.now is not None:
        yield from clock_findings("OpenSearch", found.now, before, clock.now())
    yield from search_findings(sink, found)


def _health(client: OpenSearch, sink: Sink) -> SearchHealth:
    version = client.info()["version"]["number"]
    cluster = _if_permitted(client, "/_cluster/health")
    nodes = _if_permitted(client, "/_nodes/stats/fs").get("nodes", {}).values()
    bounds = _watermarks(client)
    params = {"ignore_unavailable": "true", "expand_wildcards": "none"}
    indexes: dict[str, Any] = {}
    own = [n for route in sink.route for n in (route.name, next_alias(route.name))]
    for names in in_calls(own):
        indexes |= client.indices.get(index=",".join(names), params=dict(params))
    stamps = [node["timestamp"] for node in nodes if "timestamp" in node]
    return SearchHealth(
        version=version,
        status=cluster.get("status"),
        node_count=cluster.get("number_of_data_nodes"),
        disks={
            node["name"]: Disk(disk["total_in_bytes"], disk["available_in_bytes"])
            for node in nodes
            if (disk := node.get("fs", {}).get("total", {})).get("total_in_bytes")
        },
        low_watermark=bounds.get("low", LOW_WATERMARK),
        flood_stage=bounds.get("flood_stage", FLOOD_STAGE),
        indexes=[
            _index_health(name, description, is_replaced=_is_replaced(name, indexes))
            for name, description in sorted(indexes.items())
        ],
        now=datetime.fromtimestamp(max(stamps) / 1000, UTC) if stamps else None,
    )


def _watermarks(client: OpenSearch) -> dict[str, str]:
    """Return the disk watermarks by name; none if they are hidden from the user."""
    path = "/_cluster/settings?include_defaults&flat_settings"
    response = _if_permitted(client, path)
    return {
        name.removeprefix(_WATERMARK): value
        for level in ("defaults", "persistent", "transient")
        for name, value in response.get(level, {}).items()
        if name.startswith(_WATERMARK)
    }


def _is_replaced(name: str, indexes: Mapping[str, Any]) -> bool:
    """Return whether a rebuild is filling the replacement of an index."""
    known = {n for each in indexes.values() for n in each.get("aliases", ())}
    return any(next_alias(n) in known for n in indexes[name].get("aliases", ()))


def _index_health(
    name: str, description: Mapping[str, Any], *, is_replaced: bool
) -> IndexHealth:
    settings = description["settings"]["index"]
    blocks = settings.get("blocks", {})
    return IndexHealth(
        name=name,
        replicas=int(settings.get("number_of_replicas", 1)),
        blocks=sorted(block for block, value in blocks.items() if value == "true"),
        # During a rebuild the sink itself refreshes the old index.
        refresh="" if is_replaced else settings.get("refresh_interval", ""),
        dynamic=str(description.get("mappings", {}).get("dynamic", "true")),
    )


def _if_permitted(client: OpenSearch, path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the response to a call; an empty one if the user may not make the call."""
    try:
        return client.transport.perform_request("GET", path)
    except AuthorizationException:
        return {}
