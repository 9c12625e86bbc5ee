"""
What is known of rows that are owed, and the file that keeps it.

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

# A route, and a key of it.
Row: TypeAlias = tuple[str, tuple[Value, ...]]


class PendingRefetch(NamedTuple):
    """
    What is known of a row that is owed.

    Attributes:
        record_key: The row's key as its records have it.
        asked_at: The position of the change that it was asked for.
        highest: That of the newest partial change since.
        since: That of the first change that it is owed for.
        asked_s: When it was asked for.
    """

    record_key: ParkedKey
    requested_at: str
    highest: str
    since: str
    requested_s: float


class StoredRefetches(NamedTuple):
    """
    All that is known.

    Attributes:
        put_off: Routes to be asked for as wholes, for rows that are not counted.
        whole: Routes whose rows are asked for with all others, and the snapshots that
            were asked for on their account.
        asking: Routes that are asked for as wholes, as far as anybody knows.
    """

    rows: Mapping[Row, PendingRefetch] = MappingProxyType({})
    postponed: frozenset[str] = frozenset()
    whole: Mapping[str, frozenset[str]] = MappingProxyType({})
    requested: frozenset[str] = frozenset()

    def without(self, route: str) -> Self:
        """Return all that is known but of one route."""
        return self._replace(
            rows={
                row: refetch for row, refetch in self.rows.items() if row[0] != route
            },
            postponed=self.postponed - {route},
            whole={name: ids for name, ids in self.whole.items() if name != route},
            requested=self.requested - {route},
        )

    def without_remains(self, reading: Mapping[str, frozenset[str]]) -> Self:
        """
        Forget how a route is asked for, once nothing of it is owed or being read.

        Args:
            reading: The routes that are being read anew, and by which snapshots.
        """
        refetches = {route for route, _ in self.rows}
        whole = {
            route: snapshots
            for route, snapshots in self.whole.items()
            if route in refetches or snapshots & reading.get(route, NO_SNAPSHOT)
        }
        return self._replace(whole=whole)


def refetches_path(state_folder: Path, sink: str) -> Path:
    """Name the file that keeps what a sink is owed."""
    return sink_folder(state_folder, sink) / _FILE


def written(kept: StoredRefetches) -> bytes:
    """Write all that is known; not when something was asked for."""
    rows = [
        [route, key, *_told(refetch)] for (route, key), refetch in kept.rows.items()
    ]
    whole = {route: sorted(snapshots) for route, snapshots in kept.whole.items()}
    told = {
        "rows": rows,
        "put_off": sorted(kept.postponed),
        "whole": whole,
        "asking": sorted(kept.requested),
    }
    return orjson.dumps(told)


def read(content: bytes, routes: Collection[str], now_s: float) -> StoredRefetches:
    """
    Read what is known of some routes.

    Args:
        content: The file's; empty if there is none.
        routes: The sink's.
        now_s: Counts as the time at which all was asked for.
    """
    if not content:
        return StoredRefetches()
    told = orjson.loads(content)
    rows = {
        (route, tuple(key)): PendingRefetch(
            ParkedKey(topic, text.encode()), requested_at, highest, since, now_s
        )
        for route, key, topic, text, requested_at, highest, since in told["rows"]
        if route in routes
    }
    whole = {
        route: frozenset(snapshots)
        for route, snapshots in told["whole"].items()
        if route in routes
    }
    postponed, requested = (frozenset(told[name]) for name in ("put_off", "asking"))
    known = frozenset(routes)
    return StoredRefetches(rows, postponed & known, whole, requested & known)


def refetch_ids(state_folder: Path, sink: str) -> frozenset[bytes]:
    """
    Return what a sink is owed now, as its file tells: rows, and routes put off.

    Each is a text of its own; that of a row which is owed anew since is another.
    """
    try:
        content = refetches_path(state_folder, sink).read_bytes()
    except FileNotFoundError:
        return frozenset()
    told = orjson.loads(content)
    rows = ((route, key, since) for route, key, *_, since in told["rows"])
    return frozenset(map(orjson.dumps, (*rows, *told["put_off"])))


def _told(refetch: PendingRefetch) -> tuple[str, ...]:
    topic, key = refetch.record_key
    return topic, key.decode(), refetch.requested_at, refetch.highest, refetch.since
