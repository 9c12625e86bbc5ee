"""
Indexes on the creation time of idempotency keys and of customers.

The first serves the deletion of expired keys, the second the listing of customers.
"""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the indexes."""
    op.execute(
        "create index ix_shop_idempotency_created_at on shop.idempotency (created_at);"
        " create index ix_shop_customers_created_at_id"
        " on shop.customers (created_at, id)"
    )


def downgrade() -> None:
    """Drop the indexes."""
    op.execute(
        "drop index shop.ix_shop_idempotency_created_at,"
        " shop.ix_shop_customers_created_at_id"
    )
