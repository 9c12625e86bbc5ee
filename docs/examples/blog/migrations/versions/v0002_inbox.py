"""The tables of the consumer's inbox."""

from alembic import op

from towpath.inbox import create_statements

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    for statement in create_statements():
        op.execute(statement)


def downgrade() -> None:
    """Drop the tables."""
    op.execute("drop table towpath.inbox, towpath.inbox_parked")
