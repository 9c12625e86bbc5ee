"""The pattern that subscribes and the lookup that routes agree on every topic."""

import re

from hypothesis import given
from hypothesis import strategies as st

from towpath.settings import Sink
from towpath.sinks.changes.routing import Routes

ROUTES = Routes(
    Sink.model_validate(
        {
            "name": "lake",
            "kind": "warehouse",
            "url": "postgresql://catalog",
            "folder": "lake",
            "route": [
                {"topic": "towpath.shop.orders", "name": "shop.orders"},
                {"topic": "towpath.shop.order-lines", "name": "shop.order_lines"},
                {
                    "topic": "outbox.event.*",
                    "name": "shop.events",
                    "kind": "event_log",
                },
            ],
        }
    )
)
SEARCH = Routes(
    Sink.model_validate(
        {
            "name": "search",
            "kind": "search",
            "url": "http://unused",
            "route": [
                {
                    "topic": "outbox.event.order",
                    "name": "orders",
                    "kind": "aggregate",
                    "state_types": ["OrderPlaced"],
                },
            ],
        }
    )
)
WORDS = st.sampled_from(
    [
        *("towpath", "shop", "orders", "order-lines", "order_lines", "outbox"),
        *("event", "backfill", "lake", "search", "order", "x", "orders2"),
    ]
)


@given(
    st.sampled_from([ROUTES, SEARCH]),
    st.lists(WORDS, min_size=1, max_size=6).map(".".join),
)
def test_every_subscribed_topic_has_a_route(routes, topic):
    """
    A topic matches the pattern if and only if a route reads it.

    The engine subscribes to every topic whose name contains a match of the pattern.
    """
    subscribed = re.search(routes.pattern, topic) is not None

    assert subscribed == (routes.of(topic) is not None)
