"""The routes of a sink must be consistent."""

from pathlib import Path

import pytest

from support.configuration import ADDRESSES
from towpath.schemas.failure import ConfigurationError
from towpath.settings import load

FILE = """
version = 1
[[source]]
dsn = "postgresql:///x"
[kafka]
bootstrap_servers = "localhost:9092"
[registry]
url = "http://localhost:1"
[[sink]]
name = "it"
kind = "{kind}"
url = "{url}"
{more}
[[sink.route]]
topic = "outbox.event.order"
name = "orders"
kind = "aggregate"
state_types = ["OrderPlaced"]
"""


def write(folder: Path, kind: str, change: tuple[str, str] = ("", "")) -> Path:
    """Write a file with one sink and a replacement in its text."""
    more = 'folder = "lake"' if kind == "warehouse" else ""
    path = folder / "towpath.toml"
    path.write_text(
        FILE.format(kind=kind, more=more, url=ADDRESSES[kind]).replace(*change)
    )
    return path


def test_a_route_of_aggregates_is_read(tmp_path: Path):
    """
    Paths into the document are read as they are written.
    """
    fields = '[sink.route.fields]\ntotal = "numeric"\n"lines[].a.b" = "uuid"\n'
    path = write(tmp_path, "search")
    path.write_text(path.read_text() + fields)
    (route,) = load(path, {}).sink[0].route

    assert {"total": "numeric", "lines[].a.b": "uuid"} == route.fields
    assert ("OrderPlaced",) == route.state_types


@pytest.mark.parametrize("kind", ["cache", "warehouse"])
def test_only_an_index_keeps_aggregates(tmp_path: Path, kind: str):
    """
    Other sinks are rejected before anything starts.
    """
    with pytest.raises(ConfigurationError, match="aggregates need a sink of the kind"):
        load(write(tmp_path, kind), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"outbox.event.order"', '"outbox.event.*"'), "name one topic"),
        (('"outbox.event.order"', f'"{"x" * 238}"'), "backfill.it, of 250 characters"),
        (('kind = "aggregate"', 'kind = "table"'), "need a route of the kind aggregat"),
        (('state_types = ["OrderPlaced"]', ""), "or list fields"),
        (
            ("state_types", 'delete_types = ["OrderPlaced"]\nstate_types'),
            "delete_types: OrderPlaced is one of state_types",
        ),
        (
            ("state_types", 'fields = { "a..b" = "text" }\nstate_types'),
            "not a path into a document",
        ),
        (
            ("state_types", 'fields = { "a[]" = "text" }\nstate_types'),
            "not a path into a document",
        ),
    ],
)
def test_a_route_that_contradicts_itself_is_a_mistake(
    tmp_path: Path, change: tuple[str, str], message: str
):
    """
    The message names the missing or superfluous key.
    """
    with pytest.raises(ConfigurationError, match=message):
        load(write(tmp_path, "search", change), {})


TABLE = """
[[sink]]
name = "{sink}"
kind = "{kind}"
url = "{url}"
{more}
[[sink.route]]
topic = "towpath.shop.orders"
name = "{name}"
"""


def two_sinks(folder: Path, *sinks: dict[str, str]) -> Path:
    """Write a file with these sinks."""
    path = folder / "towpath.toml"
    common = {"kind": "cache", "more": "", "name": "orders"}
    blocks = [
        TABLE.format(**common | {"url": ADDRESSES[one.get("kind", "cache")]} | one)
        for one in sinks
    ]
    path.write_text(FILE[: FILE.index("[[sink]]")] + "".join(blocks))
    return path


def test_a_warehouse_table_must_not_have_the_name_of_a_view(tmp_path: Path):
    """
    The catalog treats names that differ only in case as the same name.
    """
    sink = {"sink": "it", "kind": "warehouse", "more": 'folder = "lake"'}
    route = '[[sink.route]]\ntopic = "towpath.shop.live"\nname = "shop.Orders_live"\n'
    path = two_sinks(tmp_path, sink | {"name": "shop.orders"})
    path.write_text(path.read_text() + route)
    with pytest.raises(ConfigurationError, match=r"view of the route shop\.orders"):
        load(path, {})


@pytest.mark.parametrize(
    ("kind", "name", "is_valid"),
    [
        ("search", "orders-2026.v_1", True),
        ("search", "", False),
        ("search", "Orders", False),
        ("search", "_orders", False),
        ("search", "all orders", False),
        ("search", "a/b", False),
        ("search", "ä" * 121, False),
        ("warehouse", "shop.orders", True),
        ("warehouse", "orders", False),
        ("warehouse", "a.b.c", False),
        ("cache", "All/Orders", True),
    ],
)
def test_a_route_name_must_be_valid_in_its_target(
    tmp_path: Path, kind: str, name: str, is_valid: bool
):
    """
    A name that the target would refuse is already rejected when the file is loaded.
    """
    more = 'folder = "lake"' if kind == "warehouse" else ""
    sink = {"sink": "it", "kind": kind, "name": name, "more": more}
    try:
        load(two_sinks(tmp_path, sink), {})
        message = ""
    except ConfigurationError as error:
        message = str(error)

    assert is_valid == (message == "")
    assert is_valid or f"sink.it.route.{name}.name: {name!r} is no" in message


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ({}, True),
        ({"name": "lines"}, False),
        ({"url": "redis://y"}, False),
        ({"kind": "search"}, False),
    ],
)
def test_one_target_name_is_written_by_only_one_sink(
    tmp_path: Path, other: dict[str, str], is_refused: bool
):
    """Each guard assumes a single writer."""
    path = two_sinks(tmp_path, {"sink": "one"}, {"sink": "two", **other})
    try:
        load(path, {})
        message = ""
    except ConfigurationError as error:
        message = str(error)

    expected = "two.route.orders.name: the sink one also writes orders in this target"
    assert is_refused == (expected in message)
    assert is_refused == bool(message)


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ({}, True),
        ({"more": 'folder = "elsewhere"'}, True),
        ({"more": '[sink.warehouse]\nlocation = "s3://lake"'}, True),
        ({"more": '[sink.warehouse]\ncatalog = "rest"\nlocation = "s3://b"'}, False),
        ({"url": "postgresql://y"}, False),
        ({"name": "shop.lines"}, False),
    ],
)
def test_warehouses_with_one_catalog_share_its_names(
    tmp_path: Path, other: dict[str, str], is_refused: bool
):
    """A catalog has only one table per name, wherever its files are."""
    lake = {"kind": "warehouse", "name": "shop.orders", "url": "postgresql://x"}
    one = {"sink": "one", "more": 'folder = "lake"', **lake}
    if "rest" in other.get("more", ""):
        one["more"] = '[sink.warehouse]\ncatalog = "rest"\nlocation = "s3://a"'
        one["url"] = "http://x"
    try:
        load(two_sinks(tmp_path, one, {**one, "sink": "two", **other}), {})
        message = ""
    except ConfigurationError as error:
        message = str(error)

    assert is_refused == ("the sink one also writes shop.orders in this" in message)
    assert is_refused == bool(message)


@pytest.mark.parametrize(
    ("other", "is_taken"),
    [
        ({"name": "orders-next"}, True),
        ({"name": "orders-2024"}, False),
        ({"name": "orders-next", "url": "http://y"}, False),
    ],
)
def test_a_route_must_not_have_the_name_of_another_routes_rebuild(
    tmp_path: Path, other: dict[str, str], is_taken: bool
):
    """
    While a rebuild of orders fills the index orders-next, all orders are written there.
    """
    one = {"sink": "one", "kind": "search", "url": "http://x"}
    try:
        load(two_sinks(tmp_path, one, {**one, "sink": "two", **other}), {})
        message = ""
    except ConfigurationError as error:
        message = str(error)

    assert is_taken == ("the sink one gives this name to the index of a" in message)
    assert is_taken == bool(message)


def test_a_sink_must_not_be_named_relay(tmp_path: Path):
    """
    Its dead letters would be in the relay's topic; other mistakes are reported as well.
    """
    path = two_sinks(tmp_path, {"sink": "relay", "more": 'folder = "x"'})

    with pytest.raises(ConfigurationError, match="none; name: the relay's own"):
        load(path, {})
