"""Declared aggregate views must be consistent."""

from pathlib import Path

import pytest

from towpath.schemas.failure import ConfigurationError
from towpath.settings import load

FILE = """
version = 1
[[source]]
dsn = "postgresql:///x"
tables = {tables}
[kafka]
bootstrap_servers = "localhost:9092"
[registry]
url = "http://localhost:1"
[relay.outbox]
{options}
[[relay.outbox.view]]
aggregate_type = "{name}"
view = "s.state"
{more}
"""
AGAIN = """
[[relay.outbox.view]]
aggregate_type = "order"
view = "s.other"
"""


def mistakes(folder: Path, **parts: str) -> str:
    """Return the mistakes in a file with a view."""
    path = folder / "towpath.toml"
    defaults = {"tables": "[]", "options": "", "name": "order", "more": ""}
    path.write_text(FILE.format(**defaults | parts), encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        load(path, {})
    return str(refused.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"more": AGAIN}, "outbox.order is declared more than once"),
        ({"more": AGAIN + 'name = "more"\nid_form = "uuid"'}, "differ in id_form"),
        ({"tables": '["s.state"]'}, "s.state is one of source.tables"),
        ({"tables": '["outbox.order"]'}, "outbox.order is also the name by which"),
        ({"options": 'table = "s.state"'}, "s.state is the outbox"),
        ({"options": 'route_by = "tenant"'}, "tenant is not a column of views"),
        ({"options": 'placements = ["p:partition"]'}, "p:partition needs a column"),
        ({"name": "an order"}, "an order produces a topic name that"),
    ],
)
def test_a_view_that_contradicts_other_keys_is_a_mistake(
    tmp_path: Path, parts: dict, message: str
):
    """
    Each mistake is reported before anything starts.
    """
    assert message in mistakes(tmp_path, **parts)


def test_all_mistakes_of_views_are_reported_at_once(tmp_path: Path):
    """
    One start reports all of them, instead of one mistake per start.
    """
    found = mistakes(
        tmp_path,
        more=AGAIN,
        tables='["s.state", "outbox.order"]',
        options='route_by = "tenant"\nplacements = ["p:partition"]',
    )

    for message in (
        "more than once",
        "source.tables",
        "which signals",
        "tenant",
        "needs",
    ):
        assert message in found


def test_routing_by_the_aggregate_type_is_not_a_mistake(tmp_path: Path):
    """
    Its column may have a different name, and its value may be rewritten.
    """
    path = tmp_path / "towpath.toml"
    options = (
        'route_by = "kind"\nroute_regex = "an (.*)"\nroute_replacement = "$1"\n'
        'columns = { aggregate_type = "kind" }'
    )
    text = FILE.format(tables="[]", options=options, name="an order", more="")
    path.write_text(text, encoding="utf-8")

    [view] = load(path, {}).relay.outbox.view

    assert "outbox.an order" == view.collection
