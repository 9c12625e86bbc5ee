"""The key that ``towpath replay`` requests is the one that was named."""

import pytest

from towpath.deploy.cli import snapshot, trace
from towpath.deploy.snapshots.requests import parsed_keys


@pytest.mark.parametrize("id_", ["7", "[7]", " 7", "", '["a", "b"]'])
def test_an_id_is_requested_letter_by_letter(id_, monkeypatch):
    """
    An id may look like a list, or have white space around it.
    """
    asked = []
    monkeypatch.setattr(
        snapshot, "start", lambda _, options, **__: asked.extend(options.key)
    )
    trace.replay("order", id_, to="cache")

    assert [[id_]] == parsed_keys(asked)


def test_each_column_of_a_key_is_requested(monkeypatch):
    """
    A colon separates them, unless it is part of a value.
    """
    asked = []
    monkeypatch.setattr(
        snapshot, "start", lambda _, options, **__: asked.extend(options.key)
    )
    trace.replay(to="cache", table="shop.lines", key="7:a%3Ab")

    assert [["7", "a:b"]] == parsed_keys(asked)
