"""
How often what was written comes to be found.

::

    one index          every ``refresh_ms``; while a backlog is worked off, seldom
    a second one too   the old one behind each batch, and only after the new one

Refreshing is half of the work of an index that takes many documents, and who searches
one that is far behind gains nothing by it.

While a rebuild fills a second index, whatever is found in the old one is to be found in
the new one as well. Then no search goes back in time when the new one takes its place,
whenever that is.
"""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from opensearchpy import OpenSearch

from towpath.settings import SearchOptions
from towpath.sinks.change import Change
from towpath.sinks.search.client import translated
from towpath.sinks.search.indexes import Indexes
from towpath.sinks.search.mapping import interval

# What is written last of a backlog may wait so long, unless more comes. A refresh then
# costs a hundredth of the time; three times as long gains nothing any more.
SELDOM_MS: Final = 10_000

_NEVER: Final = "-1"


class Refreshing:
    """The refreshes of one sink's indexes."""

    def __init__(
        self, client: OpenSearch, indexes: Indexes, options: SearchOptions
    ) -> None:
        self.client = client
        self._indexes = indexes
        self._often = interval(options.refresh_ms)
        self._seldom = interval(max(options.refresh_ms, SELDOM_MS))
        # More than is under way at once: it was not written since the last batch.
        self._most_live = options.call_documents * options.calls_in_flight

    def adapt(self, changes: Sequence[Change]) -> None:
        """Have each index refreshed as its share of a batch asks for."""
        counts = Counter(map(attrgetter("route"), changes))
        for route in self._indexes.known():
            is_backlog = counts[route] > self._most_live
            wanted = self._seldom if is_backlog else self._often
            *old, newest = self._indexes.standing(route)
            for standing in old:
                self._set(standing.name, standing.refresh, _NEVER)
            self._set(newest.name, newest.refresh, wanted)

    def show(self) -> None:
        """Let what both indexes of a route have be found in both."""
        for route in self._indexes.known():
            if len(indexes := self._indexes.behind(route)) > 1:
                with translated():
                    for index in reversed(indexes):
                        self.client.indices.refresh(index=index)

    def _set(self, index: str, found: str, wanted: str) -> None:
        if found != wanted:
            body = {"index": {"refresh_interval": wanted}}
            with translated():
                self.client.indices.put_settings(index=index, body=body)
