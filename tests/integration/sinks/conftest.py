"""Fixtures for the tests of single sinks."""

import socket
from collections.abc import Iterator

import pytest
import redis

from support.spark_cluster import SparkCluster
from support.warehouse_tables import Lake


@pytest.fixture
def unused_port() -> int:
    """Find a port on which no process is listening."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def client(stack) -> Iterator[redis.Redis]:
    """Provide a plain client for the cache's server."""
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as made:
        yield made


@pytest.fixture
def warehouse(lake) -> Iterator[Lake]:
    """Provide a warehouse table and an event log for the test."""
    made = Lake(*lake)
    yield made
    made.reader.close()


@pytest.fixture
def cluster(tmp_path):
    """Provide a Spark cluster with a master and two workers."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = SparkCluster(folder)
    yield made
    made.close()
