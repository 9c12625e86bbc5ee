"""Takes away what a sink wrote into Redis: rows, tombstones, floors, witnesses."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from towpath.settings import Sink
from towpath.sinks.targets.cache.client import SCANNED_AT_ONCE, Servers, translated
from towpath.sinks.targets.cache.schema import (
    floors_place,
    scan_pattern,
    witness_places,
)


def erase(sink: Sink, prefix: str) -> None:
    """
    Take a sink's rows away; safe to repeat. Nobody may write meanwhile.

    Raises:
        UnavailableError: The cache does not answer: do it again.
    """
    servers = Servers(sink.url)
    try:
        with translated():
            servers.look()
            for route in sink.route:
                pattern = scan_pattern(prefix, route.name)
                for client in servers.all:
                    places = client.scan_iter(pattern, count=SCANNED_AT_ONCE)
                    _unlink(client, places)
                floors = floors_place(prefix)
                servers.of(floors).hdel(floors, route.name)
            is_cluster = servers.is_cluster
            for place in witness_places(prefix, sink.name, is_cluster=is_cluster):
                servers.of(place).unlink(place)
    finally:
        servers.close()


def _unlink(client: Any, places: Iterable[str]) -> None:  # noqa: ANN401 - redis-py's
    waiting = iter(places)
    while some := list(islice(waiting, SCANNED_AT_ONCE)):
        # One by one, as a cluster keeps them apart; sent at once all the same.
        pipeline = client.pipeline(transaction=False)
        for place in some:
            pipeline.unlink(place)
        pipeline.execute()
