"""Shipments, and the inbox."""

from alembic import op

from towpath.inbox import create_statements

revision = "0001"
down_revision = None

_TABLES = """
create table shipping.shipments (
    order_id bigint constraint shipments_pkey primary key,
    customer_id text not null,
    status text not null,
    tracking_number text,
    reason text,
    version integer not null,
    updated_at timestamptz not null
);
"""


def upgrade() -> None:
    """Create the first tables, and those of the inbox."""
    op.execute(_TABLES)
    for statement in create_statements("shipping"):
        op.execute(statement)


def downgrade() -> None:
    """Drop the first tables and those of the inbox, with their rows."""
    op.execute("drop table shipping.inbox_parked, shipping.inbox, shipping.shipments")
