"""
Takes away what a sink wrote into OpenSearch: its aliases and their indexes.

An index is a sink's by its name and by its mappings: one that someone else has named
likewise stays.
"""

import re

from towpath.settings import Sink
from towpath.sinks.search.client import connect, translated
from towpath.sinks.search.mapping import is_own


def erase(sink: Sink, _: str) -> None:
    """
    Take a sink's indexes away; safe to repeat. Nobody may write meanwhile.

    Raises:
        UnavailableError: The index does not answer: do it again.
    """
    client = connect(sink.url)
    try:
        with translated():
            for route in sink.route:
                # Also those that a rebuild has begun, and no alias names yet.
                ours = re.compile(re.escape(route.name) + r"-[0-9]+")
                named = client.indices.get(
                    index=f"{route.name}-*",
                    params={"expand_wildcards": "all", "allow_no_indices": "true"},
                )
                for index, told in sorted(named.items()):
                    if ours.fullmatch(index) and is_own(told["mappings"]):
                        client.indices.delete(index=index)
    finally:
        client.close()
