"""Databases of tests, on the server of the worker's stack."""

from collections.abc import Iterator
from contextlib import contextmanager

from support import topics
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import LazyStack


@contextmanager
def fresh_database(stack: LazyStack, name: str) -> Iterator[str]:
    """
    Create a database for the block; return its address.

    Afterwards, the topics that carry its name are deleted too: a broker with a thousand
    topics spends most of its time on their metrics and metadata.
    """
    server = stack.dsn("postgres")
    postgres.create_database(server, name)
    yield stack.dsn(name)
    postgres.drop_database(server, name)
    if stack.stack.addresses().kafka_port:
        topics.delete(stack.kafka, name)
