"""Read back the documents of an index, tombstones included, for verification."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from opensearchpy.exceptions import NotFoundError

from towpath.schemas.failure import TowpathError
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.ports import StoredRow
from towpath.sinks.targets.search.client import connect, translated
from towpath.sinks.targets.search.schema import DELETED_FIELD, POSITION_FIELD

ROWS_PER_TRIP: Final = 2000
_SCROLL_KEPT_FOR: Final = "2m"


class SearchReader:
    """Reads the documents of an OpenSearch cluster while a sink may write to it."""

    def __init__(self, url: str) -> None:
        self._client = connect(url, is_exact=True)

    def rows(self, route: str) -> Iterator[StoredRow]:
        """
        Yield each document behind a route's alias once, tombstones included.

        A missing alias has no documents.
        """
        with translated():
            indexes = self._indexes(route)
        for index in indexes:
            yield from self._scroll(index, {"query": {"match_all": {}}})

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """Yield the documents of the given keys, as ``rows`` does."""
        with translated():
            indexes = self._indexes(route)
        remaining = iter(keys)
        while ids := list(islice(remaining, ROWS_PER_TRIP)):
            for index in indexes:
                with translated():
                    response = self._client.mget(index=index, body={"ids": ids})
                for hit in response["docs"]:
                    if (error := hit.get("error")) is not None:
                        message = f"{index}: {error.get('reason')}"
                        raise TargetUnavailableError(message)
                found = (hit for hit in response["docs"] if hit.get("found"))
                yield from map(_stored_row, found)

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """Yield about ``count`` random documents, as ``rows`` does."""
        with translated():
            indexes = self._indexes(route)
        for index in indexes:
            with translated():
                documents = self._client.count(index=index)["count"]
            least = 1 - count / len(indexes) / max(1, documents)
            by_chance = {"random_score": {}, "boost_mode": "replace"}
            yield from self._scroll(
                index,
                {"query": {"function_score": by_chance}, "min_score": max(0.0, least)},
            )

    def close(self) -> None:
        self._client.close()

    def _indexes(self, route: str) -> list[str]:
        try:
            # Reads use the indexes, because the alias hides tombstones. A call without
            # an index in its path would need rights on all indexes.
            indexes = sorted(self._client.indices.get_alias(index=route, name=route))
        except NotFoundError:
            return []
        self._client.indices.refresh(index=indexes)
        return indexes

    def _scroll(self, index: str, query: dict[str, Any]) -> Iterator[StoredRow]:
        with translated():
            page = self._client.search(
                index=index,
                body={**query, "sort": ["_doc"]},
                params={"scroll": _SCROLL_KEPT_FOR, "size": ROWS_PER_TRIP},
            )
        try:
            while hits := _whole(page)["hits"]["hits"]:
                yield from map(_stored_row, hits)
                with translated():
                    body = {"scroll_id": page["_scroll_id"], "scroll": _SCROLL_KEPT_FOR}
                    page = self._client.scroll(body=body)
        finally:
            # The server limits the number of open scrolls, so a reader that stops early
            # must close its own.
            with suppress(TowpathError), translated():
                self._client.clear_scroll(body={"scroll_id": page["_scroll_id"]})


def _whole(page: dict[str, Any]) -> dict[str, Any]:
    """
    Return a page, unless a shard has not answered.

    Raises:
        TargetUnavailableError: A shard has not answered; its rows would count as
            absent.
    """
    if page.get("timed_out") or page.get("_shards", {}).get("failed"):
        message = "a shard does not answer"
        raise TargetUnavailableError(message)
    return page


def _stored_row(hit: dict[str, Any]) -> StoredRow:
    source = hit["_source"]
    position = source.pop(POSITION_FIELD, "")
    is_deleted = source.pop(DELETED_FIELD, False)
    return StoredRow(hit["_id"], source, position, bool(is_deleted))
