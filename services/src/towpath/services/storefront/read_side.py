"""
Read orders and products from the sinks' targets, and wait for a client's writes.

The search index has an order's whole document, from its events; the cache has its row
of ``shop.orders``. Both carry the position of the change that wrote them, and positions
of one commit differ only in their ordinal. The positions therefore show which of two
copies of an order is newer; the response has the newer one.

A read with an LSN first waits until each sink that serves it has applied everything
that was committed up to the LSN. The index is then refreshed, because a search finds a
document only after a refresh.

A search never parses its text as a query: each word is matched as a literal value, so
no text can be malformed or expensive.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NamedTuple

import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError as NoIndexError
from opensearchpy.exceptions import OpenSearchException

from towpath.schemas.failure import UnavailableError, with_remedy
from towpath.schemas.position import parse_lsn, parse_position
from towpath.services.plumbing.http import HEADER, FieldError
from towpath.services.storefront.waits import (
    CannotWaitError,
    SinkWaits,
    malformed_lsn,
)

# Redis and OpenSearch answer within milliseconds; this only bounds a call that hangs.
RESPONSE_TIMEOUT_S: Final = 5.0
# A search ignores further words; the texts of /search and /find state this number.
MAX_WORDS: Final = 8
_MAX_BIGINT: Final = 2**63 - 1
ORDERS: Final = "orders"
PRODUCTS: Final = "products"
POSITION: Final = "_position"
_TOMBSTONE: Final = "_x"

Row = Mapping[str, Any]


class SearchUnavailableError(UnavailableError):
    """The search index does not answer, or has no orders yet."""

    remedy: ClassVar[str] = "Check that OpenSearch and the search sink are running."


class CacheUnavailableError(UnavailableError):
    """The cache does not answer."""

    remedy: ClassVar[str] = "Check that Redis is running, and that --cache names it."


class Copy(NamedTuple):
    """
    An order or a product as stored in a target.

    Attributes:
        fields: Its fields, without those of the sink.
        position: The position of the change that wrote it.
    """

    fields: dict[str, Any]
    position: str

    @property
    def log_lsn(self) -> int:
        """The LSN of the change's commit; zero if it is unknown."""
        try:
            return parse_position(self.position).log_lsn
        except ValueError:
            return 0


class Found(NamedTuple):
    """The documents that a search found, and whether there are more."""

    copies: Sequence[Copy]
    has_more: bool = False


class SearchIndex:
    """The indexes of the search sink."""

    def __init__(self, url: str) -> None:
        """Store the address; no connection is opened."""
        # The library logs every call.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        self._client = OpenSearch(
            hosts=[url], timeout=RESPONSE_TIMEOUT_S, max_retries=0, pool_maxsize=8
        )

    def refresh(self) -> None:
        """
        Make everything that was applied visible to searches.

        Raises:
            SearchUnavailableError: The index does not answer.
        """
        with _search_errors():
            self._client.indices.refresh(
                index=f"{ORDERS},{PRODUCTS}", params={"ignore_unavailable": "true"}
            )

    def find_orders(self, text: str, limit: int) -> Found:
        """
        Find the orders whose fields match the first words of ``text``, best first.

        Each of the first ``MAX_WORDS`` words must match.

        Raises:
            SearchUnavailableError: The index does not answer.
        """
        order = ["_score", {"order_id": {"order": "desc", "unmapped_type": "long"}}]
        return self._find(ORDERS, _first_words(text, _order_clauses), limit, sort=order)

    def find_products(self, text: str, limit: int) -> Found:
        """
        Find the products whose fields match the first words of ``text``.

        Each of the first ``MAX_WORDS`` words must match.

        Returns:
            The products; none if there is no index of products.

        Raises:
            SearchUnavailableError: The index does not answer.
        """
        return self._find(PRODUCTS, _first_words(text, _product_clauses), limit)

    def orders_of(self, customer_id: uuid.UUID, limit: int, after: int | None) -> Found:
        """
        Read a page of a customer's orders, newest first.

        Args:
            customer_id: The customer.
            limit: The largest number of orders.
            after: The number of the last order of the previous page.

        Raises:
            SearchUnavailableError: The index does not answer.
        """
        query = {"bool": {"filter": [{"term": {"customer_id": str(customer_id)}}]}}
        order = {"order_id": {"order": "desc", "unmapped_type": "long"}}
        more = {} if after is None else {"search_after": [after]}
        return self._find(ORDERS, query, limit, sort=[order], **more)

    def find_order(self, order_id: int) -> Copy | None:
        """
        Read the document of one order.

        Raises:
            SearchUnavailableError: The index does not answer.
        """
        query = {"term": {"order_id": order_id}}
        found = self._find(ORDERS, query, 1).copies
        return found[0] if found else None

    def check(self) -> None:
        """
        Check that the index answers.

        Raises:
            SearchUnavailableError: The index does not answer.
        """
        with _search_errors():
            self._client.info()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _find(
        self, index: str, query: Mapping[str, Any], limit: int, **more: object
    ) -> Found:
        body = {"query": query, "size": limit + 1, **more}
        params = {"ignore_unavailable": "true"} if index == PRODUCTS else {}
        with _search_errors():
            response = self._client.search(index=index, body=body, params=params)
        hits = response["hits"]["hits"]
        return Found([_copy(hit["_source"]) for hit in hits[:limit]], len(hits) > limit)


def _copy(source: Row) -> Copy:
    fields = {name: v for name, v in source.items() if not name.startswith("_")}
    return Copy(fields, source.get(POSITION, ""))


@contextmanager
def _search_errors() -> Iterator[None]:
    try:
        yield
    except NoIndexError as error:
        message = "The search index has no orders yet."
        raise SearchUnavailableError(message) from error
    except OpenSearchException as error:
        message = "The search index does not answer."
        raise SearchUnavailableError(message) from error


def _first_words(text: str, clauses: Callable[[str], list[Any]]) -> dict[str, Any]:
    """Return a query for documents that match each of the first words of ``text``."""
    words = text.split()[:MAX_WORDS]
    if not words:
        return {"match_none": {}}
    return {"bool": {"must": [{"bool": {"should": clauses(word)}} for word in words]}}


def _order_clauses(word: str) -> list[Any]:
    """Return the clauses with which a word may match an order."""
    clauses: list[Any] = [
        {"term": {"status": word.lower()}},
        {"match_bool_prefix": {"note": word}},
    ]
    if (number := _number(word)) is not None:
        clauses.append({"term": {"order_id": {"value": number, "boost": 10.0}}})
    if (known := _uuid(word)) is not None:
        line = {"term": {"lines.product_id": known}}
        clauses.append({"term": {"customer_id": known}})
        clauses.append({"nested": {"path": "lines", "query": line}})
    return clauses


def _product_clauses(word: str) -> list[Any]:
    """Return the clauses with which a word may match a product."""
    clauses: list[Any] = [{"match_bool_prefix": {"name": word}}]
    if (known := _uuid(word)) is not None:
        clauses.append({"term": {"id": known}})
    return clauses


def _number(word: str) -> int | None:
    digits = word.removeprefix("#")
    # Python refuses to parse thousands of digits.
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):  # noqa: PLR2004 - the digits of a bigint
        return None
    return min(int(digits), _MAX_BIGINT)


def _uuid(word: str) -> str | None:
    try:
        return str(uuid.UUID(word))
    except ValueError:
        return None


class OrderCache:
    """The rows of ``shop.orders`` in the cache."""

    def __init__(self, url: str, prefix: str) -> None:
        """
        Store the address; no connection is opened.

        Args:
            url: The Redis server.
            prefix: The prefix of the sink's keys.
        """
        self._client = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=RESPONSE_TIMEOUT_S,
            socket_connect_timeout=RESPONSE_TIMEOUT_S,
        )
        self._prefix = f"{prefix}:{ORDERS}:"

    def rows(self, order_ids: Sequence[int]) -> dict[int, Copy]:
        """
        Read the rows of orders; leave out orders that the cache lacks.

        Raises:
            CacheUnavailableError: The cache does not answer.
        """
        with _cache_errors(), self._client.pipeline(transaction=False) as pipeline:
            for order_id in order_ids:
                pipeline.hgetall(f"{self._prefix}{order_id}")
            hashes = pipeline.execute()
        return {
            order_id: _copy(fields)
            for order_id, fields in zip(order_ids, hashes, strict=True)
            if fields and _TOMBSTONE not in fields
        }

    def check(self) -> None:
        """
        Check that the cache answers.

        Raises:
            CacheUnavailableError: The cache does not answer.
        """
        with _cache_errors():
            self._client.ping()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        message = "The cache does not answer."
        raise CacheUnavailableError(message) from error


class CurrentOrder(NamedTuple):
    """
    An order as its newest copy shows it.

    Attributes:
        document: Its document; status, note and time are those of the newest copy.
        served_from: ``cache`` or ``search``: the target with the newest copy.
        search: The position of its document.
        cache: The position of its row; None if the cache has none.
    """

    document: dict[str, Any]
    served_from: str
    search: str
    cache: str | None


# Fields that change, and that both copies have as the same text.
_CHANGING: Final = ("status", "note", "updated_at")


def newest(document: Copy, row: Copy | None) -> CurrentOrder:
    """Join the copies of an order; if one commit wrote both, the row is preferred."""
    if row is None or row.log_lsn < document.log_lsn:
        position = None if row is None else row.position
        return CurrentOrder(document.fields, "search", document.position, position)
    changed = {name: row.fields.get(name) for name in _CHANGING}
    joined = document.fields | changed
    return CurrentOrder(joined, "cache", document.position, row.position)


class ReadSide:
    """The read side of the shop."""

    def __init__(
        self, search: SearchIndex, cache: OrderCache, waits: SinkWaits | None
    ) -> None:
        """
        Store the clients.

        Args:
            search: The search index.
            cache: The cache.
            waits: Waits for an LSN; if None, reads with an LSN are refused.
        """
        self.search = search
        self.cache = cache
        self._waits = waits

    @property
    def can_wait(self) -> bool:
        """Whether reads can wait for an LSN."""
        return self._waits is not None

    def catch_up(self, lsn: str | None, *kinds: str) -> dict[str, int]:
        """
        Wait until the sinks of all these kinds have applied an LSN, if one is given.

        Returns:
            The milliseconds until each sink had applied it; empty without an LSN.

        Raises:
            CannotWaitError: An LSN is given, but the storefront has no configuration.
            MalformedError: The LSN does not belong to the source's history.
            UnavailableError: The LSN is not applied in time, or the database, the
                broker or the search index does not answer.
        """
        if lsn is None:
            return {}
        try:
            parse_lsn(lsn)
        except ValueError as error:
            reason = "must be an LSN, such as 0/16B3748"
            raise malformed_lsn(reason) from error
        if self._waits is None:
            message = with_remedy("This storefront cannot wait", CannotWaitError.remedy)
            raise CannotWaitError(message, [FieldError(HEADER, "is not supported")])
        waited_ms = self._waits.until_applied(lsn, kinds)
        if "search" in kinds:
            self.search.refresh()
        return waited_ms

    def current(self, documents: Sequence[Copy]) -> list[CurrentOrder]:
        """
        Join the documents of orders with their rows in the cache.

        Raises:
            CacheUnavailableError: The cache does not answer.
        """
        rows = self.cache.rows([each.fields["order_id"] for each in documents])
        return [newest(each, rows.get(each.fields["order_id"])) for each in documents]

    def check(self) -> None:
        """
        Check that both targets answer.

        Raises:
            UnavailableError: A target does not answer.
        """
        self.search.check()
        self.cache.check()

    def close(self) -> None:
        """Close all connections."""
        self.search.close()
        self.cache.close()
        if self._waits is not None:
            self._waits.close()
