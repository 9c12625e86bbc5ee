"""What is read to fill a new sink."""

import pytest

from towpath.deploy.filling import collections_of
from towpath.schemas.failure import UsageError
from towpath.settings import Settings


def settings(view: str) -> Settings:
    """Make settings with a search sink that reads a table and an aggregate."""
    order = {"topic": "events.order", "name": "orders", "state_types": ["OrderPlaced"]}
    routes = [
        {"topic": "towpath.shop.customers", "name": "customers"},
        order | {"kind": "aggregate"},
    ]
    sink = {"name": "search", "kind": "search", "url": "x", "route": routes}
    views = [{"aggregate_type": view, "view": "shop.documents"}]
    outbox = {"topic": "events.{aggregate_type}", "view": views}
    return Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "x", "tables": ["shop.customers", "shop.lines"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "relay": {"outbox": outbox},
            "sink": [sink],
        }
    )


def test_a_sink_is_filled_from_its_tables_and_its_views():
    """
    What no route reads is not asked for; without a sink everything is.
    """
    chosen = settings("order")

    assert ["shop.customers", "outbox.order"] == collections_of(chosen, chosen.sink[0])
    assert ("shop.customers", "shop.lines", "outbox.order") == chosen.collections


def test_an_aggregate_without_a_view_cannot_be_filled():
    """
    The topic is named, and what is missing.
    """
    chosen = settings("invoice")

    with pytest.raises(UsageError, match=r"no view of relay.outbox.view gives events"):
        collections_of(chosen, chosen.sink[0])
