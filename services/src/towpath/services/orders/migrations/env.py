"""Run alembic in the connection and transaction that the caller already holds."""

from alembic import context

from towpath.services.orders.repository import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
)
context.run_migrations()
