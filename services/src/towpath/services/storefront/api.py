"""
The HTTP API of the read side.

============================  ==================
route                         statuses
============================  ==================
GET /search                   200, 422
GET /customers/{id}/orders    200, 400, 422
============================  ==================

Both honor the header ``Towpath-Lsn`` from a write's response: the read waits until the
sinks that serve it have applied the write. The read is refused with 503 and
``Retry-After`` if that takes too long, with 400 if the header is not an LSN of the
source, and with 501 if the storefront was started without ``--config``. Both also
respond with 503 while the search index or the cache that they read is unavailable.

Every order includes the positions of its copies. A position is the log LSN in 16 hex
digits, a dot, and the ordinal in the commit; of two positions, the greater string is
the newer one.
"""

import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from flask import Blueprint, Response, current_app, request
from pydantic import Field, StringConstraints

from towpath.services.plumbing.http import HEADER, Input, json_response, read_query
from towpath.services.plumbing.openapi import Document, Operation, Operations
from towpath.services.plumbing.pagination import (
    MAX_LIMIT,
    Cursors,
    PageQuery,
    page_document,
)
from towpath.services.storefront.read_side import Copy, CurrentOrder, ReadSide

EXTENSION: Final = "towpath.read_side"

blueprint = Blueprint("reads", __name__)
operations = Operations("reads")

_CURSORS: Final = Cursors(tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]])
_ORDER_FIELDS: Final = (
    *("order_id", "customer_id", "status", "total", "currency", "note"),
    *("placed_at", "updated_at"),
)
_LINE_FIELDS: Final = ("line_no", "product_id", "quantity", "unit_price")

SearchText = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)
]


class SearchQuery(Input):
    """The words to search for."""

    q: Annotated[SearchText, Field(json_schema_extra={"pattern": r"\S"})]
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)


class FreshnessDocument(Document):
    """
    The freshness of a response.

    ``lsn``: the response reflects everything committed up to this LSN; null if the
    request had none. ``waited_ms``: the time until each target had applied everything
    up to it.
    """

    lsn: str | None
    waited_ms: dict[str, int]


class OrderLineDocument(Document):
    """A line of an order."""

    line_no: int
    product_id: str
    quantity: int
    unit_price: str


class FoundOrderDocument(Document):
    """An order as the search index has it."""

    order_id: int
    customer_id: str
    status: str
    total: str
    currency: str
    note: str | None
    placed_at: str
    updated_at: str
    lines: list[OrderLineDocument]
    search_position: str


class CurrentOrderDocument(FoundOrderDocument):
    """
    An order from the newer of its two copies.

    ``served_from``: the target whose copy is newer; the cache, if one commit wrote both
    copies. ``cache_position`` is null while the cache lacks the order's row.
    """

    served_from: Literal["cache", "search"]
    cache_position: str | None


class FoundProductDocument(Document):
    """A product as the search index has it."""

    product_id: str
    name: str
    unit_price: str
    on_hand: int
    search_position: str


class SearchDocument(Document):
    """The orders and products that were found, best matches first."""

    orders: list[FoundOrderDocument]
    products: list[FoundProductDocument]
    freshness: FreshnessDocument


class CustomerOrdersDocument(Document):
    """A page of a customer's orders, newest first."""

    items: list[CurrentOrderDocument]
    next: str | None
    freshness: FreshnessDocument


@blueprint.get("/search")
@operations.add(Operation(query=SearchQuery, response=SearchDocument, waits=True))
def search() -> Response:
    """Search orders and products; each of the first 8 words must match."""
    wanted = read_query(request, SearchQuery)
    freshness = _freshness("search")
    index = _reads().search
    document = {
        "orders": [
            found_order(copy) for copy in index.find_orders(wanted.q, wanted.limit)[0]
        ],
        "products": [
            found_product(copy)
            for copy in index.find_products(wanted.q, wanted.limit)[0]
        ],
        "freshness": freshness,
    }
    return json_response(HTTPStatus.OK, document)


@blueprint.get("/customers/<uuid:customer_id>/orders")
@operations.add(Operation(query=PageQuery, response=CustomerOrdersDocument, waits=True))
def customer_orders(customer_id: uuid.UUID) -> Response:
    """List the orders of a customer, newest first, each in its newest copy."""
    wanted = read_query(request, PageQuery)
    after = None if wanted.cursor is None else _CURSORS.decode(wanted.cursor)[0]
    freshness = _freshness("cache", "search")
    found, cursor = page_of(_reads(), customer_id, wanted.limit, after)
    items = [current_order(order) for order in found]
    document, headers = page_document(request.path, wanted, items, cursor)
    return json_response(HTTPStatus.OK, document | {"freshness": freshness}, headers)


def page_of(
    reads: ReadSide, customer_id: uuid.UUID, limit: int, after: int | None
) -> tuple[Sequence[CurrentOrder], str | None]:
    """
    Read a page of a customer's orders, and the cursor of the next page, if any.

    Raises:
        UnavailableError: The search index or the cache does not answer.
    """
    found = reads.search.orders_of(customer_id, limit, after)
    orders = reads.current(found.copies)
    if not found.has_more:
        return orders, None
    return orders, _CURSORS.encode((found.copies[-1].fields["order_id"],))


def found_order(copy: Copy) -> dict[str, Any]:
    """Return the document of an order from its copy in the search index."""
    fields = copy.fields
    lines = [
        {name: line[name] for name in _LINE_FIELDS} for line in fields.get("lines", ())
    ]
    order = {name: fields.get(name) for name in _ORDER_FIELDS}
    return order | {"lines": lines, "search_position": copy.position}


def current_order(order: CurrentOrder) -> dict[str, Any]:
    """Return the document of an order from its newest copy."""
    return found_order(Copy(order.document, order.search)) | {
        "served_from": order.served_from,
        "cache_position": order.cache,
    }


def found_product(copy: Copy) -> dict[str, Any]:
    """Return the document of a product from its copy in the search index."""
    fields = copy.fields
    return {
        "product_id": fields["id"],
        "name": fields["name"],
        "unit_price": str(fields["unit_price"]),
        "on_hand": fields["on_hand"],
        "search_position": copy.position,
    }


def _freshness(*kinds: str) -> dict[str, Any]:
    lsn = request.headers.get(HEADER)
    return {"lsn": lsn, "waited_ms": _reads().catch_up(lsn, *kinds)}


def _reads() -> ReadSide:
    reads: ReadSide = current_app.extensions[EXTENSION]
    return reads
