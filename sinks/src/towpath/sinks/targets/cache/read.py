"""Reading back the rows of the cache, tombstones included, to verify them."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from towpath.sinks.ports import StoredRow
from towpath.sinks.targets.cache.client import SCANNED_AT_ONCE, Servers, translated
from towpath.sinks.targets.cache.schema import (
    POSITION_FIELD,
    TOMBSTONE_FIELD,
    name_of,
    route_key_prefix,
    scan_pattern,
    text_of_name,
)

# Hashes per round trip; the server returns them in about 5 ms.
ROWS_PER_TRIP: Final = 1000

# The error code of a value of a different type.
_NO_HASH: Final = "WRONGTYPE"

# A server uses only as many bits of a cursor as its hash table needs.
_CURSOR_BITS: Final = 32


class CacheReader:
    """Reads one Redis server, or a cluster, even while it is being written to."""

    def __init__(self, url: str, prefix: str) -> None:
        self._servers = Servers(url)
        self._prefix = prefix

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Yield the rows of all keys of a route; fields are text, null fields are absent.

        A value of a different type, which another program wrote under the name of a
        row, counts as a row without fields or a position. Bytes of another program that
        are not UTF-8 are escaped, because reports and temporary files hold text; those
        of a key are escaped by ``text_of_name``.
        """
        with translated():
            self._servers.discover()
        redis_keys = self._redis_keys(route)
        begins_at = len(route_key_prefix(self._prefix, route))
        while True:
            with translated():
                batch = list(islice(redis_keys, ROWS_PER_TRIP))
                hashes = self._hashes(batch)
            if not batch:
                return
            for redis_key, fields in zip(batch, hashes, strict=True):
                # A tombstone that has expired since the scan is left out.
                if fields:
                    yield _stored(text_of_name(redis_key[begins_at:]), fields)

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """Read the rows of some keys, in the form of ``rows``."""
        with translated():
            self._servers.discover()
        begins = route_key_prefix(self._prefix, route)
        remaining = iter(keys)
        while batch := list(islice(remaining, ROWS_PER_TRIP)):
            with translated():
                hashes = self._hashes([begins + name_of(key) for key in batch])
            for key, fields in zip(batch, hashes, strict=True):
                if fields:
                    yield _stored(key, fields)

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """
        Read about ``count`` random rows, in the form of ``rows``.

        A scan from a random cursor finds neighbors in the server's hash table, which
        are not neighbors in the route.
        """
        with translated():
            self._servers.discover()
            redis_keys = self._random_keys(scan_pattern(self._prefix, route), count)
        begins_at = len(route_key_prefix(self._prefix, route))
        keys = [text_of_name(redis_key[begins_at:]) for redis_key in redis_keys]
        yield from self.at(route, keys)

    def close(self) -> None:
        self._servers.close()

    def _redis_keys(self, route: str) -> Iterator[str]:
        seen: set[str] = set()  # a scan may return a key twice
        for redis_key in self._servers.scan(self._prefix, route):
            if redis_key not in seen:
                seen.add(redis_key)
                yield redis_key

    def _random_keys(self, pattern: str, count: int) -> Iterable[str]:
        found: dict[str, None] = {}
        # A cluster without slots has no server.
        share = -(-count // max(1, len(self._servers.all)))
        for client in self._servers.all:
            enough = len(found) + share
            for begin in (random.getrandbits(_CURSOR_BITS), 0):
                cursor = begin
                while len(found) < enough:
                    cursor, names = client.scan(cursor, pattern, SCANNED_AT_ONCE)
                    found.update(dict.fromkeys(names))
                    if not cursor:
                        break
        return found

    def _hashes(self, redis_keys: Sequence[str]) -> list[dict[str, str]]:
        """Read hashes in one round trip per server, in the order of their keys."""
        pipelines: dict[Any, tuple[Any, list[int]]] = {}
        for index, redis_key in enumerate(redis_keys):
            client = self._servers.client_of(redis_key)
            if client not in pipelines:
                pipelines[client] = client.pipeline(transaction=False), []
            pipeline, indexes = pipelines[client]
            pipeline.hgetall(redis_key)
            indexes.append(index)
        found: list[dict[str, str]] = [{}] * len(redis_keys)
        for pipeline, indexes in pipelines.values():
            responses = pipeline.execute(raise_on_error=False)
            for index, fields in zip(indexes, responses, strict=True):
                found[index] = _row_or_foreign(fields)
        return found


def _stored(key: str, fields: dict[str, str]) -> StoredRow:
    try:
        "".join((*fields, *fields.values())).encode()
    except UnicodeEncodeError:
        fields = {_escaped(name): _escaped(text) for name, text in fields.items()}
    position = fields.pop(POSITION_FIELD, "")
    is_deleted = fields.pop(TOMBSTONE_FIELD, None) is not None
    return StoredRow(key, fields, position, is_deleted)


def _row_or_foreign(response: dict[str, str] | Exception) -> dict[str, str]:
    """Return a hash; for a value of a different type, a row below every position."""
    if not isinstance(response, Exception):
        return response
    if str(response).startswith(_NO_HASH):
        return {POSITION_FIELD: ""}
    raise response


def _escaped(text: str) -> str:
    """Escape the bytes of a string that are not UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
