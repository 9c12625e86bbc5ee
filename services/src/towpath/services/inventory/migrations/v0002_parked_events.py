"""
The inbox identifies a parked event by its id.

The key used to be the record's topic, partition and offset, which a recreated topic
reuses for a different event.
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
    """Keep the key: the previous version works with either key."""
