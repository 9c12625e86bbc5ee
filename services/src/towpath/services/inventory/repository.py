"""
Products and reservations in their tables.

Writing a reservation also tracks it: its events are recorded in the same
transaction. Products are locked in the order of their ids, so that two orders with the
same products cannot deadlock. The migrations create the tables; their constraints keep
every number of units at zero or above, and the sum exact.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    Numeric,
    Row,
    Select,
    Table,
    Text,
    Uuid,
    bindparam,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from towpath.outbox.sqlalchemy import track
from towpath.schemas.clock import TICK
from towpath.services.inventory.domain import (
    Product,
    Reservation,
    ReservationStatus,
    ReservedLine,
    Transfer,
)
from towpath.services.plumbing.database import SEEDED_LINES, translated
from towpath.services.plumbing.idempotency import idempotency_table

SCHEMA: Final = "inventory"
metadata = MetaData(schema=SCHEMA)

_instant = DateTime(timezone=True)

products = Table(
    "products",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("unit_price", Numeric(12, 2), nullable=False),
    Column("received", BigInteger, nullable=False),
    Column("on_hand", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False, server_default="0"),
    Column("sold", BigInteger, nullable=False, server_default="0"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("updated_at", _instant, nullable=False, server_default=func.now()),
    CheckConstraint("on_hand >= 0 and reserved >= 0 and sold >= 0", "units_exist"),
    CheckConstraint("on_hand + reserved + sold = received", "units_add_up"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("order_id", BigInteger, primary_key=True, autoincrement=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("updated_at", _instant, nullable=False),
)

reservation_lines = Table(
    "reservation_lines",
    metadata,
    Column(
        "order_id", BigInteger, ForeignKey(reservations.c.order_id), primary_key=True
    ),
    Column("product_id", Uuid, ForeignKey(products.c.id), primary_key=True),
    Column("quantity", Integer, nullable=False),
)


idempotency = idempotency_table(metadata)

_LOCK_PRODUCTS: Final = (
    select(products.c.id, products.c.on_hand)
    .where(products.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(products.c.id)
    .with_for_update()
)
_UNITS: Final = bindparam("units", type_=BigInteger)
# Like ``time_after``, for rows that are changed without being read first.
_CHANGED_AT: Final = func.greatest(
    bindparam("changed_at", type_=_instant), products.c.updated_at + TICK
)
_MOVE: Final = (
    update(products)
    .where(products.c.id == bindparam("product"))
    .values(
        on_hand=products.c.on_hand + _UNITS * bindparam("to_hand"),
        reserved=products.c.reserved + _UNITS * bindparam("to_reserved"),
        sold=products.c.sold + _UNITS * bindparam("to_sold"),
        version=products.c.version + 1,
        updated_at=_CHANGED_AT,
    )
)
_SAME_ORDER: Final = reservations.c.order_id == bindparam("of_order")
_FIND_RESERVATION: Final = select(reservations).where(_SAME_ORDER)
_LOCK_RESERVATION: Final = _FIND_RESERVATION.with_for_update()
_ADD_RESERVATION: Final = insert(reservations)
_SAVE_RESERVATION: Final = update(reservations).where(_SAME_ORDER)
_FIND_LINES: Final = (
    select(reservation_lines.c.product_id, reservation_lines.c.quantity)
    .where(reservation_lines.c.order_id == bindparam("of_order"))
    .order_by(reservation_lines.c.product_id)
)
_ADD_LINES: Final = insert(reservation_lines)


class InventoryRepository:
    """The products and reservations of one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # Products ----------------------------------------------------------------

    def find_product(self, product_id: uuid.UUID) -> Product | None:
        """Read a product."""
        return self._product(select(products).where(products.c.id == product_id))

    def list_products(
        self, limit: int, after: uuid.UUID | None = None
    ) -> Sequence[Product]:
        """Return the products after ``after``, in the order of their ids."""
        query = select(products).order_by(products.c.id).limit(limit)
        if after is not None:
            query = query.where(products.c.id > after)
        return [_product(row) for row in self._session.execute(query)]

    def lock_on_hand(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
        """Lock products, and return how many units of each are on hand."""
        found = self._session.execute(_LOCK_PRODUCTS, {"ids": sorted(ids)})
        return {row.id: row.on_hand for row in found}

    def transfer(
        self, lines: Sequence[ReservedLine], transfer: Transfer, at: datetime
    ) -> None:
        """Move the units of a reservation's products, which the caller has locked."""
        if not lines:
            return
        effect = {
            "to_hand": transfer.on_hand,
            "to_reserved": transfer.reserved,
            "to_sold": transfer.sold,
            "changed_at": at,
        }
        rows = [
            {"product": line.product_id, "units": line.quantity, **effect}
            for line in lines
        ]
        self._session.connection().execute(_MOVE, rows)

    def receive(
        self, product_id: uuid.UUID, units: int, at: datetime
    ) -> Product | None:
        """Add received units to a product; return None if it does not exist."""
        received = (
            update(products)
            .where(products.c.id == product_id)
            .values(
                received=products.c.received + units,
                on_hand=products.c.on_hand + units,
                version=products.c.version + 1,
                updated_at=_CHANGED_AT,
            )
            .returning(products)
        )
        row = self._session.execute(received, {"changed_at": at}).one_or_none()
        return None if row is None else _product(row)

    def add_product(self, product: Product) -> bool:
        """Write a new product; return False if its id is taken."""
        row = product._asdict()
        row["id"] = row.pop("product_id")
        new = upsert(products).values(row).on_conflict_do_nothing()
        return self._session.execute(new.returning(products.c.id)).first() is not None

    # Reservations ------------------------------------------------------------

    def lock_reservation(self, order_id: int) -> Reservation | None:
        """Lock the row of an order's reservation, and read the reservation."""
        return self._reservation(_LOCK_RESERVATION, order_id)

    def find_reservation(self, order_id: int) -> Reservation | None:
        """Read an order's reservation."""
        return self._reservation(_FIND_RESERVATION, order_id)

    def add_reservation(self, reservation: Reservation) -> None:
        """Write a new reservation with its lines."""
        track(self._session, reservation)
        self._session.execute(_ADD_RESERVATION, _reservation_row(reservation))
        lines = [
            {"order_id": reservation.order_id, **line._asdict()}
            for line in reservation.lines
        ]
        if lines:
            self._session.execute(_ADD_LINES, lines)

    def save_reservation(self, reservation: Reservation) -> None:
        """Write the changes to a reservation that was locked."""
        track(self._session, reservation)
        of_order = {"of_order": reservation.order_id}
        self._session.execute(
            _SAVE_RESERVATION, of_order | _reservation_row(reservation)
        )

    def _product(self, query: Select[Any]) -> Product | None:
        row = self._session.execute(query).one_or_none()
        return None if row is None else _product(row)

    def _reservation(self, query: Select[Any], order_id: int) -> Reservation | None:
        of_order = {"of_order": order_id}
        row = self._session.execute(query, of_order).one_or_none()
        if row is None:
            return None
        lines = self._session.execute(_FIND_LINES, of_order)
        return Reservation(
            order_id=order_id,
            status=ReservationStatus(row.status),
            lines=tuple(ReservedLine(*line) for line in lines),
            reason=row.reason,
            updated_at=row.updated_at,
        )


def _product(row: Row[Any]) -> Product:
    return Product(
        product_id=row.id,
        name=row.name,
        unit_price=row.unit_price,
        received=row.received,
        on_hand=row.on_hand,
        reserved=row.reserved,
        sold=row.sold,
        version=row.version,
        updated_at=row.updated_at,
    )


def _reservation_row(reservation: Reservation) -> dict[str, object]:
    return {
        "order_id": reservation.order_id,
        "status": reservation.status.value,
        "reason": reservation.reason,
        "updated_at": reservation.updated_at,
    }


# The products that the seeded orders and the load test use, with enough units for
# both; every fiftieth is scarce, so that some orders are refused.
_SEED: Final = text("""
insert into inventory.products (id, name, unit_price, received, on_hand)
select md5('product ' || n)::uuid,
       'Product ' || n,
       (100 + n * 37 % 20000)::numeric / 100,
       case when n % 50 = 0 then :scarce else :units end,
       case when n % 50 = 0 then :scarce else :units end
  from generate_series(0, :products - 1) as n
    on conflict (id) do nothing
""")


def seed_products(engine: Engine, *, products: int, units: int, scarce: int) -> None:
    """
    Insert missing products.

    Args:
        engine: The service's database, with its tables.
        products: The number of products.
        units: The units of each product that are on hand.
        scarce: The units of every fiftieth product.

    Raises:
        UnavailableError: The database cannot be reached, or has no tables yet.
    """
    values = {"products": products, "units": units, "scarce": scarce}
    with translated(), engine.begin() as connection:
        connection.execute(text("set local statement_timeout = 0"))
        connection.execute(_SEED, values)


# The units of the seeded orders are received and reserved in one step, so no order is
# refused and the units on hand stay as they are.
_SEED_RESERVATIONS: Final = text(f"""
with {SEEDED_LINES}, reserved as (
    insert into inventory.reservations (order_id, status, updated_at)
    select :first_order + n - 1, 'reserved', now()
      from generate_series(1, :orders) as n
        on conflict (order_id) do nothing
    returning order_id
), held as (
    insert into inventory.reservation_lines (order_id, product_id, quantity)
    select order_id, product_id, sum(quantity)
      from seeded_lines join reserved on order_id = :first_order + n - 1
     group by order_id, product_id
    returning product_id, quantity
), added as (
    select product_id, sum(quantity) as units
      from held
     group by product_id
)
update inventory.products
   set received = received + units, reserved = reserved + units
  from added
 where id = product_id
""")  # noqa: S608 - a constant


def seed_reservations(
    engine: Engine, *, orders: int, first_order: int, seed: int
) -> None:
    """
    Reserve the stock of orders that the orders service has seeded.

    Args:
        engine: The service's database, with its tables.
        orders: The number of orders; those with a reservation are left unchanged.
        first_order: The number of the first order.
        seed: The seed of the orders.

    Raises:
        UnavailableError: The database cannot be reached, or has no tables yet.
    """
    values = {"orders": orders, "first_order": first_order, "seed": seed}
    with translated(), engine.begin() as connection:
        connection.execute(text("set local statement_timeout = 0"))
        connection.execute(_SEED_RESERVATIONS, values)


def has_reservations(engine: Engine) -> bool:
    """Return whether there are any reservations; the service's tables must exist."""
    query = text("select exists (select from inventory.reservations)")
    with translated(), engine.connect() as connection:
        return bool(connection.scalar(query))
