"""The service's tables as SQLAlchemy sees them; the migrations make them."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    Uuid,
    func,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from towpath.services.orders.domain import OrderStatus

SCHEMA = "shop"
metadata = MetaData(schema=SCHEMA)

_instant = DateTime(timezone=True)
_amount = Numeric(12, 2)
_status = Enum(
    OrderStatus,
    name="order_status",
    schema=SCHEMA,
    values_callable=lambda statuses: [status.value for status in statuses],
)

customers = Table(
    "customers",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False),
    Column("active", Boolean, nullable=False, server_default=true()),
    Column("created_at", _instant, nullable=False, server_default=func.now()),
    Column("updated_at", _instant, nullable=False, server_default=func.now()),
)

orders = Table(
    "orders",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("customer_id", Uuid, ForeignKey(customers.c.id), nullable=False, index=True),
    Column("status", _status, nullable=False),
    Column("total", _amount, nullable=False),
    Column("currency", Text, nullable=False),
    Column("attributes", JSONB(none_as_null=True)),
    Column("note", Text),
    Column("placed_at", _instant, nullable=False, server_default=func.now()),
    Column("updated_at", _instant, nullable=False, server_default=func.now()),
    Column("cancel_reason", Text),
)

order_lines = Table(
    "order_lines",
    metadata,
    Column("order_id", BigInteger, ForeignKey(orders.c.id), primary_key=True),
    Column("line_no", Integer, primary_key=True),
    Column("product_id", Uuid, nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("unit_price", _amount, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("key", Text, primary_key=True),
    Column("request_hash", Text, nullable=False),
    Column("status", Integer),
    Column("response", JSON(none_as_null=True)),
    Column("created_at", _instant, nullable=False, server_default=func.now()),
)
