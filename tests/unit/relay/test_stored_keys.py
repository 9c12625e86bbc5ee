"""The key of a table's records, from facts in the catalog."""

import pytest

from towpath.relay.postgres.catalog import key_columns_text, record_key


@pytest.mark.parametrize(
    ("identity", "keys", "expected"),
    [
        pytest.param(None, [["b", "a"], ["c"]], ["b", "a"], id="full: the first"),
        pytest.param(["a", "b"], [["b", "a"], ["c"]], ["b", "a"], id="in key order"),
        pytest.param(["c"], [["a"], ["c"]], ["c"], id="a different index"),
        pytest.param(["c"], None, ["c"], id="no index distinguishes rows"),
        pytest.param(None, None, (), id="no key"),
    ],
)
def test_the_identity_determines_the_key(identity, keys, expected):
    """
    Without identity columns the first key is used; its order is kept.
    """
    assert expected == record_key(identity, keys)


def test_the_key_text_of_a_table_without_a_key_is_the_word_none():
    """
    The text otherwise lists the columns.
    """
    assert ("(a, b)", "none") == (key_columns_text(["a", "b"]), key_columns_text([]))
