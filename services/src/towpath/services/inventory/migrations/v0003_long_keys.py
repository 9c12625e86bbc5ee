"""
The inbox finds parked events by the start of their key, and shortens long ids.

An index on the whole key refused keys longer than 2.7 kB, so an event with such a key
could not be parked. Ids longer than 2,000 bytes that are stored whole are converted.
"""

from alembic import op

from towpath.inbox import create_statements

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Bring the tables of the inbox up to date."""
    for statement in create_statements("inventory"):
        op.execute(statement)


def downgrade() -> None:
    """
    Keep the new index and ids.

    The previous version finds the same events without the index. It would treat an
    event with a shortened id as new; no event of the shop has such a long id.
    """
