"""Databases of tests, on the server of the worker's stack."""

from collections.abc import Iterator
from contextlib import contextmanager

from towpath.deploy.local import postgres
from towpath.deploy.local.stack import LazyStack


@contextmanager
def fresh_database(stack: LazyStack, name: str) -> Iterator[str]:
    """Create a database for the block; return its address."""
    server = stack.dsn("postgres")
    postgres.create_database(server, name)
    yield stack.dsn(name)
    postgres.drop_database(server, name)
