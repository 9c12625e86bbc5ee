"""No two keys share a text."""

from hypothesis import example, given
from hypothesis import strategies as st

from towpath.sinks.key_text import key_text
from towpath.sinks.targets.cache.schema import (
    name_of,
    route_key_prefix,
    text_of_name,
)

PARTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6
)
TRICKY = st.text(":%3A025", max_size=6)
KEYS = st.tuples(PARTS | TRICKY, PARTS | TRICKY)
# Names in a cache that any program wrote, as a client decodes them.
NAMES = st.lists(
    st.binary(max_size=3)
    | st.sampled_from([b"%", b"%25", b"%C3", b"C3", b"\xc3", b":"]),
    max_size=6,
).map(lambda parts: b"".join(parts).decode(errors="surrogateescape"))


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


@given(NAMES)
@example("caf%C3%A9")
@example("%25C3")
def test_every_name_in_a_cache_is_found_by_its_text(name):
    """
    So no two names share a text, and an erase deletes the key that was reported.
    """
    text = text_of_name(name)
    text.encode()

    assert name == name_of(text)


@given(KEYS)
@example(("%FF", "%%"))
def test_a_name_of_ours_is_its_own_text(key):
    """
    So a foreign key never has the text of a row.
    """
    assert key_text(key) == text_of_name(key_text(key)) == name_of(key_text(key))
