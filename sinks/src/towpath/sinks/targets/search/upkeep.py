"""
Taking documents away: those below a floor, and tombstones that nothing needs any more.

A tombstone is needed as long as something older of its key can be delivered again. What
lies below the safe position cannot, so tombstones below it go: a portion with each
batch, so that no batch waits long for it.

Takes away what a sink wrote into OpenSearch: its aliases and indexes, or documents.

An index is a sink's by its name and by its mappings: one that someone else has named
likewise stays.

How often what was written comes to be found.

::

    one index          every ``refresh_ms``; while a backlog is worked off, seldom
    a second one too   the old one behind each batch, and only after the new one

Refreshing is half of the work of an index that takes many documents, and who searches
one that is far behind gains nothing by it.

While a rebuild fills a second index, whatever is found in the old one is to be found in
the new one as well. Then no search goes back in time when the new one takes its place,
whenever that is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import structlog
from opensearchpy import OpenSearch

from towpath.schemas.clock import Clock, Deadline
from towpath.settings import SearchOptions, Sink
from towpath.sinks.change import Change
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.targets.search.client import connect, translated
from towpath.sinks.targets.search.indexes import Indexes
from towpath.sinks.targets.search.schema import (
    DELETED_FIELD,
    POSITION_FIELD,
    interval,
    is_own,
)

# Some ten thousand documents a second go; a longer sweep is asked for again.
SWEPT_WITHIN_S: Final = 600.0

_log = structlog.get_logger("towpath.sinks.search")


class Upkeep:
    """Sweeps and purges of one sink's indexes."""

    def __init__(self, client: OpenSearch, indexes: Indexes, at_once: int) -> None:
        self._client = client
        self._indexes = indexes
        self._at_once = at_once
        self._due: dict[str, str] = {}

    def sweep(self, route: str, floor: str) -> None:
        """
        Remember a floor, then take away what is below it, tombstones too.

        Raises:
            TargetUnavailableError: Not all of it is gone: do it again.
        """
        if route not in self._indexes.known():
            self._indexes.ensure(route)
        self._indexes.floors.learn(route, floor)
        indexes = self._indexes.behind(route)
        with translated():
            self._indexes.remember_floor(route)
            # A search, which this is, sees only what was refreshed.
            self._client.indices.refresh(index=list(indexes))
        taken, is_all = self._take(indexes, _below(floor), {"refresh": "true"})
        if not is_all:
            message = f"not all rows of {route} below {floor} could be taken away"
            raise TargetUnavailableError(message)
        self._indexes.floors.carried_out(route, floor)
        _log.info("rows below a floor taken away", route=route, floor=floor, rows=taken)

    def purge(self, safe: str | None) -> int:
        """
        Take away a portion of the tombstones below the newest safe position.

        Args:
            safe: The safe position, when it was told anew.

        Returns:
            How many are gone.
        """
        if safe is not None:
            self._due = dict.fromkeys(self._indexes.known(), safe)
        if not self._due:
            return 0
        route, below = next(iter(self._due.items()))
        query = {"filter": [_below(below), {"term": {DELETED_FIELD: True}}]}
        portion = {"max_docs": self._at_once}
        taken, is_all = self._take(
            self._indexes.behind(route), {"bool": query}, portion
        )
        if taken:
            _log.info("tombstones taken away", route=route, below=below, rows=taken)
        if not is_all:
            _log.warning("tombstones left for the next time", route=route)
        if taken < self._at_once:
            del self._due[route]
        return taken

    def _take(
        self, indexes: Sequence[str], query: dict[str, Any], params: dict[str, Any]
    ) -> tuple[int, bool]:
        """Delete what a query finds; return how many, and whether that is all."""
        if not indexes:
            return 0, True
        with translated():
            # By the indexes, as the alias would hide what is deleted.
            answer = self._client.delete_by_query(
                index=list(indexes),
                body={"query": query},
                params={
                    "conflicts": "proceed",
                    "request_timeout": SWEPT_WITHIN_S,
                    **params,
                },
            )
        is_all = not answer.get("failures") and not answer.get("version_conflicts")
        return answer["deleted"], is_all


def _below(position: str) -> dict[str, Any]:
    return {"range": {POSITION_FIELD: {"lt": position}}}


_KEPT_FOR: Final = "index.gc_deletes"
_FORGET_AT_ONCE: Final = "0s"
# The index looks at its clock five times a second.
_FORGOTTEN_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.2
_CONFLICT: Final = 409
# Below every position of a change.
_LOWEST: Final = "0000000000000000.-"


def erase(sink: Sink, _: str) -> None:
    """
    Take a sink's indexes away; safe to repeat. Nobody may write meanwhile.

    Raises:
        UnavailableError: The index does not answer: do it again.
    """
    client = connect(sink.url)
    try:
        with translated():
            for route in sink.route:
                # Also those that a rebuild has begun, and no alias names yet.
                ours = re.compile(re.escape(route.name) + r"-[0-9]+")
                named = client.indices.get(
                    index=f"{route.name}-*",
                    params={"expand_wildcards": "all", "allow_no_indices": "true"},
                )
                for index, told in sorted(named.items()):
                    if ours.fullmatch(index) and is_own(told["mappings"]):
                        client.indices.delete(index=index)
    finally:
        client.close()


def erase_documents(
    client: OpenSearch, indexes: Iterable[str], ids: Sequence[str], clock: Clock
) -> None:
    """
    Take documents away, whatever their version; safe to repeat.

    An index remembers for a minute at which version a document was deleted, and refuses
    what comes below. It is made to forget at once.

    Raises:
        UnavailableError: The index does not answer: do it again.
    """
    for index in indexes:
        with translated():
            told = client.indices.get(index=index, params={"flat_settings": "true"})
            client.indices.put_settings(index=index, body={_KEPT_FOR: _FORGET_AT_ONCE})
        try:
            _delete(client, index, ids)
            _forget(client, index, ids, clock)
        finally:
            before = told[index]["settings"].get(_KEPT_FOR)
            # An end in the midst of an earlier call has left ours.
            kept_for = None if before == _FORGET_AT_ONCE else before
            with translated():
                client.indices.put_settings(index=index, body={_KEPT_FOR: kept_for})


def _delete(client: OpenSearch, index: str, ids: Sequence[str]) -> None:
    with translated():
        places = [{"_index": index, "_id": id_} for id_ in ids]
        found = client.mget(body={"docs": places}, params={"_source": "false"})["docs"]
        lines = [
            {"delete": _place(index, one["_id"], one["_version"])}
            for one in found
            if one.get("found")
        ]
        if lines:
            client.bulk(body=lines)


def _forget(client: OpenSearch, index: str, ids: Sequence[str], clock: Clock) -> None:
    """Write a tombstone below all positions: it shows that a version is forgotten."""
    own = {POSITION_FIELD: _LOWEST, DELETED_FIELD: True}
    deadline = Deadline(clock, _FORGOTTEN_WITHIN_S)
    left = list(ids)
    while left:
        places = [_place(index, id_, 0) for id_ in left]
        lines = [line for place in places for line in ({"index": place}, own)]
        with translated():
            client.indices.refresh(index=index)
            answer = client.bulk(body=lines)
        said = [item["index"] for item in answer["items"]]
        left = [one["_id"] for one in said if one["status"] == _CONFLICT]
        others = [one for one in said if one.get("error") and one["_id"] not in left]
        if others or (left and deadline.passed()):
            message = f"{len(left) + len(others)} documents of {index} are not erased"
            raise TargetUnavailableError(message)
        if left:
            clock.wait(_LOOK_EVERY_S)


def _place(index: str, id_: str, version: int) -> dict[str, Any]:
    place = {"_index": index, "_id": id_}
    return {**place, "version": version, "version_type": "external_gte"}


# What is written last of a backlog may wait so long, unless more comes. A refresh then
# costs a hundredth of the time; three times as long gains nothing any more.
SELDOM_MS: Final = 10_000

_NEVER: Final = "-1"


class Refreshing:
    """The refreshes of one sink's indexes."""

    def __init__(
        self, client: OpenSearch, indexes: Indexes, options: SearchOptions
    ) -> None:
        self.client = client
        self._indexes = indexes
        self._often = interval(options.refresh_ms)
        self._seldom = interval(max(options.refresh_ms, SELDOM_MS))
        # More than is under way at once: it was not written since the last batch.
        self._most_live = options.call_documents * options.calls_in_flight

    def adapt(self, changes: Sequence[Change]) -> None:
        """Have each index refreshed as its share of a batch asks for."""
        counts = Counter(map(attrgetter("route"), changes))
        for route in self._indexes.known():
            is_backlog = counts[route] > self._most_live
            wanted = self._seldom if is_backlog else self._often
            *old, newest = self._indexes.standing(route)
            for standing in old:
                self._set(standing.name, standing.refresh, _NEVER)
            self._set(newest.name, newest.refresh, wanted)

    def show(self) -> None:
        """Let what both indexes of a route have be found in both."""
        for route in self._indexes.known():
            if len(indexes := self._indexes.behind(route)) > 1:
                with translated():
                    for index in reversed(indexes):
                        self.client.indices.refresh(index=index)

    def _set(self, index: str, found: str, wanted: str) -> None:
        if found != wanted:
            body = {"index": {"refresh_interval": wanted}}
            with translated():
                self.client.indices.put_settings(index=index, body=body)
