"""The places of routes by OpenLineage's names, and the origins of their columns."""

import pytest

from towpath.schemas.lineage import DatasetName
from towpath.settings import Sink
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routing
from towpath.sinks.engine.lineage import _routed, target_of

SHAPE = RelationShape(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("name", "text"),
        Column("email", "text"),
    ),
    ("id",),
    "1",
)
TOPIC = DatasetName("kafka://broker:9092", "towpath.shop.orders")


def sink(kind: str, url: str, **more: object) -> Sink:
    """Describe a sink with one route."""
    route = {"topic": TOPIC.name, "name": "shop.orders", **more.pop("route", {})}
    return Sink.model_validate(
        {"name": "it", "kind": kind, "url": url, "route": [route], **more}
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (
            sink("cache", "redis://user:secret@cache:6379/0"),
            ("redis://cache:6379", "towpath:shop.orders"),
        ),
        (
            sink("search", "https://user:secret@index:9200", route={"name": "orders"}),
            ("opensearch://index:9200", "orders"),
        ),
        (
            sink("postgres", "postgresql://user:secret@models:6543/read"),
            ("postgres://models:6543", "read.shop.orders"),
        ),
        (
            sink("warehouse", "postgresql://catalog/lake", folder="/data/lake"),
            ("file:///data/lake", "shop.orders"),
        ),
    ],
    ids=["cache", "search", "postgres", "warehouse"],
)
def test_a_place_is_named_by_its_kind_without_a_login(one: Sink, expected):
    """
    Two processes with other logins name the same place.
    """
    assert expected == target_of(one, one.route[0], "towpath")


def test_columns_come_from_those_that_decide_them():
    """
    Renames and transforms are followed; a left-out column and a constant have none.
    """
    cache = sink(
        "cache",
        "redis://cache",
        route={
            "exclude": ["email"],
            "rename": {"name": "title"},
            "constants": {"region": "eu"},
            "transforms": [{"template": "{name} <{email}>", "to": "address"}],
        },
    )
    found = _routed(DatasetName("a", "b"), SHAPE, TOPIC, Routing(cache.route[0]))

    assert {
        "id": [(TOPIC, "id")],
        "title": [(TOPIC, "name")],
        "address": [(TOPIC, "email"), (TOPIC, "name")],
    } == found.origins
    assert ["id", "title", "address", "region"] == [each.name for each in found.fields]
