"""Somebody drops a search index and empties a cache: docs/disasters."""

import pytest
import redis
from opensearchpy import OpenSearch

from support.disaster import print_lines

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_dropped_index_and_an_emptied_cache_are_filled_again(disaster, stack):
    """
    The sinks detect the losses, and request the rows from the relay.
    """
    stack.up("opensearch")
    with disaster.running("cache", "search"):
        disaster.step("drop the index of the orders")
        client = OpenSearch(stack.opensearch_url)
        (index,) = client.indices.get_alias(name=f"{disaster.prefix}-orders")
        client.indices.delete(index=index)
        print_lines(f"DELETE /{index}")
        disaster.wait_for_driver_log("index lost rows")

        disaster.step("delete every key of the cache")
        with redis.Redis.from_url(stack.redis_url) as cache:
            keys = [*cache.scan_iter(f"{disaster.prefix}:*", count=1000)]
            cache.delete(*keys)
        print_lines(f"DEL of {len(keys)} keys")
        disaster.wait_for_driver_log(
            "cache rows lost: snapshots of all routes are requested"
        )
        disaster.wait_for_snapshots()
        disaster.towpath("snapshot", "list")
        client.close()
        disaster.verify("cache", "search")
