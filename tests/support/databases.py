"""Test databases on the server of the worker's stack."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.waiting import CLOCK
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import LazyStack
from towpath.loadtests.bench.broker import Broker


@contextmanager
def fresh_database(stack: LazyStack, name: str) -> Iterator[str]:
    """
    Create a database for the block; yield its address.

    Afterwards, the topics whose names contain its name are deleted too: with a thousand
    topics, their metrics alone are a sixth of a broker's work.
    """
    server = stack.dsn("postgres")
    postgres.create_database(server, name)
    try:
        yield stack.dsn(name)
    finally:
        postgres.drop_database(server, name)
        if stack.addresses().kafka_port:
            Broker(stack.kafka, CLOCK).delete_topics(name)
