"""Run alembic in the connection and transaction of the caller."""

from alembic import context

from towpath.services.orders.repository import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
)
context.run_migrations()
