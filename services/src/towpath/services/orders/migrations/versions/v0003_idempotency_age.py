"""An index on the age of idempotency keys, by which expired ones are deleted."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the index."""
    op.execute(
        "create index ix_shop_idempotency_created_at on shop.idempotency (created_at)"
    )


def downgrade() -> None:
    """Drop the index."""
    op.execute("drop index shop.ix_shop_idempotency_created_at")
