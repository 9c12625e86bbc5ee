"""A row's name and the source's key are converted into each other."""

import pytest

from towpath.settings import Route
from towpath.sinks.changes.routing import routing_of
from towpath.sinks.verify.canonical import KeyNames

PLAIN = KeyNames(("tenant", "id"), None)
TEMPLATE = KeyNames(
    ("tenant", "id"),
    routing_of(Route(topic="t", name="n", key="order:{tenant}:no-{id}!")),
)


@pytest.mark.parametrize(
    ("names", "key", "name"),
    [
        (PLAIN, ("a", "1"), "a:1"),
        (PLAIN, ("a:b", "%3A"), "a%3Ab:%253A"),
        (PLAIN, ("", ""), "%00:%00"),
        (TEMPLATE, ("a", "1"), "order:a:no-1!"),
        (TEMPLATE, ("a:b%", "-"), "order:a%3Ab%25:no--!"),
    ],
)
def test_a_key_can_be_read_back_from_its_row_name(names, key, name):
    """
    Escaped colons, percent signs and empty parts are restored; templates are reversed.
    """
    assert (name, key) == (names.name(key), names.key(name))


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (PLAIN, "a"),
        (PLAIN, "a:b:c"),
        (PLAIN, "a:"),
        (TEMPLATE, "a:1"),
        (TEMPLATE, "other:a:no-1!"),
        (TEMPLATE, "order:a:1"),
    ],
)
def test_a_foreign_row_name_gives_no_key(names, name):
    """
    A row that another program wrote has no key in the source.
    """
    assert names.key(name) is None
