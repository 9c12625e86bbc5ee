"""A route's columns and ids are checked before anything starts."""

import re
from pathlib import Path

import pytest

from support.configuration import ADDRESSES
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, load, read
from towpath.settings.routes import KeyPart, columns_of, parse_template


def document(*routes: dict, kind: str = "search") -> dict:
    """Make a document with one sink and one captured table, which every route reads."""
    named = [
        {"topic": "towpath.shop.orders", "name": f"orders_{number}"} | route
        for number, route in enumerate(routes)
    ]
    sink = {"name": "it", "kind": kind, "url": ADDRESSES[kind], "route": named}
    if kind == "warehouse":
        sink["folder"] = "lake"
        for route in named:
            route["name"] = f"shop.{route['name']}"
    return {
        "version": 1,
        "source": [{"dsn": "postgresql:///x", "tables": ["shop.orders"]}],
        "kafka": {"bootstrap_servers": "kafka:9092"},
        "registry": {"url": "http://x"},
        "sink": [sink],
    }


def check(*routes: dict, kind: str = "search") -> Settings:
    """Read a document with these routes."""
    return read(document(*routes, kind=kind), {}, Path("/"))


def mistakes(*routes: dict, kind: str = "search") -> tuple[str, ...]:
    """List the mistakes in a document with these routes."""
    with pytest.raises(ConfigurationError) as caught:
        check(*routes, kind=kind)
    return caught.value.mistakes


def test_a_route_that_changes_rows_is_read(tmp_path: Path):
    """
    Constants keep the type that they have in the file.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(
        """
version = 1
[[source]]
dsn = "postgresql:///x"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "localhost:9092"
[registry]
url = "http://localhost:1"
[[sink]]
name = "it"
kind = "search"
url = "http://x"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
exclude = ["secret"]
key = "order:{tenant}:no-{id}"
[sink.route.rename]
cust_no = "customer_id"
[sink.route.constants]
region = "eu"
shard = 7
weight = 1.0
is_live = true
[sink.route.fields]
customer_id = "uuid"
"""
    )
    (route,) = load(path, {}).sink[0].route

    assert {"cust_no": "customer_id"} == route.rename
    assert [("eu", str), (7, int), (1.0, float), (True, bool)] == [
        (value, type(value)) for value in route.constants.values()
    ]


@pytest.mark.parametrize(
    ("route", "kind", "message"),
    [
        (
            {"include": ["a"], "exclude": ["b"]},
            "cache",
            "include and exclude cannot be combined",
        ),
        (
            {"exclude": ["a"], "rename": {"a": "b"}},
            "cache",
            "rename: a is left out by exclude",
        ),
        (
            {"include": ["order_id"], "rename": {"order_di": "b"}},
            "cache",
            "order_di is not one of include; did you mean 'order_id'?",
        ),
        ({"rename": {"a": "c", "b": "c"}}, "cache", "two columns get the name c"),
        (
            {"include": ["a", "b"], "rename": {"a": "b"}},
            "cache",
            "two columns get the name b",
        ),
        (
            {"rename": {"a": "c"}, "constants": {"c": 1}},
            "cache",
            "constants: c is also the name of a column",
        ),
        ({"rename": {"a": "_x"}}, "cache", "which sinks reserve"),
        ({"constants": {"": 1}}, "cache", "which sinks reserve"),
        ({"constants": {"a": [1]}}, "cache", "constants.a: must be text, true, false"),
        ({"constants": {"a": 2**63}}, "cache", "or a number that a column can hold"),
        (
            {"constants": {"a": float("nan")}},
            "cache",
            "or a number that a column can hold",
        ),
        ({"key": "{id}"}, "warehouse", "finds rows by their key columns"),
        ({"fields": {"a": "uuid"}}, "cache", "only a search index searches by fields"),
        ({"fields": {"a.b": "uuid"}}, "search", "a column is searched as a whole"),
        ({"topic": "towpath.shop.oders"}, "cache", "mean 'towpath.shop.orders'"),
        (
            {"kind": "event_log", "topic": "e.*", "rename": {"a": "b"}},
            "warehouse",
            "rename: applies to rows only",
        ),
        (
            {"kind": "aggregate", "topic": "e", "state_types": ["A"], "key": "{id}"},
            "search",
            "key: applies to rows only",
        ),
        (
            {"kind": "event_log", "topic": "e.*", "fields": {"a": "uuid"}},
            "warehouse",
            "same columns for all events",
        ),
    ],
)
def test_a_route_that_contradicts_itself_is_a_mistake(route: dict, kind: str, message):
    """
    The mistake is reported with its sink, its route and its key.
    """
    (mistake,) = mistakes(route, kind=kind)

    assert mistake.startswith("sink.")
    assert re.search(re.escape(message), mistake), mistake


def test_every_mistake_of_the_routes_is_reported_at_once():
    """
    Mistakes in several routes, and several in one route, are in one message.
    """
    found = mistakes(
        {"rename": {"a": "_b"}, "fields": {"c": "uuid"}, "topic": "towpath.shop.z"},
        {"constants": {"_c": 1}},
        kind="cache",
    )

    assert 4 == len(found), found


def test_only_a_cache_can_have_two_shapes_of_a_topic():
    """
    Other sinks look up a table's shape by topic, so two shapes are rejected.
    """
    routes = ({}, {"exclude": ["a"]})
    (message,) = mistakes(*routes)

    assert "move one of the routes to another sink" in message
    assert 2 == len(check(*routes, kind="cache").sink[0].route)
    assert 2 == len(check({}, {"key": "x-{id}"}).sink[0].route)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders", "names no column"),
        ("{}", "names no column"),
        ("{id", "a brace outside a column"),
        ("{{id}}", "a brace outside a column"),
        ("{a}-{b}", "put a colon between {a} and {b}"),
        ("{a}{b}", "put a colon between {a} and {b}"),
        ("{a}:{a}", "names a twice"),
        ("x::{a}", "an empty part between colons"),
        (":{a}", "an empty part between colons"),
        ("{a}:", "an empty part between colons"),
    ],
)
def test_a_template_that_two_keys_could_share_is_a_mistake(text: str, message: str):
    """
    The message names the mistake and a correct template.
    """
    (mistake,) = mistakes({"key": text})

    assert message in mistake


def test_each_part_of_a_template_has_at_most_one_column():
    """
    A colon within a column's name does not separate parts.
    """
    parts = parse_template("order:no {a:b}!:{id}")

    assert (KeyPart("order"), KeyPart("no ", "a:b", "!"), KeyPart("", "id")) == parts
    assert ("a:b", "id") == columns_of("order:no {a:b}!:{id}")
