"""
From topics to places in the sink.

The route of a table or of an aggregate reads its topic and, beside it, the topic of
what snapshots read for this sink only. An event log's route may end in ``*``: every
topic that begins so, except backfills, also those that do not exist yet.
"""

import re
from collections.abc import Iterable
from typing import Final

from towpath.schemas.topics import BACKFILL, backfill_topic, is_backfill
from towpath.settings import Route, RouteKind, Sink

_ANY: Final = "*"


class Routes:
    """The routes of one sink, found by topic."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._by_topic: dict[str, Route | None] = {}
        for route in sink.route:
            for topic in _exact_topics(route, sink.name):
                self._by_topic[topic] = route
        self._open_ended = [r for r in sink.route if r.topic.endswith(_ANY)]

    @property
    def pattern(self) -> str:
        """
        A regular expression that is found in exactly the topics of the sink.

        Both Java and Python read it the same way. The engine looks for it anywhere in
        a name, so it says itself where a name begins and ends: other sinks' backfill
        topics begin with the name of the table's.
        """
        exact = [re.escape(topic) for topic in sorted(self._by_topic)]
        open_ended = [
            f"(?!.*{re.escape(BACKFILL)}){re.escape(r.topic.removesuffix(_ANY))}.*"
            for r in self._open_ended
        ]
        return f"^(?:{'|'.join([*exact, *open_ended])})$"

    def of(self, topic: str) -> Route | None:
        """Find the route that reads a topic."""
        try:
            return self._by_topic[topic]
        except KeyError:
            return self._search(topic)

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return, sorted, those of the topics that the sink reads."""
        return sorted(topic for topic in topics if self.of(topic) is not None)

    def _search(self, topic: str) -> Route | None:
        if is_backfill(topic):
            return None
        begins = (
            r for r in self._open_ended if topic.startswith(r.topic.removesuffix(_ANY))
        )
        return next(begins, None)


def _exact_topics(route: Route, sink: str) -> list[str]:
    if route.topic.endswith(_ANY):
        return []
    if route.kind is RouteKind.EVENT_LOG:
        return [route.topic]
    return [route.topic, backfill_topic(route.topic, sink)]
