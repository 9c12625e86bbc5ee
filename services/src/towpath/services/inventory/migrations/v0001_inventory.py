"""Products, reservations, idempotency keys, and the inbox."""

from alembic import op

from towpath.inbox import create_statements
from towpath.services.plumbing.idempotency import idempotency_statements

revision = "0001"
down_revision = None

_TABLES = """
create table inventory.products (
    id uuid constraint products_pkey primary key,
    name text not null,
    unit_price numeric(12, 2) not null,
    received bigint not null,
    on_hand bigint not null,
    reserved bigint not null default 0,
    sold bigint not null default 0,
    version integer not null default 1,
    updated_at timestamptz not null default now(),
    constraint units_exist check (on_hand >= 0 and reserved >= 0 and sold >= 0),
    constraint units_add_up check (on_hand + reserved + sold = received)
);

create table inventory.reservations (
    order_id bigint constraint reservations_pkey primary key,
    status text not null,
    reason text,
    updated_at timestamptz not null
);

create table inventory.reservation_lines (
    order_id bigint not null constraint reservation_lines_order_id_fkey
        references inventory.reservations (order_id),
    product_id uuid not null constraint reservation_lines_product_id_fkey
        references inventory.products (id),
    quantity integer not null,
    constraint reservation_lines_pkey primary key (order_id, product_id)
);
"""


def upgrade() -> None:
    """Create the first tables, and those of the inbox."""
    op.execute(_TABLES)
    op.execute(idempotency_statements("inventory"))
    for statement in create_statements("inventory"):
        op.execute(statement)


def downgrade() -> None:
    """Drop the first tables and those of the inbox, with their rows."""
    op.execute(
        "drop table inventory.inbox_parked, inventory.inbox, inventory.idempotency,"
        " inventory.reservation_lines, inventory.reservations, inventory.products"
    )
