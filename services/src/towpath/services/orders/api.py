"""
The HTTP protocol of the service: routes, input and output; the handlers have the rules.

=========================  =======================  ==================
route                      body                     answers
=========================  =======================  ==================
POST /customers            RegisterCustomer         201, 422
GET  /customers/{id}       -                        200, 404
POST /orders               PlaceOrder               201, 422
GET  /orders/{id}          -                        200, 404
POST /orders/{id}/pay      PayOrder, or none        200, 404, 409
POST /orders/{id}/cancel   CancelOrder, or none     200, 404, 409
POST /orders/{id}/return   ReturnOrder, or none     200, 404, 409
=========================  =======================  ==================

Every POST takes an ``Idempotency-Key`` and a ``traceparent``, and answers with the
header ``Towpath-Lsn``: once a sink has applied everything up to it, the write can be
read there (see ``plumbing.http``). Other answers, for every route: 400, 413, 415 for a
body that cannot be read, 503 when the database is unavailable.
"""

import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from flask import Blueprint, Response, current_app, request
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
from towpath.services.orders.events import customer_document, order_view
from towpath.services.orders.repository import OrdersUnit
from towpath.services.plumbing.http import json_answer, read_body
from towpath.services.plumbing.idempotency import CommandExecutor, Execute

EXTENSION: Final = "towpath.orders"

blueprint = Blueprint("orders", __name__)


class RouteContext(NamedTuple):
    """The services that the routes need; stored in the application as ``EXTENSION``."""

    sessions: sessionmaker[Session]
    commands: CommandExecutor[OrdersUnit]


@blueprint.post("/customers")
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
def find_customer(customer_id: uuid.UUID) -> Response:
    """Read a customer."""
    with OrdersUnit(_context().sessions) as unit:
        state = handlers.find_customer(customer_id, unit.store)
    return json_answer(HTTPStatus.OK, plain(customer_document(state)))


@blueprint.post("/orders")
def place_order() -> Response:
    """Place an order."""
    command = read_body(request, PlaceOrder)
    return _once(
        lambda unit, at: order_view(handlers.place_order(command, unit.store, at)),
        HTTPStatus.CREATED,
    )


@blueprint.get("/orders/<bigint:order_id>")
def find_order(order_id: int) -> Response:
    """Read an order."""
    with OrdersUnit(_context().sessions) as unit:
        order = handlers.find_order(order_id, unit.store)
    return json_answer(HTTPStatus.OK, plain(order_view(order)))


@blueprint.post("/orders/<bigint:order_id>/pay")
def pay_order(order_id: int) -> Response:
    """Pay an order."""
    command = read_body(request, PayOrder, optional=True)
    return _once(
        lambda unit, at: order_view(
            handlers.pay_order(order_id, command, unit.store, at)
        ),
    )


@blueprint.post("/orders/<bigint:order_id>/cancel")
def cancel_order(order_id: int) -> Response:
    """Cancel an order."""
    command = read_body(request, CancelOrder, optional=True)
    return _once(
        lambda unit, at: order_view(
            handlers.cancel_order(order_id, command, unit.store, at)
        ),
    )


@blueprint.post("/orders/<bigint:order_id>/return")
def return_order(order_id: int) -> Response:
    """Return the goods of an order."""
    command = read_body(request, ReturnOrder, optional=True)
    return _once(
        lambda unit, at: order_view(
            handlers.return_order(order_id, command, unit.store, at)
        ),
    )


def _context() -> RouteContext:
    context: RouteContext = current_app.extensions[EXTENSION]
    return context


def _once(execute: Execute[OrdersUnit], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return _context().commands.run(request, execute, status=status, headers=_headers)


def _headers(status: int, document: Mapping[str, Any]) -> dict[str, str]:
    if status != HTTPStatus.CREATED:
        return {}
    return {"Location": _location(document)}


def _location(document: Mapping[str, Any]) -> str:
    if "order_id" in document:
        return f"/orders/{document['order_id']}"
    return f"/customers/{document['customer_id']}"
