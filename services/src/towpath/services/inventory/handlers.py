"""
One function per command and per event of an order: no HTTP, no SQL.

None of them commits: the caller does, together with the idempotency key of a command or
the inbox's record of an event.
"""

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from towpath.services.inventory.domain import (
    RESERVE,
    Product,
    Reservation,
    ReservationStatus,
    lines_by_product,
)
from towpath.services.inventory.repository import InventoryRepository
from towpath.services.plumbing.http import (
    ConflictError,
    Input,
    Integer,
    NotFoundError,
    Price,
)

MAX_UNITS: Final = 1_000_000_000


class RegisterProduct(Input):
    """Register a product with the units that are on hand."""

    product_id: uuid.UUID
    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")
    unit_price: Price
    on_hand: Integer = Field(ge=0, le=MAX_UNITS)


class ReceiveUnits(Input):
    """Add received units of a product."""

    units: Integer = Field(ge=1, le=MAX_UNITS)


def register_product(
    command: RegisterProduct, inventory: InventoryRepository, at: datetime
) -> Product:
    """
    Register a product.

    Raises:
        ConflictError: Its id is taken.
    """
    product = Product(
        product_id=command.product_id,
        name=command.name,
        unit_price=command.unit_price,
        received=command.on_hand,
        on_hand=command.on_hand,
        reserved=0,
        sold=0,
        version=1,
        updated_at=at,
    )
    if not inventory.add_product(product):
        message = f"Product {command.product_id} exists already."
        raise ConflictError(message)
    return product


def receive_units(
    product_id: uuid.UUID,
    command: ReceiveUnits,
    inventory: InventoryRepository,
    at: datetime,
) -> Product:
    """
    Add units of a product.

    Raises:
        NotFoundError: There is no such product.
    """
    product = inventory.receive(product_id, command.units, at)
    if product is None:
        raise no_product(product_id)
    return product


def no_product(product_id: uuid.UUID) -> NotFoundError:
    """Return the error for a product that does not exist."""
    return NotFoundError(f"There is no product {product_id}.")


def reserve(
    order: Mapping[str, Any], inventory: InventoryRepository, at: datetime
) -> None:
    """Reserve the units of an order, unless it has a reservation already."""
    order_id = order["order_id"]
    if inventory.lock_reservation(order_id) is not None:
        return
    lines = lines_by_product(order["lines"])
    on_hand = inventory.lock_on_hand([line.product_id for line in lines])
    reservation = Reservation.decide(order_id, lines, on_hand, at)
    inventory.transfer(reservation.lines, RESERVE, at)
    inventory.add_reservation(reservation)


def release(
    order: Mapping[str, Any], inventory: InventoryRepository, at: datetime
) -> None:
    """Release the units of a cancelled order."""
    order_id = order["order_id"]
    if inventory.find_reservation(order_id) is None:
        inventory.add_reservation(Reservation.release_nothing(order_id, at))
    else:
        _move(order_id, ReservationStatus.RELEASED, inventory, at)


def sell(
    order: Mapping[str, Any], inventory: InventoryRepository, at: datetime
) -> None:
    """Count the units of a completed order as sold."""
    _move(order["order_id"], ReservationStatus.SOLD, inventory, at)


def take_back(
    order: Mapping[str, Any], inventory: InventoryRepository, at: datetime
) -> None:
    """Put the units of a returned order back on hand."""
    _move(order["order_id"], ReservationStatus.RETURNED, inventory, at)


def _move(
    order_id: int,
    status: ReservationStatus,
    inventory: InventoryRepository,
    at: datetime,
) -> None:
    reservation = inventory.lock_reservation(order_id)
    transfer = reservation.move(status, at) if reservation is not None else None
    if reservation is None or transfer is None:
        return
    inventory.lock_on_hand([line.product_id for line in reservation.lines])
    inventory.transfer(reservation.lines, transfer, at)
    inventory.save_reservation(reservation)


Handler = Callable[[Mapping[str, Any], InventoryRepository, datetime], None]

# The events of orders that concern the stock.
ORDER_EVENTS: Final[Mapping[str, Handler]] = {
    "OrderPlaced": reserve,
    "OrderCancelled": release,
    "OrderCompleted": sell,
    "OrderReturned": take_back,
}
