"""Fixtures that provide the platform of a rehearsal."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.disaster import Disaster
from towpath.deploy.local.stack import LazyStack, Stack


@pytest.fixture
def make_disaster(stack, unique, tmp_path_factory) -> Iterator[Callable[..., Disaster]]:
    """
    Provide a function that makes a platform.

    ``programs`` selects a different Postgres release; ``shared`` is the stack whose
    Kafka and cache the platform uses, by default those of the test worker.
    """
    made: list[Disaster] = []
    servers: list[Stack] = []

    def make(programs: Path | None = None, shared: LazyStack | None = None) -> Disaster:
        used = shared or stack
        used.up("kafka", "redis")
        servers.append(Stack(tmp_path_factory.mktemp("own"), programs))
        folder = tmp_path_factory.mktemp("platform")
        made.append(Disaster(used, servers[-1], unique, folder))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for server in servers:
        server.purge()


@pytest.fixture
def disaster(make_disaster) -> Disaster:
    """Provide a platform with its own Postgres server; nothing is prepared yet."""
    return make_disaster()
