"""
The HTTP client through which the pages call the shop's services.

A service's refusal is raised as the error for the same status if it is 404 or 409, and
as ``InvalidInputError`` otherwise. A service that fails or does not answer is reported
as unreachable, and so is one whose refusal is not a problem document. Registrations
and orders carry the caller's idempotency key, so that a repetition has no effect.
Orders and their changes return the LSN of their commit.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, NamedTuple

import httpx2

from towpath.schemas.failure import UnavailableError
from towpath.services.plumbing.http import (
    HEADER,
    MEDIA_TYPE,
    ConflictError,
    FieldError,
    InvalidInputError,
    NotFoundError,
    ProblemError,
)
from towpath.services.plumbing.idempotency import HEADER as IDEMPOTENCY_KEY
from towpath.services.plumbing.tracing import request_headers

# Longer than the five seconds for which a service waits for a row lock.
_RESPONSE_TIMEOUT_S: Final = 8.0
_REFUSALS: Final[Mapping[int, type[ProblemError]]] = {
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
}


class ServiceUnreachableError(UnavailableError):
    """A service of the shop does not answer, or fails."""

    remedy: ClassVar[str] = "Try again in a moment; nothing is ordered twice."


class Written(NamedTuple):
    """The document that a write returns, and the LSN of its commit."""

    document: dict[str, Any]
    lsn: str | None


class ProductPage(NamedTuple):
    """Some products, and the id after which the next page begins."""

    items: Sequence[dict[str, Any]]
    next: str | None


class Shop:
    """The orders and inventory services."""

    def __init__(self, orders_url: str, inventory_url: str) -> None:
        """Store the base addresses; no connection is opened."""
        self._orders = _client(orders_url)
        self._inventory = _client(inventory_url)

    def products(self, limit: int, after: uuid.UUID | None) -> ProductPage:
        """
        Read a page of products.

        Raises:
            ServiceUnreachableError: Inventory does not answer.
        """
        query = {"limit": str(limit)} | ({"after": str(after)} if after else {})
        document = _get(self._inventory, "/products", query)
        return ProductPage(document["items"], document["next"])

    def product(self, product_id: uuid.UUID) -> dict[str, Any]:
        """
        Read a product.

        Raises:
            NotFoundError: There is no such product.
            ServiceUnreachableError: Inventory does not answer.
        """
        return _get(self._inventory, f"/products/{product_id}")

    def register(self, name: str, email: str, key: str) -> str:
        """
        Register a customer, once for each key; return the id.

        Raises:
            InvalidInputError: The name or the address is invalid.
            ServiceUnreachableError: Orders does not answer.
        """
        body = {"name": name, "email": email}
        customer_id: str = self._post("/customers", body, key).document["customer_id"]
        return customer_id

    def place(self, order: Mapping[str, Any], key: str) -> Written:
        """
        Place an order; a repeated key does not place it again.

        Raises:
            InvalidInputError: The order is invalid.
            ServiceUnreachableError: Orders does not answer.
        """
        return self._post("/orders", order, key)

    def order(self, order_id: int) -> dict[str, Any]:
        """
        Read an order with its saga.

        Raises:
            NotFoundError: There is no such order.
            ServiceUnreachableError: Orders does not answer.
        """
        return _get(self._orders, f"/orders/{order_id}")

    def change(self, order_id: int, action: str, body: Mapping[str, str]) -> Written:
        """
        Pay for, cancel or return an order.

        Raises:
            NotFoundError: There is no such order.
            ConflictError: The order's status does not allow the action.
            InvalidInputError: The payment method or the reason is invalid.
            ServiceUnreachableError: Orders does not answer.
        """
        return self._post(f"/orders/{order_id}/{action}", body)

    def close(self) -> None:
        """Close the connections."""
        self._orders.close()
        self._inventory.close()

    def _post(
        self, path: str, body: Mapping[str, Any], key: str | None = None
    ) -> Written:
        headers = {**request_headers(), IDEMPOTENCY_KEY: key or uuid.uuid4().hex}
        try:
            response = self._orders.post(path, json=body, headers=headers)
        except httpx2.HTTPError as error:
            raise _unreachable(self._orders) from error
        return Written(_document(self._orders, response), response.headers.get(HEADER))


def _client(url: str) -> httpx2.Client:
    # The library logs every request, and a live page makes three per second.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.Client(base_url=url, timeout=_RESPONSE_TIMEOUT_S, trust_env=False)


def _get(
    client: httpx2.Client, path: str, query: Mapping[str, str] | None = None
) -> dict[str, Any]:
    try:
        response = client.get(path, params=query, headers=request_headers())
    except httpx2.HTTPError as error:
        raise _unreachable(client) from error
    return _document(client, response)


def _document(client: httpx2.Client, response: httpx2.Response) -> dict[str, Any]:
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _unreachable(client)
    try:
        document: dict[str, Any] = response.json()
    except ValueError as error:
        raise _unreachable(client) from error
    if response.is_success:
        return document
    if not response.headers.get("Content-Type", "").startswith(MEDIA_TYPE):
        # A gateway, not the service, refused the request.
        raise _unreachable(client)
    refusal = _REFUSALS.get(response.status_code, InvalidInputError)
    errors = [FieldError(e["field"], e["reason"]) for e in document.get("errors", [])]
    raise refusal(document["detail"], errors)


def _unreachable(client: httpx2.Client) -> ServiceUnreachableError:
    return ServiceUnreachableError(
        f"The service at {client.base_url} fails or does not answer."
    )
