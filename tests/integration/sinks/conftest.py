"""Fixtures of the tests of single sinks."""

import socket
from collections.abc import Iterator

import pytest
import redis

from support.spark_cluster import SparkCluster
from support.warehouse_tables import Lake


@pytest.fixture
def unused_port() -> int:
    """Find a port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def client(stack) -> Iterator[redis.Redis]:
    """Provide a plain client of the cache's server."""
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as lent:
        yield lent


@pytest.fixture
def warehouse(lake) -> Iterator[Lake]:
    """Provide a table and an event log of the test's own."""
    lent = Lake(*lake)
    yield lent
    lent.reader.close()


@pytest.fixture
def cluster(tmp_path):
    """Provide a cluster of a master and two workers."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    lent = SparkCluster(folder)
    yield lent
    lent.close()
