"""
The HTTP API of the service: routes, input and output; handlers run the commands.

=========================  =======================  =======================
route                      body                     statuses
=========================  =======================  =======================
POST /customers            RegisterCustomer         201, 422
GET  /customers/{id}       -                        200, 404
GET  /customers            -                        200, 422
POST /orders               PlaceOrder               201, 422
GET  /orders/{id}          -                        200, 404
GET  /orders               -                        200, 422
POST /orders/{id}/pay      PayOrder, or none        200, 404, 409, 412, 422
POST /orders/{id}/cancel   CancelOrder, or none     200, 404, 409, 412, 422
POST /orders/{id}/return   ReturnOrder, or none     200, 404, 409, 412, 422
=========================  =======================  =======================

A 200 response with one order carries the order's version as its ``ETag``; commands on
the order take ``If-Match``.

Every POST takes an ``Idempotency-Key`` and a ``traceparent``. A successful POST returns
the header ``Towpath-Lsn``, unless the connection has been lost: once a sink has applied
everything up to this LSN, the write can be read there (see ``plumbing.http``). Further
statuses: 400, 413 and 415 for a body that cannot be read, 400 for a header or a query
parameter that cannot be read, and 503, on every route, when the database is
unavailable. The listings are paged, newest first (see ``plumbing.pagination``).

The OpenAPI document, ``/openapi.json``, is generated from the ``Operation`` of each
route; the models ``...Document`` are the schemas of the responses.
"""

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple

from flask import Blueprint, Response, current_app, request
from pydantic import AwareDatetime, Field
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox import plain
from towpath.services.orders import handlers
from towpath.services.orders.commands import (
    CancelOrder,
    PayOrder,
    PlaceOrder,
    RegisterCustomer,
    ReturnOrder,
)
from towpath.services.orders.domain import Order, OrderStatus, Step
from towpath.services.orders.events import (
    customer_document,
    order_document,
    order_view,
)
from towpath.services.orders.repository import OrdersStore, OrdersUnit
from towpath.services.plumbing.http import (
    IF_MATCH,
    AnyInput,
    IfMatch,
    Input,
    etag,
    json_response,
    read_body,
    read_query,
)
from towpath.services.plumbing.idempotency import CommandExecutor, Execute
from towpath.services.plumbing.openapi import Document, Operation, Operations
from towpath.services.plumbing.pagination import PageQuery, page_document

EXTENSION: Final = "towpath.orders"

blueprint = Blueprint("orders", __name__)


operations = Operations("orders")

_Money = Annotated[str, Field(pattern=r"^[0-9]{1,10}\.[0-9]{2}$")]


class CustomerDocument(Document):
    """A customer."""

    customer_id: uuid.UUID
    name: str
    email: str
    active: bool
    created_at: AwareDatetime
    updated_at: AwareDatetime


class LineDocument(Document):
    """A line of an order."""

    line_no: int = Field(ge=1)
    product_id: uuid.UUID
    quantity: int = Field(ge=1)
    unit_price: _Money


class OrderSummary(Document):
    """An order with its lines, as in its events."""

    order_id: int
    customer_id: uuid.UUID
    status: OrderStatus
    total: _Money
    currency: str
    lines: list[LineDocument]
    note: str | None
    attributes: dict[str, str | int | bool | None] | None
    placed_at: AwareDatetime
    updated_at: AwareDatetime


class StepDocument(Document):
    """A step of an order's saga; ``at`` is from the clock of the reporting service."""

    step: Step
    at: AwareDatetime
    detail: str | None


class SagaDocument(Document):
    """
    The steps that other services have taken for an order so far.

    ``is_settled`` means that the order, its stock and its payment are all final.
    """

    is_settled: bool
    steps: list[StepDocument]


class OrderDocument(OrderSummary):
    """An order with its lines, its version and its saga."""

    version: int
    payment_method: str | None
    reason: str | None
    saga: SagaDocument


class CustomersDocument(Document):
    """A page of customers, newest first."""

    items: list[CustomerDocument]
    next: str | None


class OrdersDocument(Document):
    """A page of orders, newest first."""

    items: list[OrderSummary]
    next: str | None


class OrdersQuery(PageQuery):
    """The query parameters of the list of orders."""

    customer_id: uuid.UUID | None = None
    status: OrderStatus | None = None


class OrdersContext(NamedTuple):
    """The objects that the routes need; stored in the application as ``EXTENSION``."""

    sessions: sessionmaker[Session]
    commands: CommandExecutor[OrdersUnit]


@blueprint.post("/customers")
@operations.add(
    Operation(
        body=RegisterCustomer,
        response=CustomerDocument,
        status=HTTPStatus.CREATED,
        is_command=True,
    )
)
def register_customer() -> Response:
    """Register a customer."""
    command = read_body(request, RegisterCustomer)
    return _once(
        lambda unit, at: customer_document(
            handlers.register_customer(command, unit.store, at)
        ),
        HTTPStatus.CREATED,
    )


@blueprint.get("/customers/<uuid:customer_id>")
@operations.add(Operation(response=CustomerDocument))
def find_customer(customer_id: uuid.UUID) -> Response:
    """Read a customer."""
    with OrdersUnit(_context().sessions) as unit:
        state = handlers.find_customer(customer_id, unit.store)
    return json_response(HTTPStatus.OK, plain(customer_document(state)))


@blueprint.get("/customers")
@operations.add(Operation(query=PageQuery, response=CustomersDocument))
def list_customers() -> Response:
    """List customers, newest first."""
    wanted = read_query(request, PageQuery)
    with OrdersUnit(_context().sessions) as unit:
        states, cursor = unit.store.customers.page(wanted)
    items = [plain(customer_document(state)) for state in states]
    return json_response(
        HTTPStatus.OK, *page_document(request.path, wanted, items, cursor)
    )


@blueprint.post("/orders")
@operations.add(
    Operation(
        body=PlaceOrder,
        response=OrderDocument,
        status=HTTPStatus.CREATED,
        is_command=True,
    )
)
def place_order() -> Response:
    """Place an order."""
    command = read_body(request, PlaceOrder)
    return _once(
        lambda unit, at: order_view(handlers.place_order(command, unit.store, at)),
        HTTPStatus.CREATED,
    )


@blueprint.get("/orders/<bigint:order_id>")
@operations.add(Operation(response=OrderDocument, has_version=True))
def find_order(order_id: int) -> Response:
    """Read an order."""
    with OrdersUnit(_context().sessions) as unit:
        order = handlers.find_order(order_id, unit.store)
    headers = {"ETag": etag(order.state.version)}
    return json_response(HTTPStatus.OK, plain(order_view(order)), headers)


@blueprint.get("/orders")
@operations.add(Operation(query=OrdersQuery, response=OrdersDocument))
def list_orders() -> Response:
    """List orders, newest first."""
    wanted = read_query(request, OrdersQuery)
    with OrdersUnit(_context().sessions) as unit:
        states, cursor = unit.store.orders.page(
            wanted, customer_id=wanted.customer_id, status=wanted.status
        )
    items = [plain(order_document(state)) for state in states]
    return json_response(
        HTTPStatus.OK, *page_document(request.path, wanted, items, cursor)
    )


def _change_by(body: type[Input]) -> Operation:
    """Declare a command that changes an order."""
    return Operation(
        body=body,
        body_optional=True,
        response=OrderDocument,
        is_command=True,
        has_version=True,
        problems=(HTTPStatus.CONFLICT,),
    )


@blueprint.post("/orders/<bigint:order_id>/pay")
@operations.add(_change_by(PayOrder))
def pay_order(order_id: int) -> Response:
    """Pay for an order."""
    return _change(order_id, PayOrder, handlers.pay_order)


@blueprint.post("/orders/<bigint:order_id>/cancel")
@operations.add(_change_by(CancelOrder))
def cancel_order(order_id: int) -> Response:
    """Cancel an order."""
    return _change(order_id, CancelOrder, handlers.cancel_order)


@blueprint.post("/orders/<bigint:order_id>/return")
@operations.add(_change_by(ReturnOrder))
def return_order(order_id: int) -> Response:
    """Return the goods of an order."""
    return _change(order_id, ReturnOrder, handlers.return_order)


def _change(
    order_id: int,
    model: type[AnyInput],
    change: Callable[[int, AnyInput, OrdersStore, datetime, IfMatch], Order],
) -> Response:
    command = read_body(request, model, optional=True)
    expected = IfMatch.parse(request.headers.get(IF_MATCH))
    return _once(
        lambda unit, at: order_view(
            change(order_id, command, unit.store, at, expected)
        ),
    )


def _context() -> OrdersContext:
    context: OrdersContext = current_app.extensions[EXTENSION]
    return context


def _once(execute: Execute[OrdersUnit], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return _context().commands.run(request, execute, status=status, headers=_headers)


def _headers(status: int, document: Mapping[str, Any]) -> dict[str, str]:
    if status != HTTPStatus.CREATED:
        return {"ETag": etag(document["version"])}
    return {"Location": _location(document)}


def _location(document: Mapping[str, Any]) -> str:
    if "order_id" in document:
        return f"/orders/{document['order_id']}"
    return f"/customers/{document['customer_id']}"
