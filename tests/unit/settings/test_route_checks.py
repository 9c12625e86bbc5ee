"""What a sink's routes must agree on."""

from pathlib import Path

import pytest

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
url = "x"
{more}
[[sink.route]]
topic = "outbox.event.order"
name = "orders"
kind = "aggregate"
state_types = ["OrderPlaced"]
"""


def write(folder: Path, kind: str, change: tuple[str, str] = ("", "")) -> Path:
    """Write a file with one sink, changed as told."""
    more = 'folder = "lake"' if kind == "warehouse" else ""
    path = folder / "towpath.toml"
    path.write_text(FILE.format(kind=kind, more=more).replace(*change))
    return path


def test_a_route_of_aggregates_is_read(tmp_path: Path):
    """
    Paths into the document are taken as they are written.
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
    Others are told so before anything starts.
    """
    with pytest.raises(ConfigurationError, match="only a search index keeps aggreg"):
        load(write(tmp_path, kind), {})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"outbox.event.order"', '"outbox.event.*"'), "name one topic"),
        (('kind = "aggregate"', 'kind = "table"'), "are of a route of the kind aggreg"),
        (('state_types = ["OrderPlaced"]', ""), "or list fields"),
        (
            ("state_types", 'delete_types = ["OrderPlaced"]\nstate_types'),
            "delete_types: OrderPlaced is one of state_types",
        ),
        (
            ("state_types", 'fields = { "a..b" = "text" }\nstate_types'),
            "no path into a document",
        ),
        (
            ("state_types", 'fields = { "a[]" = "text" }\nstate_types'),
            "no path into a document",
        ),
    ],
)
def test_a_route_that_contradicts_itself_is_a_mistake(
    tmp_path: Path, change: tuple[str, str], told: str
):
    """
    Each is told with what it lacks or has too much.
    """
    with pytest.raises(ConfigurationError, match=told):
        load(write(tmp_path, "search", change), {})
