"""Alembic's environment: it uses the database that the blog is configured with."""

from alembic import context

from blog.database import engine

with engine().connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
