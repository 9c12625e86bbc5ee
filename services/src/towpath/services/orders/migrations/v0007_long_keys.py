"""
The inbox finds parked events by the start of their key.

An index of the whole key refused keys above 2.7 kB, so such an event could not be
parked.
"""

from alembic import op

from towpath.inbox import create_statements

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Bring the tables of the inbox up to date."""
    for statement in create_statements("shop"):
        op.execute(statement)


def downgrade() -> None:
    """Keep the new index: the previous version finds the same events without it."""
