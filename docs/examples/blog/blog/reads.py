"""Reads from the cache and the search index, which the sinks write."""

import os
from typing import Any

import redis
from opensearchpy import OpenSearch


def cached_post(post_id: int) -> dict[str, str]:
    """Return a post as the cache has it: empty if there is none."""
    with redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as cache:
        columns = cache.hgetall(f"towpath:posts:{post_id}")
    return {name: text for name, text in columns.items() if not name.startswith("_")}


def found_posts(text: str) -> list[dict[str, Any]]:
    """Return the posts that the search index finds, the best one first."""
    index = OpenSearch(os.environ["OPENSEARCH_URL"])
    query = {"multi_match": {"query": text, "fields": ["title", "body"]}}
    answer = index.search(index="posts", body={"query": query})
    index.close()
    return [hit["_source"] for hit in answer["hits"]["hits"]]
