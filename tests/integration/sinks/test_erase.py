"""A sink's rows are erased completely, and no other data with them."""

import uuid
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from support.warehouse_tables import write
from towpath.settings import Route, SearchOptions, Sink
from towpath.sinks.targets.cache.client import connect
from towpath.sinks.targets.cache.schema import (
    floors_key,
    route_key_prefix,
    witness_keys,
)
from towpath.sinks.targets.cache.upkeep import erase as erase_cache
from towpath.sinks.targets.search.schema import index_body, with_sink_fields
from towpath.sinks.targets.search.upkeep import erase as erase_search
from towpath.sinks.targets.warehouse.upkeep import erase as erase_warehouse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def name():
    """Return a name that no other test uses."""
    return f"gone-{uuid.uuid4().hex[:8]}"


def sink(kind, url, name):
    """Describe a sink with one route."""
    route = Route(topic="towpath.shop.orders", name=name)
    return Sink(name="it", kind=kind, url=url, route=(route,))


def test_a_caches_rows_and_floors_are_erased(stack, name):
    """Rows of a route whose name only begins with the same text are kept."""
    stack.up("redis")
    client = connect(stack.redis_url)
    keys = [f"{route_key_prefix(name, name)}{key}" for key in range(2500)]
    other = f"{route_key_prefix(name, f'{name}2')}1"
    for key in (*keys, other):
        client.hset(key, "_position", "x")
    client.hset(witness_keys(name, "it", is_cluster=False)[0], "id", "x")
    client.hset(floors_key(name), mapping={name: "1", f"{name}2": "2"})
    erase_cache(sink("cache", stack.redis_url, name), name)
    erase_cache(sink("cache", stack.redis_url, name), name)
    left = client.scan_iter(f"*{name}*")
    floors = client.hgetall(floors_key(name))
    client.close()

    assert ({other, floors_key(name)}, {f"{name}2": "2"}) == (set(left), floors)


def test_all_versions_of_an_index_are_erased_with_their_alias(stack, name):
    """
    A version that a rebuild has begun is erased too.

    Indexes that no sink has made are kept, even with a similar name or the same
    mapping.
    """
    stack.up("opensearch")
    client = OpenSearch(hosts=[stack.opensearch_url])
    ours = index_body(with_sink_fields({}), SearchOptions(), {})
    loose = {"mappings": {"properties": ours["mappings"]["properties"]}}
    strict = {"mappings": {"dynamic": "strict"}}
    foreign = {f"{name}-20260101": loose, f"{name}-7": strict, f"{name}-x-1": ours}
    client.indices.create(index=f"{name}-1", body={**ours, "aliases": {name: {}}})
    for index, body in ({f"{name}-2": ours} | foreign).items():
        client.indices.create(index=index, body=body)
    erase_search(sink("search", stack.opensearch_url, name), "towpath")
    erase_search(sink("search", stack.opensearch_url, name), "towpath")
    left = sorted(client.indices.get(index=f"{name}*"))
    for index in left:
        client.indices.delete(index=index)
    client.close()

    assert sorted(foreign) == left


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_warehouses_tables_are_erased_with_their_views_and_files(warehouse):
    """
    Later writes of the sink begin with new tables.
    """
    changes = [warehouse.change(8, key, {"note": "x"}) for key in (1, 2)]
    write(warehouse.sink(), changes, events=[warehouse.event(1)])
    folder = Path(warehouse.sink_settings.folder)
    table = warehouse.orders.split(".")[1]
    assert list(folder.rglob(f"{table}/data/**/*.parquet"))
    erase_warehouse(warehouse.sink_settings, "towpath")
    erase_warehouse(warehouse.sink_settings, "towpath")
    left = list(folder.rglob(f"{table}/data/**/*.parquet"))
    gone = [
        list(warehouse.reader.rows(name))
        for name in (warehouse.orders, warehouse.events)
    ]
    write(warehouse.sink(), [warehouse.change(8, 3, {"note": "y"})])
    view = warehouse.sql("select id from {t}_live")

    assert ([], [[], []], [{"id": 3}]) == (left, gone, view)
