"""Removing a sink's data from Redis: rows, tombstones, floors, witnesses."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from towpath.settings import Sink
from towpath.sinks.targets.cache.client import SCANNED_AT_ONCE, Servers, translated
from towpath.sinks.targets.cache.schema import (
    floors_key,
    scan_pattern,
    witness_keys,
)


def erase(sink: Sink, prefix: str) -> None:
    """
    Delete a sink's rows; safe to repeat. The sink must not run meanwhile.

    Raises:
        UnavailableError: The cache does not answer: repeat it.
    """
    servers = Servers(sink.url)
    try:
        with translated():
            servers.discover()
            for route in sink.route:
                pattern = scan_pattern(prefix, route.name)
                for client in servers.all:
                    places = client.scan_iter(pattern, count=SCANNED_AT_ONCE)
                    _unlink(client, places)
                floors = floors_key(prefix)
                servers.client_of(floors).hdel(floors, route.name)
            is_cluster = servers.is_cluster
            for place in witness_keys(prefix, sink.name, is_cluster=is_cluster):
                servers.client_of(place).unlink(place)
    finally:
        servers.close()


def _unlink(client: Any, places: Iterable[str]) -> None:  # noqa: ANN401 - redis-py's
    remaining = iter(places)
    while batch := list(islice(remaining, SCANNED_AT_ONCE)):
        # One command per key, because a cluster forbids keys of different slots in
        # one; all are sent together.
        pipeline = client.pipeline(transaction=False)
        for place in batch:
            pipeline.unlink(place)
        pipeline.execute()
