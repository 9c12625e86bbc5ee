"""Kafka records as an Arrow table, and routes that read them."""

import pyarrow as pa

from towpath.settings import Route, Sink, SinkKind
from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.changes.routing import Routes


def cache_routes(topic, route):
    """Make the routes of a cache that reads one topic."""
    route = Route(topic=topic, name=route)
    kind, url = SinkKind.CACHE, "redis://unused"
    return Routes(Sink(name="cache", kind=kind, url=url, route=(route,)))


def table_of(records):
    """Return records as a table, in the given order."""
    rows = [
        {
            **record.origin._asdict(),
            "key": record.key,
            "value": record.value,
            "headers": [{"key": n, "value": v} for n, v in record.headers.items()],
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, RECORDS)
