"""The HTTP protocol of the service: ``GET /shipments/{order_id}``, 200 or 404."""

import dataclasses
from http import HTTPStatus
from typing import Any, Final

from flask import Blueprint, Response, current_app
from pydantic import AwareDatetime
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox import plain
from towpath.services.plumbing.database import UnitOfWork
from towpath.services.plumbing.http import NotFoundError, json_answer
from towpath.services.plumbing.openapi import Document, Operation, Operations
from towpath.services.shipping.domain import ShipmentStatus
from towpath.services.shipping.repository import ShipmentRepository

EXTENSION: Final = "towpath.shipping"

blueprint = Blueprint("shipping", __name__)
operations = Operations("shipping")


class ShipmentDocument(Document):
    """The shipment of an order."""

    order_id: int
    customer_id: str
    status: ShipmentStatus
    tracking_number: str | None
    reason: str | None
    version: int
    updated_at: AwareDatetime


@blueprint.get("/shipments/<bigint:order_id>")
@operations.add(Operation(answer=ShipmentDocument))
def find_shipment(order_id: int) -> Response:
    """Read the shipment of an order."""
    sessions: sessionmaker[Session] = current_app.extensions[EXTENSION]
    with UnitOfWork(sessions) as unit:
        shipment = ShipmentRepository(unit.session).find(order_id)
    if shipment is None:
        message = f"There is no shipment of order {order_id}."
        raise NotFoundError(message)
    document: dict[str, Any] = dataclasses.asdict(shipment)
    del document["events"]
    return json_answer(HTTPStatus.OK, plain(document))
