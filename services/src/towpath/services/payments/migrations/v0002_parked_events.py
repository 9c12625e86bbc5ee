"""
The inbox identifies a parked event by its id.

The key was the place of the record in its topic, which a topic that was deleted and
created again gives to another event.
"""

from alembic import op

from towpath.inbox import create_statements

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Bring the tables of the inbox up to date."""
    for statement in create_statements("payments"):
        op.execute(statement)


def downgrade() -> None:
    """Leave the key: the version before works with either."""
