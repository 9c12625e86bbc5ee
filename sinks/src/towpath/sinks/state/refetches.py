"""
The pending refetches of a sink, and the file that stores them.

``<state>/sinks/<sink>/owed.json`` is replaced as a whole before a batch counts as done.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self, TypeAlias

import orjson

from towpath.sinks.change import Value
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.state.progress import sink_folder

_FILE: Final = "owed.json"

NO_SNAPSHOT: Final[frozenset[str]] = frozenset()

# A route's name, and the key of one of its rows.
Row: TypeAlias = tuple[str, tuple[Value, ...]]


class PendingRefetch(NamedTuple):
    """
    The state of a row whose refetch is pending.

    Attributes:
        record_key: The topic and key of the row's records.
        requested_at: The position of the change for which the row was requested.
        highest: The position of the newest change that the row lacks.
        since: The position of the first change that the row lacks.
        requested_s: The time of the request.
    """

    record_key: ParkedKey
    requested_at: str
    highest: str
    since: str
    requested_s: float


class StoredRefetches(NamedTuple):
    """
    The stored state of all refetches.

    Attributes:
        postponed: Routes to be requested as a whole, for rows that are not in ``rows``.
        whole: Routes requested as a whole for their pending rows, each with the ids of
            its snapshots.
        requested: The routes whose request as a whole may not be durable yet.
    """

    rows: Mapping[Row, PendingRefetch] = MappingProxyType({})
    postponed: frozenset[str] = frozenset()
    whole: Mapping[str, frozenset[str]] = MappingProxyType({})
    requested: frozenset[str] = frozenset()

    def without(self, route: str) -> Self:
        """Return the state without one route."""
        return self._replace(
            rows={
                row: refetch for row, refetch in self.rows.items() if row[0] != route
            },
            postponed=self.postponed - {route},
            whole={name: ids for name, ids in self.whole.items() if name != route},
            requested=self.requested - {route},
        )

    def without_complete_requests(self, reading: Mapping[str, frozenset[str]]) -> Self:
        """
        Return the state without routes whose request as a whole is complete.

        It is complete once the route has neither a pending row nor a running snapshot.

        Args:
            reading: The running snapshots of each route.
        """
        pending = {route for route, _ in self.rows}
        whole = {
            route: snapshots
            for route, snapshots in self.whole.items()
            if route in pending or snapshots & reading.get(route, NO_SNAPSHOT)
        }
        return self._replace(whole=whole)


def refetches_path(state_folder: Path, sink: str) -> Path:
    """Return the path of a sink's file."""
    return sink_folder(state_folder, sink) / _FILE


def encode_refetches(stored: StoredRefetches) -> bytes:
    """Encode the state, without the times of requests."""
    rows = [
        [route, key, *_fields(refetch)] for (route, key), refetch in stored.rows.items()
    ]
    whole = {route: sorted(snapshots) for route, snapshots in stored.whole.items()}
    document = {
        "rows": rows,
        "put_off": sorted(stored.postponed),
        "whole": whole,
        "asking": sorted(stored.requested),
    }
    return orjson.dumps(document)


def decode_refetches(
    content: bytes, routes: Collection[str], now_s: float
) -> StoredRefetches:
    """
    Decode the state of some routes.

    Args:
        content: The file's content; empty if there is none.
        routes: The sink's routes.
        now_s: The time to record for all requests; the file has none.
    """
    if not content:
        return StoredRefetches()
    document = orjson.loads(content)
    rows = {
        (route, tuple(key)): PendingRefetch(
            ParkedKey(topic, text.encode()), requested_at, highest, since, now_s
        )
        for route, key, topic, text, requested_at, highest, since in document["rows"]
        if route in routes
    }
    whole = {
        route: frozenset(snapshots)
        for route, snapshots in document["whole"].items()
        if route in routes
    }
    postponed, requested = (frozenset(document[name]) for name in ("put_off", "asking"))
    known = frozenset(routes)
    return StoredRefetches(rows, postponed & known, whole, requested & known)


def refetch_ids(state_folder: Path, sink: str) -> frozenset[bytes]:
    """
    Return the ids of a sink's pending refetches and postponed routes, from its file.

    A new refetch of a row has a new id; a repeated request keeps its id.
    """
    try:
        content = refetches_path(state_folder, sink).read_bytes()
    except FileNotFoundError:
        return frozenset()
    document = orjson.loads(content)
    rows = ((route, key, since) for route, key, *_, since in document["rows"])
    return frozenset(map(orjson.dumps, (*rows, *document["put_off"])))


def _fields(refetch: PendingRefetch) -> tuple[str, ...]:
    topic, key = refetch.record_key
    return topic, key.decode(), refetch.requested_at, refetch.highest, refetch.since
