"""
From topics to places in the sink.

The route of a table or of an aggregate reads its topic and, beside it, the topic of
what snapshots read for this sink only. An event log's route may end in ``*``: every
topic that begins so, except backfills, also those that do not exist yet.

Several routes may read one topic, each into a place of its own. A topic that a route
names is read by no route whose name for it ends in ``*``.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from towpath.schemas.topics import BACKFILL, backfill_topic, is_backfill
from towpath.settings import Route, RouteKind, Sink
from towpath.sinks.routing import Routing, routing_of

_ANY: Final = "*"


class Reading(NamedTuple):
    """A route that reads a topic; ``routing`` is missing if rows stay as they are."""

    route: Route
    routing: Routing | None


class Routes:
    """The routes of one sink, found by topic."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._by_topic: dict[str, tuple[Reading, ...]] = {}
        for route in sink.route:
            reading = Reading(route, routing_of(route))
            for topic in _exact_topics(route, sink.name):
                self._by_topic[topic] = (*self._by_topic.get(topic, ()), reading)
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

    @property
    def exact(self) -> tuple[str, ...]:
        """The topics that routes name, not those that begin with a name."""
        return tuple(self._by_topic)

    def reading(self, topic: str) -> tuple[Reading, ...]:
        """Find the routes that read a topic; none if no route does."""
        try:
            return self._by_topic[topic]
        except KeyError:
            return self._search(topic)

    def of(self, topic: str) -> Route | None:
        """Find the first route that reads a topic."""
        found = self.reading(topic)
        return found[0].route if found else None

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return, sorted, those of the topics that the sink reads."""
        return sorted(topic for topic in topics if self.reading(topic))

    def _search(self, topic: str) -> tuple[Reading, ...]:
        if is_backfill(topic):
            return ()
        return tuple(
            Reading(route, None)
            for route in self._open_ended
            if topic.startswith(route.topic.removesuffix(_ANY))
        )


def _exact_topics(route: Route, sink: str) -> list[str]:
    if route.topic.endswith(_ANY):
        return []
    if route.kind is RouteKind.EVENT_LOG:
        return [route.topic]
    return [route.topic, backfill_topic(route.topic, sink)]
