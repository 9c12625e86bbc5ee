"""
The inbox identifies a parked event by its id.

The key was the place of the record in its topic. A topic that is deleted and created
again gives the same place to another event.
"""

from alembic import op

from towpath.inbox import create_statements

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Bring the tables of the inbox up to date."""
    for statement in create_statements("inventory"):
        op.execute(statement)


def downgrade() -> None:
    """Keep the new key: the previous version works with either."""
