"""
The HTTP API of the service: routes, input and output; handlers run the commands.

================================  ===============  =============
route                             body             statuses
================================  ===============  =============
GET  /products                    -                200, 422
POST /products                    RegisterProduct  201, 409, 422
GET  /products/{id}               -                200, 404
POST /products/{id}/receipts      ReceiveUnits     200, 404, 422
GET  /reservations/{order_id}     -                200, 404
================================  ===============  =============

Every POST takes an ``Idempotency-Key``. Products are listed in the order of their ids,
page by page: ``next`` is the id after which the next page begins.
"""

import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from flask import Blueprint, Response, current_app, request
from pydantic import AwareDatetime, Field
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox import plain
from towpath.services.inventory import handlers
from towpath.services.inventory.domain import Product, Reservation, ReservationStatus
from towpath.services.inventory.repository import InventoryRepository
from towpath.services.plumbing.database import UnitOfWork
from towpath.services.plumbing.http import (
    Input,
    NotFoundError,
    json_response,
    read_body,
    read_query,
)
from towpath.services.plumbing.idempotency import CommandExecutor
from towpath.services.plumbing.openapi import Document, Operation, Operations

EXTENSION: Final = "towpath.inventory"

blueprint = Blueprint("inventory", __name__)
operations = Operations("inventory")


class ProductDocument(Document):
    """A product and its units; ``unit_price`` is decimal text."""

    product_id: uuid.UUID
    name: str
    unit_price: str
    received: int
    on_hand: int
    reserved: int
    sold: int
    version: int
    updated_at: AwareDatetime


class ProductsDocument(Document):
    """A page of products, in the order of their ids."""

    items: list[ProductDocument]
    next: uuid.UUID | None


class ReservedLineDocument(Document):
    """The units of one product in a reservation."""

    product_id: uuid.UUID
    quantity: int


class ReservationDocument(Document):
    """The reservation of an order."""

    order_id: int
    status: ReservationStatus
    lines: list[ReservedLineDocument]
    reason: str | None
    updated_at: AwareDatetime


class ProductsQuery(Input):
    """The query parameters of the list of products."""

    limit: int = Field(default=50, ge=1, le=100)
    after: uuid.UUID | None = None


class InventoryContext(NamedTuple):
    """The objects that the routes need; stored in the application as ``EXTENSION``."""

    sessions: sessionmaker[Session]
    commands: CommandExecutor[UnitOfWork]


@blueprint.get("/products")
@operations.add(Operation(response=ProductsDocument, query=ProductsQuery))
def list_products() -> Response:
    """List products."""
    query = read_query(request, ProductsQuery)
    with UnitOfWork(_context().sessions) as unit:
        found = _inventory(unit).list_products(query.limit + 1, query.after)
    page = found[: query.limit]
    document = {
        "items": [_product_document(product) for product in page],
        "next": page[-1].product_id if len(found) > query.limit else None,
    }
    return json_response(HTTPStatus.OK, plain(document))


@blueprint.post("/products")
@operations.add(
    Operation(
        response=ProductDocument,
        status=HTTPStatus.CREATED,
        body=handlers.RegisterProduct,
        is_command=True,
        problems=(HTTPStatus.CONFLICT,),
    )
)
def register_product() -> Response:
    """Register a product."""
    command = read_body(request, handlers.RegisterProduct)
    return _context().commands.run(
        request,
        lambda unit, at: _product_document(
            handlers.register_product(command, _inventory(unit), at)
        ),
        status=HTTPStatus.CREATED,
        headers=_headers,
    )


@blueprint.get("/products/<uuid:product_id>")
@operations.add(Operation(response=ProductDocument))
def find_product(product_id: uuid.UUID) -> Response:
    """Read a product."""
    with UnitOfWork(_context().sessions) as unit:
        product = _inventory(unit).find_product(product_id)
    if product is None:
        raise handlers.no_product(product_id)
    return json_response(HTTPStatus.OK, plain(_product_document(product)))


@blueprint.post("/products/<uuid:product_id>/receipts")
@operations.add(
    Operation(response=ProductDocument, body=handlers.ReceiveUnits, is_command=True)
)
def receive_units(product_id: uuid.UUID) -> Response:
    """Add received units of a product."""
    command = read_body(request, handlers.ReceiveUnits)
    return _context().commands.run(
        request,
        lambda unit, at: _product_document(
            handlers.receive_units(product_id, command, _inventory(unit), at)
        ),
    )


@blueprint.get("/reservations/<bigint:order_id>")
@operations.add(Operation(response=ReservationDocument))
def find_reservation(order_id: int) -> Response:
    """Read the reservation of an order."""
    with UnitOfWork(_context().sessions) as unit:
        reservation = _inventory(unit).find_reservation(order_id)
    if reservation is None:
        message = f"There is no reservation for order {order_id}."
        raise NotFoundError(message)
    return json_response(HTTPStatus.OK, plain(_reservation_document(reservation)))


def _context() -> InventoryContext:
    context: InventoryContext = current_app.extensions[EXTENSION]
    return context


def _inventory(unit: UnitOfWork) -> InventoryRepository:
    return InventoryRepository(unit.session)


def _product_document(product: Product) -> dict[str, Any]:
    return product._asdict()


def _reservation_document(reservation: Reservation) -> dict[str, Any]:
    return {
        "order_id": reservation.order_id,
        "status": reservation.status,
        "lines": [line._asdict() for line in reservation.lines],
        "reason": reservation.reason,
        "updated_at": reservation.updated_at,
    }


def _headers(_status: int, document: Mapping[str, Any]) -> dict[str, str]:
    return {"Location": f"/products/{document['product_id']}"}
