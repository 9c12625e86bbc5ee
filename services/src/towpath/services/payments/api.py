"""The HTTP protocol of the service: ``GET /payments/{order_id}``, 200 or 404."""

import dataclasses
from http import HTTPStatus
from typing import Any, Final

from flask import Blueprint, Response, current_app
from pydantic import AwareDatetime
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox import plain
from towpath.services.payments.domain import PaymentStatus
from towpath.services.payments.repository import PaymentRepository
from towpath.services.plumbing.database import UnitOfWork
from towpath.services.plumbing.http import NotFoundError, json_answer
from towpath.services.plumbing.openapi import Document, Operation, Operations

EXTENSION: Final = "towpath.payments"

blueprint = Blueprint("payments", __name__)
operations = Operations("payments")


class PaymentDocument(Document):
    """The payment of an order; ``amount`` is decimal text."""

    order_id: int
    amount: str
    currency: str
    method: str
    status: PaymentStatus
    reason: str | None
    version: int
    updated_at: AwareDatetime


@blueprint.get("/payments/<bigint:order_id>")
@operations.add(Operation(answer=PaymentDocument))
def find_payment(order_id: int) -> Response:
    """Read the payment of an order."""
    sessions: sessionmaker[Session] = current_app.extensions[EXTENSION]
    with UnitOfWork(sessions) as unit:
        payment = PaymentRepository(unit.session).find(order_id)
    if payment is None:
        message = f"There is no payment of order {order_id}."
        raise NotFoundError(message)
    document: dict[str, Any] = dataclasses.asdict(payment)
    del document["events"]
    return json_answer(HTTPStatus.OK, plain(document))
