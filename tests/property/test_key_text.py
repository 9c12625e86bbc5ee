"""No two keys share a text."""

from hypothesis import given
from hypothesis import strategies as st

from towpath.sinks.key_text import key_text
from towpath.sinks.targets.cache.schema import route_key_prefix

PARTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6
)
TRICKY = st.text(":%3A025", max_size=6)
KEYS = st.tuples(PARTS | TRICKY, PARTS | TRICKY)


@given(KEYS, KEYS)
def test_two_keys_of_a_table_share_no_text(first, second):
    """Texts are equal exactly where keys are."""
    assert (first == second) == (key_text(first) == key_text(second))


@given(KEYS, KEYS)
def test_two_rows_of_two_routes_share_no_name(first, second):
    """
    A route whose name looks like another's key does not write its rows.
    """
    rows = (first, second)
    places = {route_key_prefix("p", route) + key_text((key,)) for route, key in rows}

    assert (first == second) == (len(places) == 1)


@given(st.text(":%", min_size=0, max_size=5))
def test_a_key_text_is_never_empty(part):
    """
    A search index takes no empty id.
    """
    assert key_text((part,)) != ""


@given(st.text(":%3Aa0", max_size=8))
def test_a_colon_in_a_key_part_is_no_separator(text):
    """
    Keys that differ only in which colon separates their parts differ as texts.
    """
    keys = {(text[:at], text[at + 1 :]) for at, sign in enumerate(text) if sign == ":"}

    assert len(keys) == len({key_text(key) for key in keys})


@given(st.text(":%03A", min_size=1, max_size=5))
def test_a_key_part_that_looks_escaped_is_another_part(text):
    """
    A key that equals another key's text has another text itself.
    """
    escaped = key_text((text,))

    assert (text == escaped) == (key_text((escaped,)) == escaped)
