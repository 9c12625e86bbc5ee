"""Alembic's environment: the database of the blog's own configuration."""

from alembic import context

from blog.database import engine

with engine().connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
