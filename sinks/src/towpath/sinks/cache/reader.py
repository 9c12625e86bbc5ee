"""Reads back what the cache holds, tombstones included, for whoever verifies it."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from towpath.sinks.cache.place import (
    POSITION_FIELD,
    TOMBSTONE_FIELD,
    route_place,
    scan_pattern,
)
from towpath.sinks.cache.sink import connect, translated
from towpath.sinks.ports import StoredRow

# One round trip brings this many hashes; the server answers them in about 5 ms.
ROWS_PER_TRIP: Final = 1000


class CacheReader:
    """One Redis, read while it may be written."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client = connect(url)
        self._prefix = prefix

    def rows(self, route: str) -> Iterator[StoredRow]:
        """Go through all keys of a route once; fields are text, null is absent."""
        places = self._places(route)
        begins_at = len(route_place(self._prefix, route))
        while True:
            with translated():
                some = list(islice(places, ROWS_PER_TRIP))
                hashes = self._hashes(some)
            if not some:
                return
            for place, fields in zip(some, hashes, strict=True):
                # A tombstone that expired since the scan is as good as never met.
                if fields:
                    position = fields.pop(POSITION_FIELD, "")
                    is_deleted = fields.pop(TOMBSTONE_FIELD, None) is not None
                    yield StoredRow(place[begins_at:], fields, position, is_deleted)

    def close(self) -> None:
        self._client.close()

    def _places(self, route: str) -> Iterator[str]:
        seen: set[str] = set()  # a scan may name a key twice
        pattern = scan_pattern(self._prefix, route)
        for place in self._client.scan_iter(pattern, count=ROWS_PER_TRIP):
            if place not in seen:
                seen.add(place)
                yield place

    def _hashes(self, places: list[str]) -> list[dict[str, str]]:
        pipeline = self._client.pipeline(transaction=False)
        for place in places:
            pipeline.hgetall(place)
        answer: list[dict[str, str]] = pipeline.execute()
        return answer
