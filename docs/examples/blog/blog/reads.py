"""Reads from the cache and the search index, which the sinks keep up to date."""

import os
from typing import Any

import redis
from opensearchpy import OpenSearch


def cached_post(post_id: int) -> dict[str, str]:
    """Return a post from the cache; empty if the cache does not have it."""
    with redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as cache:
        columns = cache.hgetall(f"towpath:posts:{post_id}")
    return {name: text for name, text in columns.items() if not name.startswith("_")}


def found_posts(text: str) -> list[dict[str, Any]]:
    """Return the posts that the search index finds, best match first."""
    index = OpenSearch(os.environ["OPENSEARCH_URL"])
    query = {"multi_match": {"query": text, "fields": ["title", "body"]}}
    response = index.search(index="posts", body={"query": query})
    index.close()
    return [hit["_source"] for hit in response["hits"]["hits"]]
