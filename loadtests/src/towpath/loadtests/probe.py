"""
Is the order readable? Asked of each target through its own API, as its users would.

Redis answers at once; OpenSearch only after a refresh, so the search API is asked and
not the get API; a warehouse table is scanned with a filter, seldom, because a scan is
dear.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from towpath.loadtests.errors import TargetUnavailableError

_TIMEOUT_S: Final = 10.0


class Probe(Protocol):
    """One target, and how often it is asked."""

    interval_s: float

    def check(self) -> None:
        """
        Ask once whether orders could be read there.

        Raises:
            TargetUnavailableError: The target answers, and has no place for orders.
            Exception: The driver's own, if the target does not answer.
        """

    def find(self, order_ids: Sequence[int]) -> set[int]:
        """Return those of the orders that a reader finds now."""


class CacheProbe:
    """Reads the hashes of orders, all in one round trip."""

    # A look costs one round trip; finer than this measures the sampler.
    interval_s = 0.01

    def __init__(self, url: str, key: str) -> None:
        self._client = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, decode_responses=True
        )
        self._key = key

    def check(self) -> None:
        # What a user may read is not known; this is what will be asked.
        self.find((0,))

    def find(self, order_ids: Sequence[int]) -> set[int]:
        pipeline = self._client.pipeline(transaction=False)
        for order_id in order_ids:
            pipeline.hget(self._key.format(order_id), "id")
        answers = pipeline.execute()
        return {
            order_id
            for order_id, answer in zip(order_ids, answers, strict=True)
            if answer is not None
        }


class SearchProbe:
    """Searches for documents by their id."""

    # A tenth of the index's usual refresh interval.
    interval_s = 0.05

    def __init__(self, url: str, index: str) -> None:
        self._client = OpenSearch(url, timeout=_TIMEOUT_S, max_retries=0)
        self._index = index

    def check(self) -> None:
        try:
            self._client.search(index=self._index, body={"size": 0})
        except NotFoundError as error:
            message = f"the search has no index {self._index!r}"
            raise TargetUnavailableError(message) from error

    def find(self, order_ids: Sequence[int]) -> set[int]:
        wanted = [str(order_id) for order_id in order_ids]
        query = {
            "query": {"ids": {"values": wanted}},
            "size": len(wanted),
            "_source": False,
        }
        try:
            answer = self._client.search(index=self._index, body=query)
        except NotFoundError:
            return set()
        return {int(hit["_id"]) for hit in answer["hits"]["hits"]}


class WarehouseProbe:
    """Scans an Iceberg table for rows by their id."""

    # A scan takes a few hundred milliseconds of a core that the load needs too.
    interval_s = 3.0

    def __init__(self, catalog: dict[str, str], table: str) -> None:
        self._catalog_name = catalog.pop("name", "lake")
        self._properties: dict[str, str | None] = dict(catalog)
        self._name = table
        self._table: Any = None

    def check(self) -> None:
        try:
            self._fresh()
        except NoSuchTableError as error:
            message = f"the warehouse has no table {self._name!r}"
            raise TargetUnavailableError(message) from error

    def find(self, order_ids: Sequence[int]) -> set[int]:
        try:
            table = self._fresh()
        except NoSuchTableError:
            return set()
        wanted = f"id in ({', '.join(map(str, order_ids))})"
        rows = table.scan(row_filter=wanted, selected_fields=("id",))
        return set(rows.to_arrow().column("id").to_pylist())

    def _fresh(self) -> Any:  # noqa: ANN401 - a driver's object
        if self._table is None:
            catalog = load_catalog(self._catalog_name, **self._properties)
            self._table = catalog.load_table(self._name)
        return self._table.refresh()
