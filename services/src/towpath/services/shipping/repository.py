"""
Shipments in their table.

Writing a shipment also tracks it: its events are recorded in the same transaction. The
table is only declared here; the migrations create it.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

from towpath.outbox.sqlalchemy import track
from towpath.services.shipping.domain import Shipment, ShipmentStatus

SCHEMA: Final = "shipping"
metadata = MetaData(schema=SCHEMA)

shipments = Table(
    "shipments",
    metadata,
    Column("order_id", BigInteger, primary_key=True, autoincrement=False),
    Column("customer_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("tracking_number", Text),
    Column("reason", Text),
    Column("version", Integer, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False),
)

_FIND: Final = select(shipments).where(shipments.c.order_id == bindparam("of_order"))
_LOCK: Final = _FIND.with_for_update()
_ADD: Final = insert(shipments)
_SAVE: Final = update(shipments).where(shipments.c.order_id == bindparam("of_order"))


class ShipmentRepository:
    """The shipments of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, shipment: Shipment) -> None:
        """Write a new shipment."""
        track(self._session, shipment)
        self._session.execute(_ADD, _row(shipment))

    def save(self, shipment: Shipment) -> None:
        """Write the changes to a shipment that was locked."""
        track(self._session, shipment)
        of_order = {"of_order": shipment.order_id}
        self._session.execute(_SAVE, of_order | _row(shipment))

    def lock(self, order_id: int) -> Shipment | None:
        """Lock the row of an order's shipment, and read it."""
        return self._read(_LOCK, order_id)

    def find(self, order_id: int) -> Shipment | None:
        """Read an order's shipment."""
        return self._read(_FIND, order_id)

    def _read(self, query: Select[Any], order_id: int) -> Shipment | None:
        row = self._session.execute(query, {"of_order": order_id}).one_or_none()
        if row is None:
            return None
        return Shipment(
            order_id=row.order_id,
            customer_id=row.customer_id,
            status=ShipmentStatus(row.status),
            tracking_number=row.tracking_number,
            reason=row.reason,
            version=row.version,
            updated_at=row.updated_at,
        )


def _row(shipment: Shipment) -> dict[str, object]:
    return {
        "order_id": shipment.order_id,
        "customer_id": shipment.customer_id,
        "status": shipment.status.value,
        "tracking_number": shipment.tracking_number,
        "reason": shipment.reason,
        "version": shipment.version,
        "updated_at": shipment.updated_at,
    }
