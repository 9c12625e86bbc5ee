"""``towpath replay`` requests exactly the key that was named."""

import pytest

from towpath.deploy.cli import snapshot, trace
from towpath.deploy.snapshots.requests import parsed_keys


@pytest.mark.parametrize("id_", ["7", "[7]", " 7", "", '["a", "b"]'])
def test_an_id_is_requested_verbatim(id_, monkeypatch):
    """
    An id may look like a list, or be surrounded by whitespace.
    """
    requested = []
    monkeypatch.setattr(
        snapshot, "start", lambda _, options, **__: requested.extend(options.key)
    )
    trace.replay("order", id_, to="cache")

    assert [[id_]] == parsed_keys(requested)


def test_each_column_of_a_key_is_requested(monkeypatch):
    """
    Colons separate the columns, unless a colon is part of a value.
    """
    requested = []
    monkeypatch.setattr(
        snapshot, "start", lambda _, options, **__: requested.extend(options.key)
    )
    trace.replay(to="cache", table="shop.lines", key="7:a%3Ab")

    assert [["7", "a:b"]] == parsed_keys(requested)
